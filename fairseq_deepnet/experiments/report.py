"""`deepnet report`: tables and figures of runs, beside the paper's numbers.

Cells of a sweep become the tables of tables.py; a results.csv of `deepnet sweep` can replace its
run folders. Other runs are compared one per line. --significance instead runs paired tests on the
stored translations.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

try:
    import pandas as pd
except ImportError as error:
    raise ValueError("tables need pandas: pip install 'fairseq_deepnet[paper]'") from error

from fairseq_deepnet.experiments import figures, results, significance, tables
from fairseq_deepnet.experiments.tables import Table
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.tools.plotting.images import save as save_image
from fairseq_deepnet.tools.scores import read_scores


class Report(NamedTuple):
    """Tables as Markdown, their entries as lines of a CSV, and the tables that are plotted."""

    texts: list[str]
    entries: list[pd.DataFrame]
    plots: Sequence[Table] = ()

    def save(self, folder: Path) -> None:
        """Write report.md, report.csv, and NAME.png for each figure."""
        texts = list(self.texts)
        for table in self.plots:
            save_image(figures.against_depth(table), folder / f"{table.name}.png")
            texts.append(f"![{table.name}]({table.name}.png)\n")
        entries = pd.concat(self.entries) if self.entries else pd.DataFrame()
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "report.csv", entries.to_csv(index=False, float_format="%.6g"))
        write_text(folder / "report.md", "\n".join(texts))
        say(f"written: {shown(folder / 'report.md')}, report.csv, {len(self.plots)} figures")


def make(runs: pd.DataFrame) -> Report:
    """Return all tables for rows of results.csv."""
    texts, all_tables = [], []
    for sweep, rows in runs.groupby("sweep", dropna=False, sort=False):
        if pd.isna(sweep):
            texts.append(tables.side_by_side(rows))
            continue
        members = tables.tables_of(str(sweep), rows)
        texts += [table.markdown() for table in members]
        all_tables += members
    entries = [table.entries.drop(columns="text") for table in all_tables]
    return Report(texts, entries, [table for table in all_tables if table.by_depth()])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet report`."""
    add = parser.add_argument
    folders = "run folders, folders of runs, results.csv of a sweep; to test also score files"
    add("folders", nargs="+", type=Path, help=folders)
    score = "scores/NAME.json of runs of no sweep (the default request)"
    add("--score", metavar="NAME", help=score)
    out = "write report.md, report.csv (a line per entry) and figures to this folder"
    add("--out", type=Path, metavar="FOLDER", help=out)
    tests = "instead: sacreBLEU's paired tests against the first system, seeds together"
    add("--significance", action="store_true", help=tests)
    add("--samples", type=int, help="resamples and trials of these tests (1000 and 10000)")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    if args.significance:
        systems, notes = significance.find_systems(args.folders)
        frame, signatures = significance.compare(systems, args.samples)
        notes = [*significance.NOTES, *signatures, *notes]
        form = {"floatfmt": ["", "", *([".2f"] * 5), ".4f", ".4f"]}
        report = Report([tables.layout("Paired significance tests", frame, notes, **form)], [frame])
    else:
        report = make(_read(args.folders, args.score))
    print("\n".join(report.texts), end="")
    if args.out is not None:
        report.save(args.out)
    return 0


def _read(targets: Sequence[Path], score: str | None) -> pd.DataFrame:
    """Return the rows of all runs in folders and results.csv."""
    # settings keep the spelling of the file
    form = {"dtype": str, "keep_default_na": False, "na_values": [""]}
    frames = [pd.read_csv(path, **form) for path in targets if path.is_file()]
    folders = [run for path in targets if not path.is_file() for run in results.find_runs(path)]
    runs = [results.read_run(folder, score) for folder in folders]
    for run in runs:
        others = ", ".join(other.name for other in read_scores(run.folder))
        if run.score is None and not run.cell and others:
            wanted = score or "of the default request"
            say(f"{shown(run.folder)}: no score {wanted}; --score chooses one of {others}")
    return pd.concat([*frames, results.table_of(runs)] if runs else frames)
