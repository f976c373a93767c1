"""Panels as one image: ours as full lines, the paper's as dotted ones with open markers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, Final

from fairseq_deepnet import paper
from fairseq_deepnet.analysis.figures import Line, Panel
from fairseq_deepnet.plotting.style import COLOURS, clean, quiet_matplotlib

MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_PANEL: Final = (6.2, 4.2)
_MANY: Final = 12
"""Points of ours from which on they have no markers."""


def draw(panels: Sequence[Panel], setting: str) -> Any:
    """The figure: two panels a row."""
    quiet_matplotlib()
    from matplotlib import pyplot

    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = _PANEL
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(max(7.5, width * columns), height * rows + 0.9),
        squeeze=False,
        layout="constrained",
    )
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, panel)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    sources = {table.source for p in panels if (table := paper.tables().get(p.name))}
    caption = f"full lines: ours, {setting}; dotted: read off {', '.join(sorted(sources))} of"
    caption += f" {paper.REFERENCE} (IWSLT-14 De-En)"
    figure.supxlabel("\n".join(textwrap.wrap(caption, 62 * columns + 28)), fontsize="small")
    return figure


def _panel(axes: Any, panel: Panel) -> None:
    # a line looks the same in every panel, whichever others are there
    table = paper.tables().get(panel.name)
    order = list(dict.fromkeys([*(table.rows if table else ()), *(x.key for x in panel.lines)]))
    for line in panel.lines:
        number = order.index(line.key)
        _line(axes, line, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)])
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=_bottom(panel))
    axes.set_title("\n".join(textwrap.wrap(panel.title, 70)), fontsize="medium")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(f"{panel.y} (logarithmic)" if panel.log_y else panel.y)
    axes.xaxis.get_major_locator().set_params(integer=True)
    clean(axes)
    axes.legend(frameon=False, fontsize="small")


def _bottom(panel: Panel) -> float | None:
    """Zero, unless everything is far above it: then a difference would not be seen."""
    values = [y for line in panel.lines for y in line.published.values()]
    values += [y for line in panel.lines for ys in line.ours.values() for y in ys]
    finite = [y for y in values if math.isfinite(y)]
    return 0.0 if not finite or min(finite) < 0.4 * max(finite) else None


def _line(axes: Any, line: Line, colour: str, marker: str) -> None:
    places = [x for x in sorted(line.ours) if math.isfinite(line.mean(x) or 0.0)]
    if places:
        lows = [min(line.ours[x]) for x in places]
        highs = [max(line.ours[x]) for x in places]
        means = [line.mean(x) for x in places]
        shown = marker if len(places) < _MANY else None
        look = {"color": colour, "marker": shown, "markersize": 4, "linewidth": 1.8}
        axes.plot(places, means, label=f"{line.name}, ours", **look)
        if lows != highs:
            axes.fill_between(places, lows, highs, color=colour, alpha=0.18, linewidth=0)
    if line.published:
        look = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.1}
        axes.plot(
            *zip(*sorted(line.published.items()), strict=True),
            ":",
            markerfacecolor="none",
            label=f"{line.name}, paper",
            **look,
        )
