"""`deepnet report`: tables and figures of runs, beside the paper's numbers.

Cells of a sweep become the tables of tables.py; a results.csv of `deepnet sweep` can replace its
run folders. Other runs are compared one per line. A figure shows a measure against depth, as the
paper's figure 6 does. --significance instead runs paired tests on the stored translations.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import pandas as pd
except ImportError as error:
    raise ValueError("tables need pandas: pip install 'fairseq_deepnet[paper]'") from error

from fairseq_deepnet.experiments import results, significance, tables
from fairseq_deepnet.experiments.paper import GROUPS, group_of
from fairseq_deepnet.experiments.tables import BAD, MEASURES, Table
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.tools.plotting import images
from fairseq_deepnet.tools.plotting.images import CROSS
from fairseq_deepnet.tools.scores import read_scores


def make(runs: pd.DataFrame) -> list[Table]:
    """Return all tables for rows of results.csv."""
    members = []
    for sweep, rows in runs.groupby("sweep", dropna=False, sort=False):
        is_single = pd.isna(sweep)
        members += [tables.side_by_side(rows)] if is_single else tables.tables_of(str(sweep), rows)
    return members


def save(members: Sequence[Table], folder: Path) -> None:
    """Write report.md, report.csv, and NAME.png for each table with depths."""
    texts = [table.markdown() for table in members]
    for table in members:
        if table.by_depth():
            images.save(against_depth(table), folder / f"{table.name}.png")
            texts.append(f"![{table.name}]({table.name}.png)\n")
    folder.mkdir(parents=True, exist_ok=True)
    lines = pd.concat([table.entries for table in members])
    write_text(folder / "report.csv", lines.to_csv(index=False, float_format="%.6g"))
    write_text(folder / "report.md", "\n".join(texts))
    say(f"written: {shown(folder / 'report.md')}, report.csv and figures")


def against_depth(table: Table) -> Any:
    """Draw a measure against depth: a panel per place of LayerNorm, and a line per scheme.

    The paper's lines are dotted. A cross marks a depth at which a run diverged or crashed.
    """
    from matplotlib.lines import Line2D

    # the paper's schemes that we did not run are left out
    lines = {key: rows for key, rows in table.by_depth().items() if (rows["runs"] != "").any()}
    groups = {g: [n for n in lines if group_of(n) == g] for g in (*GROUPS.values(), "")}
    groups = {group: members for group, members in groups.items() if members}
    figure = images.new_figure((max(6.0, 4.3 * len(groups)), 5.2))
    grid = figure.subplots(1, len(groups), squeeze=False, sharex=True, sharey=True)
    measure = table.entries["measure"].iloc[0]
    depths = next(iter(lines.values())).index
    for axes, (group, members) in zip(grid[0], groups.items(), strict=True):
        handles = []
        for number, line in enumerate(members):
            rows, look = lines[line], images.look_of(number)
            # a depth that was not run does not interrupt the line, one where all failed does
            ran = rows[rows["ours"].notna() | rows["status"].isin(BAD)]
            bars = axes.errorbar(
                *(ran.index, ran["ours"], ran["deviation"].fillna(0)),
                **{**look, "markersize": 5, "linewidth": 1.6, "capsize": 3},
                label=table.names.get(line, line),
            )
            handles.append(bars)
            theirs = pd.to_numeric(rows["paper"], errors="coerce")
            if theirs.notna().any():
                hollow = {"markerfacecolor": "none", "markersize": 5, "linewidth": 1.1}
                axes.plot(rows.index, theirs, **{**look, **hollow, "linestyle": ":"})
            if (law := table.laws.get(line)) is not None and law.points > 2:
                ends = [ran.index.min(), ran.index.max()]
                axes.plot(ends, list(map(law.at, ends)), "--", color=look["color"], linewidth=1)
            for depth in rows.index[rows["status"].isin(BAD)]:
                # at the bad edge: below every BLEU, above every loss
                edge, place = float(measure != "bleu"), axes.get_xaxis_transform()
                style = {"color": look["color"], "clip_on": False, "zorder": 4, **CROSS}
                axes.plot([depth], [edge], transform=place, **style)
        axes.set_xscale("log")
        axes.set_xticks(list(depths), labels=[f"{x:g}" for x in depths], fontsize="small")
        axes.minorticks_off()
        axes.set_xlabel("depth")
        axes.set_title(group)
        images.clean(axes)
        handles.append(Line2D([], [], linestyle="none", label="failed", color="grey", **CROSS))
        if table.names:
            handles.append(Line2D([], [], linestyle=":", label="the paper's", color="grey"))
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
        axes.legend(handles=handles, frameon=False, fontsize="small", ncols=2, **below)
    grid[0][0].set_ylabel(MEASURES[measure].partition(",")[0])
    figure.suptitle(table.title, fontsize="medium", wrap=True)
    return figure


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
        members = [significance.compare(*significance.find_systems(args.folders), args.samples)]
    else:
        members = make(_read(args.folders, args.score))
    print("\n".join(table.markdown() for table in members), end="")
    if args.out is not None:
        save(members, args.out)
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
