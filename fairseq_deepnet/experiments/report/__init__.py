"""`deepnet report`: run folders as tables: the paper's, ours beside them, or a sweep's own.

Cells of a sweep become the tables that its definition lists (`tables:`, see
experiments/sweeps/layouts.py). In one of the paper's, rows and columns are factors or what was
measured (`bleu`, `valid_loss` at the paper's updates, `directions` of a multilingual model). One of
the sweep's own has factors on both sides, or a column for each measure; measures are those of
report/measures.py. A sweep also has figures: a table's numbers against depth, and loss
curves. Runs that belong to no sweep are compared line by line, or placed into a sweep's tables by
their settings with --sweep. With --significance the report is another one: paired tests between
the runs' stored translations.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_deepnet.files import shown, write_text

if TYPE_CHECKING:
    from fairseq_deepnet.experiments.report.figures import Figure
    from fairseq_deepnet.experiments.report.results import Result
    from fairseq_deepnet.experiments.report.table import Table
    from fairseq_deepnet.experiments.sweeps.definition import Sweep


@dataclass
class Report:
    """The same tables in three forms, and the figures."""

    text: list[str] = field(default_factory=list)
    markdown: list[str] = field(default_factory=list)
    csv: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


def make(folders: Sequence[Path], sweep_name: str | None = None) -> Report:
    """Read run folders, or folders of them, and make every table that they have a place in.

    Raises FileNotFoundError for what is no run folder, ValueError for runs without a place in the
    sweep that was asked for.
    """
    from fairseq_deepnet.experiments.report import comparison, figures, render
    from fairseq_deepnet.experiments.report.results import find_runs, read_result
    from fairseq_deepnet.experiments.sweeps.definition import load_sweep

    results = [read_result(run) for folder in folders for run in find_runs(folder)]
    by_sweep: dict[str | None, list[Result]] = {}
    for result in results:
        by_sweep.setdefault(sweep_name or result.definition, []).append(result)
    report = Report()
    for name, members in by_sweep.items():
        sweep = load_sweep(name) if name is not None else None
        if sweep is None or not sweep.layouts:
            report.text.append(comparison.to_text(members))
            report.markdown.append(comparison.to_markdown(members))
            report.csv.append(comparison.to_csv(members))
            continue
        _refuse_strangers(sweep, members)
        made = _tables(sweep, members)
        report.text += [render.to_text(table) for table in made]
        report.markdown += [render.to_markdown(table) for table in made]
        report.csv.append(render.to_csv(made))
        report.figures += figures.of_sweep(sweep, made, members)
    return report


def _refuse_strangers(sweep: Sweep, members: Sequence[Result]) -> None:
    """ValueError for a run that stands in none of a sweep's tables."""
    from fairseq_deepnet.experiments.report.tables import places_of

    panels = {panel for layout in sweep.layouts for panel in layout.panels}
    for result in members:
        if not any(places_of(result, sweep, panel) for panel in panels):
            raise ValueError(
                f"{shown(result.folder)} has no place in {sweep.name}: its settings are none "
                "of the sweep's"
            )


def _tables(sweep: Sweep, members: Sequence[Result]) -> list[Table]:
    """All tables of a sweep, in the definition's order; an own one without numbers is left out."""
    from fairseq_deepnet.experiments.report import own_tables, tables
    from fairseq_deepnet.experiments.sweeps.layouts import OwnLayout

    made: list[Table] = []
    for layout in sweep.layouts:
        if isinstance(layout, OwnLayout):
            own = own_tables.build(sweep, layout, members)
            made += [table for table in own if table.has_values or not made]
        else:
            made.append(tables.build(sweep, layout, members))
    return made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet report`."""
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        help="run folders, folders of runs; to test also score files",
    )
    parser.add_argument("--sweep", help="place the runs in the tables of this sweep (table1, ...)")
    parser.add_argument("--markdown", type=Path, help="also write the tables as Markdown")
    parser.add_argument("--csv", type=Path, help="also write a line a cell as CSV")
    parser.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="also draw a sweep: against depth, loss curves"
    )
    parser.add_argument(
        "--significance",
        action="store_true",
        help="instead: sacreBLEU's paired tests between systems, seeds together",
    )
    parser.add_argument(
        "--test", choices=("bootstrap", "randomisation", "both"), help="which of them (both)"
    )
    parser.add_argument("--baseline", type=Path, help="what the others are tested against (first)")
    parser.add_argument("--samples", type=int, help="resamples or trials (1000 and 10000)")


def save(
    report: Report, markdown: Path | None, csv: Path | None, plots: Path | None = None
) -> None:
    """Write what is wanted: Markdown, CSV, and the figures as PLOTS/NAME.png, which the Markdown
    then shows.
    """
    parts = list(report.markdown)
    if plots is not None:
        for figure in report.figures:
            file = _draw(figure, plots)
            if markdown is not None:
                parts.append(f"![{figure.name}]({os.path.relpath(file, markdown.parent)})\n")
    for target, content in ((markdown, parts), (csv, report.csv)):
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text(target, "\n".join(content))
            _tell(target)


def _draw(figure: Figure, folder: Path) -> Path:
    from fairseq_deepnet.tools.plotting.style import save as save_image

    file = folder / f"{figure.name}.png"
    save_image(figure.draw(), file)
    _tell(file)
    return file


def _tell(file: Path) -> None:
    print(f"written: {shown(file)}", file=sys.stderr)


def tested(args: argparse.Namespace) -> Report:
    """The report of `--significance`. ValueError for options that have no part in it."""
    from fairseq_deepnet.experiments.report import significance, significance_tables
    from fairseq_deepnet.experiments.report.systems import find_systems

    for name, value in (("--sweep", args.sweep), ("--plot", args.plot)):
        if value is not None:
            raise ValueError(f"{name} and --significance are different reports; leave one out")
    if args.samples is not None and args.samples < 1:
        raise ValueError(f"--samples {args.samples}: at least 1 is needed, and 1000 are usual")
    names = [args.test] if args.test in significance.TESTS else list(significance.TESTS)
    systems, missing = find_systems(args.folders, args.baseline)
    found = significance.compare(systems, names, args.samples, missing)
    forms = (significance_tables.to_text, significance_tables.to_markdown)
    text, markdown = ([form(found)] for form in forms)
    return Report(text, markdown, [significance_tables.to_csv(found)])


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    if not args.significance and any(
        value is not None for value in (args.baseline, args.samples, args.test)
    ):
        raise ValueError("--baseline, --samples and --test belong to --significance")
    report = tested(args) if args.significance else make(args.folders, args.sweep)
    if args.plot is not None and not report.figures:
        raise ValueError(
            "--plot: only sweeps have figures; `deepnet plot` draws the curves of other runs"
        )
    print("\n".join(report.text), end="")
    save(report, args.markdown, args.csv, args.plot)
    return 0
