"""`deepnet report`: run folders as tables: the paper's, ours beside them, or a sweep's own.

Cells of a sweep become the tables that its definition lists (`tables:`, see definition.py).
In one of the paper's, rows and columns are factors or what was measured (`bleu`, `valid_loss` at
the paper's updates, `directions` of a multilingual model). One of the sweep's own has factors on
both sides, or a column for each measure; measures are those of runs.py. A sweep also has figures: a
table's numbers against depth, and loss curves. Runs that belong to no sweep are compared line by
line, or placed into a sweep's tables by their settings with --sweep. With --significance the report
is another one: paired tests between the runs' stored translations.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_deepnet.experiments import figures, result_tables, significance
from fairseq_deepnet.experiments.definition import load_sweep
from fairseq_deepnet.experiments.figures import Figure
from fairseq_deepnet.experiments.runs import RunResult, find_runs, read_result
from fairseq_deepnet.experiments.systems import find_systems
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.tools.plotting.style import save as save_image
from fairseq_deepnet.tools.tables import Section


@dataclass
class Report:
    """Tables with their notes, the same as CSV, and figures."""

    sections: list[Section] = field(default_factory=list)
    csv: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    @property
    def text(self) -> list[str]:
        """The tables for a terminal."""
        return [section.text() for section in self.sections]

    @property
    def markdown(self) -> list[str]:
        """The tables as Markdown."""
        return [section.markdown() for section in self.sections]


def make(folders: Sequence[Path], sweep_name: str | None = None) -> Report:
    """Read run folders, or folders of them, and make every table that they have a place in.

    Raises FileNotFoundError for what is no run folder, ValueError for runs without a place in the
    sweep that was asked for.
    """
    by_sweep: dict[str | None, list[RunResult]] = {}
    for result in [read_result(run) for folder in folders for run in find_runs(folder)]:
        by_sweep.setdefault(sweep_name or result.definition, []).append(result)
    report = Report()
    for name, members in by_sweep.items():
        sweep = load_sweep(name) if name is not None else None
        if sweep is None or not sweep.layouts:
            section, csv = result_tables.side_by_side(members)
            report.sections.append(section)
            report.csv.append(csv)
            continue
        made = result_tables.make_tables(sweep, members)
        report.sections += [table.section() for table in made]
        report.csv.append(result_tables.to_csv(made))
        report.figures += figures.of_sweep(sweep, made, members)
    return report


def compare_systems(args: argparse.Namespace) -> Report:
    """Make the report of `--significance`. ValueError for options that have no part in it."""
    for name, value in (("--sweep", args.sweep), ("--plot", args.plot)):
        if value is not None:
            raise ValueError(f"{name} and --significance are different reports; leave one out")
    if args.samples is not None and args.samples < 1:
        raise ValueError(f"--samples {args.samples}: at least 1 is needed, and 1000 are usual")
    names = [args.test] if args.test in significance.TESTS else list(significance.TESTS)
    systems, missing = find_systems(args.folders, args.baseline)
    found = significance.compare(systems, names, args.samples, missing)
    return Report([found.section()], [found.csv()])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet report`."""
    add = parser.add_argument
    folders = "run folders, folders of runs; to test also score files"
    add("folders", nargs="+", type=Path, help=folders)
    add("--sweep", help="place the runs in the tables of this sweep (table1, ...)")
    add("--markdown", type=Path, help="also write the tables as Markdown")
    add("--csv", type=Path, help="also write a line a cell as CSV")
    drawn = "also draw a sweep: against depth, loss curves"
    add("--plot", type=Path, metavar="FOLDER", help=drawn)
    tests = "instead: sacreBLEU's paired tests between systems, seeds together"
    add("--significance", action="store_true", help=tests)
    add("--test", choices=(*significance.TESTS, "both"), help="which of them (both)")
    add("--baseline", type=Path, help="what the others are tested against (first)")
    add("--samples", type=int, help="resamples or trials (1000 and 10000)")


def save(
    report: Report, markdown: Path | None, csv: Path | None, plots: Path | None = None
) -> None:
    """Write what is wanted: Markdown, CSV, and the figures as PLOTS/NAME.png, which the Markdown
    then shows.
    """
    parts = report.markdown
    if plots is not None:
        for figure in report.figures:
            file = plots / f"{figure.name}.png"
            save_image(figure.draw(), file)
            say(f"written: {shown(file)}")
            if markdown is not None:
                parts.append(f"![{figure.name}]({os.path.relpath(file, markdown.parent)})\n")
    for target, content in ((markdown, parts), (csv, report.csv)):
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text(target, "\n".join(content))
            say(f"written: {shown(target)}")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    of_tests = (args.baseline, args.samples, args.test)
    if not args.significance and any(value is not None for value in of_tests):
        raise ValueError("--baseline, --samples and --test belong to --significance")
    report = compare_systems(args) if args.significance else make(args.folders, args.sweep)
    if args.plot is not None and not report.figures:
        raise ValueError(
            "--plot: only sweeps have figures; `deepnet plot` draws the curves of other runs"
        )
    print("\n".join(report.text), end="")
    save(report, args.markdown, args.csv, args.plot)
    return 0
