"""Figures of a sweep's tables: a measure against depth.

Schemes are grouped by the place of LayerNorm, as in the paper's figure 6. Within a group each has
its own colour and marker. A cross marks a depth at which a run diverged or crashed. `deepnet plot`
draws loss curves.
"""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from fairseq_deepnet.experiments.paper import GROUPS, group_of
from fairseq_deepnet.experiments.tables import BAD, MEASURES, Table
from fairseq_deepnet.tools.plotting.images import CROSS, clean, look_of, new_figure

_PANEL: Final = (4.3, 5.2)
"""Width and height of a panel in inches."""


def against_depth(table: Table) -> Any:
    """Draw a measure against depth: a panel per group, a line per scheme, the paper's dotted."""
    from matplotlib.lines import Line2D

    # the paper's schemes that we did not run are left out
    lines = {key: rows for key, rows in table.by_depth().items() if (rows["runs"] != "").any()}
    groups = {g: [n for n in lines if group_of(n) == g] for g in (*GROUPS.values(), "")}
    groups = {group: members for group, members in groups.items() if members}
    figure = new_figure((max(6.0, _PANEL[0] * len(groups)), _PANEL[1]))
    grid = figure.subplots(1, len(groups), squeeze=False, sharex=True, sharey=True)
    measure = table.entries["measure"].iloc[0]
    depths = next(iter(lines.values())).index
    for axes, (group, members) in zip(grid[0], groups.items(), strict=True):
        handles = []
        for number, line in enumerate(members):
            rows, look = lines[line], look_of(number)
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
        clean(axes)
        handles.append(Line2D([], [], linestyle="none", label="failed", color="grey", **CROSS))
        if table.names:
            handles.append(Line2D([], [], linestyle=":", label="the paper's", color="grey"))
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
        axes.legend(handles=handles, frameon=False, fontsize="small", ncols=2, **below)
    grid[0][0].set_ylabel(MEASURES[measure].partition(",")[0])
    figure.suptitle(table.title, fontsize="medium", wrap=True)
    return figure
