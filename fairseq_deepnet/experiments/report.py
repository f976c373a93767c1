"""`deepnet report`: tables and figures of runs, beside the paper's numbers.

Cells of a sweep become the tables of tables.py; a results.csv of `deepnet sweep` can replace its
run folders. Other runs are compared one per line. --significance instead runs paired tests on the
stored translations.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

try:
    import pandas as pd
except ImportError as error:
    raise ValueError("tables need pandas: pip install 'fairseq_deepnet[paper]'") from error

from fairseq_deepnet.experiments import figures, results, significance, tables
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.tools.plotting.images import save as save_image
from fairseq_deepnet.tools.scores import read_scores


@dataclass
class Report:
    """Tables as Markdown, their entries as lines of a CSV, and the tables that have a figure."""

    texts: list[str] = field(default_factory=list)
    entries: list[pd.DataFrame] = field(default_factory=list)
    drawn: list[tables.Table] = field(default_factory=list)


def make(runs: pd.DataFrame) -> Report:
    """Return all tables for rows of results.csv."""
    report = Report()
    for sweep, rows in runs.groupby("sweep", dropna=False, sort=False):
        if pd.isna(sweep):
            report.texts.append(tables.side_by_side(rows))
            continue
        for table in tables.tables_of(str(sweep), rows):
            report.texts.append(table.markdown())
            report.entries.append(table.entries.drop(columns="text"))
            report.drawn += [table] if table.by_depth() and table.entries["seeds"].any() else []
    return report


def save(
    report: Report, markdown: Path | None, csv: Path | None, plots: Path | None = None
) -> None:
    """Write Markdown, CSV, and the figures as PLOTS/NAME.png, which the Markdown includes."""
    texts = list(report.texts)
    for table in report.drawn if plots is not None else ():
        file = plots / f"{table.name}.png"  # type: ignore[operator]
        save_image(figures.against_depth(table), file)
        say(f"written: {shown(file)}")
        if markdown is not None:
            texts.append(f"![{table.name}]({os.path.relpath(file, markdown.parent)})\n")
    entries = pd.concat(report.entries) if report.entries else pd.DataFrame()
    lines = entries.to_csv(index=False, float_format="%.6g")
    for target, content in ((markdown, "\n".join(texts)), (csv, lines)):
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text(target, content)
            say(f"written: {shown(target)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet report`."""
    add = parser.add_argument
    folders = "run folders, folders of runs, results.csv of a sweep; to test also score files"
    add("folders", nargs="+", type=Path, help=folders)
    score = "scores/NAME.json of runs of no sweep (the default request)"
    add("--score", metavar="NAME", help=score)
    add("--markdown", type=Path, help="also write the tables as Markdown")
    add("--csv", type=Path, help="also write the tables of sweeps as CSV, a line per entry")
    drawn = "also draw the measures of a sweep against depth"
    add("--plot", type=Path, metavar="FOLDER", help=drawn)
    tests = "instead: sacreBLEU's paired tests against the first system, seeds together"
    add("--significance", action="store_true", help=tests)
    add("--samples", type=int, help="resamples and trials of the tests (1000 and 10000)")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    report = _of_tests(args) if args.significance else make(_read(args.folders, args.score))
    if args.samples is not None and not args.significance:
        raise ValueError("--samples belongs to --significance")
    if args.plot is not None and not report.drawn:
        raise ValueError("--plot: no figures; `deepnet plot` draws the curves of single runs")
    print("\n".join(report.texts), end="")
    save(report, args.markdown, args.csv, args.plot)
    return 0


def _read(targets: Sequence[Path], score: str | None) -> pd.DataFrame:
    """Return the rows of all runs in folders and results.csv."""
    # settings keep the spelling of the file
    files = [path for path in targets if path.is_file()]
    read = {"dtype": str, "keep_default_na": False, "na_values": [""]}
    frames = [pd.read_csv(file, **read) for file in files]
    folders = [run for path in targets if path not in files for run in results.find_runs(path)]
    runs = [results.read_run(folder, score) for folder in folders]
    for run in runs:
        others = ", ".join(other.name for other in read_scores(run.folder))
        if run.score is None and not run.cell and others:
            wanted = score or "of the default request"
            say(f"{shown(run.folder)}: no score {wanted}; --score chooses one of {others}")
    return pd.concat([*frames, results.table_of(runs)] if runs else frames)


def _of_tests(args: argparse.Namespace) -> Report:
    """Return the report of `--significance`."""
    if args.samples is not None and args.samples < 1:
        raise ValueError(f"--samples {args.samples}: at least 1 is needed, and 1000 are usual")
    systems, notes = significance.find_systems(args.folders)
    frame, signatures = significance.compare(systems, args.samples)
    formats = ["", "", *([".2f"] * 5), ".4f", ".4f"]
    text = tables.layout(
        "Paired significance tests",
        frame,
        [*significance.NOTES, *signatures, *notes],
        floatfmt=formats,
    )
    return Report([text], [frame])
