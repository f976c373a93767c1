"""Figures of a sweep's tables: a measure against depth.

Schemes are grouped by the place of LayerNorm, as in the paper's figure 6. Within a group each has
its own colour and marker. A cross marks a run that diverged. `deepnet plot` draws loss curves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from fairseq_deepnet.experiments.paper import GROUPS, group_of
from fairseq_deepnet.experiments.results import Status
from fairseq_deepnet.experiments.tables import MEASURES, Entry, Table
from fairseq_deepnet.tools.plotting.images import CROSS, clean, look_of, new_figure

_PANEL: Final = (4.3, 5.2)
"""Width and height of a panel in inches."""


def of_tables(tables: Sequence[Table]) -> dict[str, Callable[[], Any]]:
    """Return a function that draws the figure of each table with a depth axis, by table name."""
    return {
        table.name: functools.partial(against_depth, table)
        for table in tables
        if table.has_values and table.by_depth()
    }


def against_depth(table: Table) -> Any:
    """Draw a measure against depth: a panel per group, a line per scheme, the paper's dotted."""
    from matplotlib.lines import Line2D

    lines = {
        line: entries
        for line, entries in table.by_depth().items()
        if any(len(entry.runs) for entry in entries.values())
    }
    is_row = table.row == "depth"
    names, headings = (table.columns, table.rows) if is_row else (table.rows, table.columns)
    groups = {g: [n for n in lines if group_of(n) == g] for g in (*GROUPS.values(), "")}
    groups = {group: members for group, members in groups.items() if members}
    size = (max(6.0, _PANEL[0] * len(groups)), _PANEL[1])
    figure = new_figure(size)
    grid = figure.subplots(1, len(groups), squeeze=False, sharex=True, sharey=True)
    limits = axis_limits([entry for entries in lines.values() for entry in entries.values()])
    laws = table.laws()
    for axes, (group, members) in zip(grid[0], groups.items(), strict=True):
        axes.set_ylim(*limits)
        for number, line in enumerate(members):
            look = look_of(number)
            _draw_means(axes, lines[line], names[line], look, limits)
            law = laws.get(line)
            if law is not None and table.name == "depth" and len(law.residuals) > 2:
                ends = [min(law.residuals)[0], max(law.residuals)[0]]
                axes.plot(ends, list(map(law.at, ends)), "--", color=look["color"], linewidth=1)
        depths = {depth: f"{depth:g}" for depth in next(iter(lines.values()))}
        axes.set_xscale("log")
        axes.set_xticks(list(depths), labels=list(depths.values()), fontsize="small")
        axes.minorticks_off()
        is_per_side = "-" in headings[next(iter(depths.values()))]
        axes.set_xlabel("layers per side" if is_per_side else "layers")
        axes.set_title(group)
        clean(axes)
        handles = axes.get_legend_handles_labels()[0]
        handles.append(Line2D([], [], linestyle="none", label="diverged", color="grey", **CROSS))
        if table.published:
            handles.append(Line2D([], [], linestyle=":", label="the paper's", color="grey"))
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
        axes.legend(handles=handles, frameon=False, fontsize="small", ncols=3, **place)
    measure = next(iter(table.entries.values())).measure
    grid[0][0].set_ylabel(MEASURES[measure].meaning)
    figure.suptitle(table.title.partition(": ")[0], fontsize="medium", wrap=True)
    return figure


def _draw_means(
    axes: Any,
    entries: dict[float, Entry],
    name: str,
    look: dict[str, str],
    limits: tuple[float, float],
) -> None:
    """Draw means over seeds with spread, crosses for diverged runs, and the paper's numbers."""
    # a depth that was not run does not interrupt the line, one where all diverged does
    drawn = {x: e for x, e in entries.items() if e.all_bad or e.ours is not None}
    means = [math.nan if e.all_bad or e.ours is None else e.ours for e in drawn.values()]
    bars = [0.0 if e.all_bad or e.deviation is None else e.deviation for e in drawn.values()]
    style = {**look, "markersize": 5, "linewidth": 1.6, "capsize": 3}
    axes.errorbar(list(drawn), means, bars, label=name, **style)
    for x, entry in entries.items():
        for value in entry.values[entry.runs["status"] == Status.DIVERGED]:
            # without a number at the bad edge, with one beyond the limits at the nearer edge
            bad = limits["bleu" not in entry.measure]
            height = bad if math.isnan(value) else min(max(value, limits[0]), limits[1])
            axes.plot(x, height, color=look["color"], clip_on=False, zorder=4, **CROSS)
    theirs = [e.paper if isinstance(e.paper, int | float) else math.nan for e in entries.values()]
    if not all(map(math.isnan, theirs)):
        hollow = {"markerfacecolor": "none", "markersize": 5, "linewidth": 1.1, "linestyle": ":"}
        axes.plot(list(entries), theirs, **{**look, **hollow})


def axis_limits(entries: Sequence[Entry]) -> tuple[float, float]:
    """Return the range of finite values of our sound runs and of the paper, with a margin."""
    values = [value for e in entries if not e.all_bad for value in e.counted]
    values += [e.paper for e in entries if isinstance(e.paper, int | float)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = 0.08 * (high - low + 0.1)
    return low - margin, high + margin
