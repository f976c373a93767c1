"""`deepnet report`: run folders as the paper's tables, our column beside the paper's.

Cells of a sweep become the tables that its definition lists (`tables:`): rows and columns are
factors or what was measured (`bleu`, `valid_loss` at the paper's updates, `directions` of a
multilingual model). Runs that belong to no sweep are compared line by line, or placed into a
sweep's tables by their settings with --sweep.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_deepnet.provenance import shown, write_text


@dataclass
class Report:
    """The same tables in three forms."""

    text: list[str] = field(default_factory=list)
    markdown: list[str] = field(default_factory=list)
    csv: list[str] = field(default_factory=list)


def make(folders: Sequence[Path], sweep_name: str | None = None) -> Report:
    """Read run folders, or folders of them, and make every table that they have a place in.

    Raises FileNotFoundError for what is no run folder, ValueError for runs without a place in the
    sweep that was asked for.
    """
    from fairseq_deepnet.report import comparison, render, tables
    from fairseq_deepnet.report.results import Result, find_runs, read_result
    from fairseq_deepnet.sweeps.definition import load_sweep

    results = [read_result(run) for folder in folders for run in find_runs(folder)]
    by_sweep: dict[str | None, list[Result]] = {}
    for result in results:
        by_sweep.setdefault(sweep_name or result.definition, []).append(result)
    report = Report()
    for name, members in by_sweep.items():
        if name is None:
            report.text.append(comparison.to_text(members))
            report.markdown.append(comparison.to_markdown(members))
            report.csv.append(comparison.to_csv(members))
            continue
        sweep = load_sweep(name)
        panels = {layout.panel for layout in sweep.layouts}
        for result in members:
            if not any(tables.places_of(result, sweep, panel) for panel in panels):
                raise ValueError(
                    f"{shown(result.folder)} has no place in {sweep.name}: its settings are none "
                    "of the sweep's"
                )
        made = [tables.build(sweep, layout, members) for layout in sweep.layouts]
        report.text += [render.to_text(table) for table in made]
        report.markdown += [render.to_markdown(table) for table in made]
        report.csv.append(render.to_csv(made))
    return report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet report`."""
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, or folders of runs")
    parser.add_argument("--sweep", help="place the runs in the tables of this sweep (table1, ...)")
    parser.add_argument("--markdown", type=Path, help="also write the tables as Markdown")
    parser.add_argument("--csv", type=Path, help="also write a line a cell as CSV")


def save(report: Report, markdown: Path | None, csv: Path | None) -> None:
    """Write the files that are wanted."""
    for file, parts in ((markdown, report.markdown), (csv, report.csv)):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, "\n".join(parts))
            print(f"written: {shown(file)}", file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    report = make(args.folders, args.sweep)
    print("\n".join(report.text), end="")
    save(report, args.markdown, args.csv)
    return 0
