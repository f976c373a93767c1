"""`deepnet report`: tables and figures of runs, beside the paper's numbers.

Cells of a sweep become the tables of tables.py; a results.csv of `deepnet sweep` can replace its
run folders. Other runs are compared one per line. --significance instead runs paired tests on the
stored translations.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_deepnet.experiments import figures, results, significance, tables
from fairseq_deepnet.experiments.results import Run
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.tools.plotting.images import save as save_image
from fairseq_deepnet.tools.scores import read_scores
from fairseq_deepnet.tools.tables import Section, comma_separated


@dataclass
class Report:
    """Tables with notes, the same as CSV lines, and functions that draw the figures."""

    sections: list[Section] = field(default_factory=list)
    lines: list[list[object]] = field(default_factory=list)
    figures: dict[str, Callable[[], Any]] = field(default_factory=dict)
    heading: Sequence[object] = tables.CSV


def make(runs: Sequence[Run], frame: Any = None) -> Report:
    """Return all tables for runs or for the rows of a results.csv."""
    report, pandas = Report(), results.pandas()
    read = results.table_of(runs) if runs else None
    frame = pandas.concat([part for part in (read, frame) if part is not None])
    for sweep, rows in frame.groupby("sweep", dropna=False, sort=False):
        if pandas.isna(sweep):
            report.sections.append(tables.side_by_side(rows))
            continue
        shown = tables.tables_of(str(sweep), rows)
        report.sections += [table.section() for table in shown]
        report.lines += [line for table in shown for line in table.lines()]
        report.figures |= figures.of_tables(shown)
    return report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet report`."""
    add = parser.add_argument
    folders = "run folders, folders of runs, results.csv of a sweep; to test also score files"
    add("folders", nargs="+", type=Path, help=folders)
    add(
        "--score", metavar="NAME", help="scores/NAME.json of runs of no sweep (the default request)"
    )
    add("--markdown", type=Path, help="also write the tables as Markdown")
    add("--csv", type=Path, help="also write the tables of sweeps as CSV, a line per entry")
    drawn = "also draw the measures of a sweep against depth"
    add("--plot", type=Path, metavar="FOLDER", help=drawn)
    tests = "instead: sacreBLEU's paired tests between systems, seeds together"
    add("--significance", action="store_true", help=tests)
    add("--test", choices=(*significance.TESTS, "both"), help="which of them (both)")
    add("--baseline", type=Path, help="what the others are tested against (first)")
    add("--samples", type=int, help="resamples or trials (1000 and 10000)")


def save(
    report: Report, markdown: Path | None, csv: Path | None, plots: Path | None = None
) -> None:
    """Write Markdown, CSV, and the figures as PLOTS/NAME.png, which the Markdown includes."""
    parts = [section.markdown() for section in report.sections]
    for name, draw in report.figures.items() if plots is not None else ():
        file = plots / f"{name}.png"  # type: ignore[operator]
        save_image(draw(), file)
        say(f"written: {shown(file)}")
        if markdown is not None:
            parts.append(f"![{name}]({os.path.relpath(file, markdown.parent)})\n")
    for target, content in (
        (markdown, "\n".join(parts)),
        (csv, comma_separated([report.heading, *report.lines])),
    ):
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text(target, content)
            say(f"written: {shown(target)}")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    of_tests = (args.baseline, args.samples, args.test)
    if args.significance:
        report = _of_tests(args)
    elif any(value is not None for value in of_tests):
        raise ValueError("--baseline, --samples and --test belong to --significance")
    else:
        files = [path for path in args.folders if path.is_file()]
        folders = [
            run for path in args.folders if path not in files for run in results.find_runs(path)
        ]
        frames = [results.read_table(file) for file in files]
        frame = results.pandas().concat(frames) if frames else None
        runs = [results.read_run(folder, args.score) for folder in folders]
        for member in runs:
            others = ", ".join(score.name for score in read_scores(member.folder))
            if member.score is None and not member.cell and others:
                say(
                    f"{member.name}: no score {args.score or 'of the default request'}; --score"
                    f" chooses one of {others}"
                )
        report = make(runs, frame)
    if args.plot is not None and not report.figures:
        raise ValueError(
            "--plot: only sweeps have figures; `deepnet plot` draws the curves of other runs"
        )
    print("\n".join(section.text() for section in report.sections), end="")
    save(report, args.markdown, args.csv, args.plot)
    return 0


def _of_tests(args: argparse.Namespace) -> Report:
    """Return the report of `--significance`."""
    if args.plot is not None:
        raise ValueError("--plot and --significance are different reports; leave one out")
    if args.samples is not None and args.samples < 1:
        raise ValueError(f"--samples {args.samples}: at least 1 is needed, and 1000 are usual")
    names = [args.test] if args.test in significance.TESTS else list(significance.TESTS)
    systems, missing = significance.find_systems(args.folders, args.baseline)
    comparison = significance.compare(systems, names, args.samples, missing)
    heading, *lines = comparison.lines()
    return Report([comparison.section()], [list(line) for line in lines], heading=heading)
