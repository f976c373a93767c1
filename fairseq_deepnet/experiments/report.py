"""`deepnet report`: tables and figures of runs, beside the paper's numbers.

A sweep's tables (see tables.py) are built from its run folders or its results.csv. Figures show a
measure against depth, as the paper's figure 6 does. --significance prints paired tests of BLEU
differences instead.
"""

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


def make(runs: pd.DataFrame) -> list[Table]:
    """Return the tables of all sweeps that occur in `runs`, which has the rows of results.csv."""
    groups = list(runs.groupby("sweep", sort=False))
    if not groups:
        raise ValueError(
            "none of these runs is a cell of a sweep; use `deepnet plot` to compare other runs"
        )
    if others := int(runs["sweep"].isna().sum()):
        say(f"{others} runs are not cells of a sweep and are left out")
    return [table for sweep, rows in groups for table in tables.tables_of(str(sweep), rows)]


def save(members: Sequence[Table], folder: Path) -> None:
    """Write report.md, report.csv and a figure NAME.png for each table with a depth axis."""
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
    """Draw a measure against depth, with a panel per placement of LayerNorm and a line per scheme.

    The paper's lines are dotted. Crosses mark depths at which a run diverged or crashed.
    """
    from matplotlib.lines import Line2D

    # omit the paper's schemes that we did not run
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
            # the line is interrupted at depths where all runs failed, not at depths without runs
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
                # at the bottom for BLEU, at the top for losses
                edge, place = float(measure != "bleu"), axes.get_xaxis_transform()
                style = {"color": look["color"], "clip_on": False, "zorder": 4, **CROSS}
                axes.plot([depth], [edge], transform=place, **style)
        axes.set_xscale("log")
        axes.set_xticks(list(depths), labels=[f"{x:g}" for x in depths], fontsize="small")
        axes.minorticks_off()
        axes.set_xlabel("depth")
        axes.set_title(group)
        images.clean(axes)
        if any(lines[line]["status"].isin(BAD).any() for line in members):
            handles.append(Line2D([], [], linestyle="none", label="failed", color="grey", **CROSS))
        if table.names:
            handles.append(Line2D([], [], linestyle=":", label="the paper's", color="grey"))
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
        axes.legend(handles=handles, frameon=False, fontsize="small", ncols=2, **below)
    grid[0][0].set_ylabel(MEASURES[measure].partition(", with")[0])
    figure.suptitle(table.title, fontsize="medium", wrap=True)
    return figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet report`."""
    folders = "cells of a sweep, folders of cells, or results.csv; with --significance, scored runs"
    parser.add_argument("folders", nargs="+", type=Path, help=folders)
    tests = "print sacreBLEU's paired tests against the first system, averaged over seeds"
    parser.add_argument("--significance", action="store_true", help=tests)
    score = f"score for --significance ({Path(significance.DEFAULT).name}; in a sweep, the cell's)"
    parser.add_argument("--score", metavar="NAME", help=score)
    out = "write report.md, report.csv (one line per entry) and figures to this folder"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=out)


def run(args: argparse.Namespace) -> int:
    """Print the tables or the significance tests."""
    if args.score and not args.significance:
        raise ValueError("--score is only for --significance; tables have each cell's own score")
    if args.out and args.significance:
        raise ValueError("--out is only for tables; --significance prints its results")
    if args.significance:
        frame, notes = significance.compare(args.folders, args.score)
        formats = ["", ".2f", ".2f", ".2f", ".4f", ".4f"]
        frame = frame.astype(object).where(frame.notna(), None)
        print(frame.to_markdown(index=False, missingval="-", floatfmt=formats), end="\n\n")
        print("\n".join(f"- {note}" for note in notes))
        return 0
    # read settings as text, which keeps their spelling
    form: dict[str, Any] = {"dtype": str, "keep_default_na": False, "na_values": [""]}
    frames = [pd.read_csv(path, **form) for path in args.folders if path.is_file()]
    if not all("panels" in frame for frame in frames):
        raise ValueError("of the files in a sweep's folder, only results.csv can be read")
    runs = results.read_runs(path for path in args.folders if not path.is_file())
    members = make(pd.concat([*frames, results.table_of(runs)] if runs else frames))
    print("\n".join(table.markdown() for table in members), end="")
    if args.out:
        save(members, args.out)
    return 0
