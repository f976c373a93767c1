"""Panels as one image: ours as full lines (dashed: from fairseq's own weights), the paper's as
dotted ones with open markers.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.analysis.figures import STOCK, Line, Panel
from fairseq_deepnet.tools.plotting.style import COLOURS, clean, quiet_matplotlib

MARKERS: Final = ("o", "s", "^", "D", "v", "P")
_PANEL: Final = (6.2, 4.2)
_MANY: Final = 12
"""Points of ours from which on they have no markers."""
_DECADES: Final = 6
"""What a logarithmic axis shows below the highest value."""


def draw(panels: Sequence[Panel], setting: str) -> Any:
    """The figure: two panels a row, one legend for all where they have the same lines."""
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
    alike = len(panels) > 1 and len({tuple(x.key for x in panel.lines) for panel in panels}) == 1
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, panel)
        if not alike:
            axes.legend(frameon=False, fontsize="small", handlelength=3.5)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    if alike:
        labelled = grid[0][0].get_legend_handles_labels()
        names = min(3, len(panels[0].lines))
        figure.legend(*labelled, loc="outside upper center", ncols=names, frameon=False)
    figure.supxlabel(_caption(panels, setting, 62 * columns + 20), fontsize="small")
    return figure


def _caption(panels: Sequence[Panel], setting: str, width: int) -> str:
    sources = {table.source for p in panels if (table := paper.tables().get(p.name))}
    parts = ", ".join(sorted(sources))
    theirs = f"dotted: read off {parts} of {paper.REFERENCE} (IWSLT-14 De-En)"
    lines = [*_wrap(f"full and dashed lines: ours, {setting}", width), *_wrap(theirs, width)]
    return "\n".join(lines)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _panel(axes: Any, panel: Panel) -> None:
    # a line looks the same in every panel, whichever others are there; a run with another start has
    # the colour of the one that it is compared with
    table = paper.tables().get(panel.name)
    keys = [*(table.rows if table else ()), *(line.key for line in panel.lines)]
    order = list(dict.fromkeys(key.replace(STOCK, "") for key in keys))
    for line in panel.lines:
        number = order.index(line.key.replace(STOCK, ""))
        _line(axes, line, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], panel)
    if panel.log_y:
        axes.set_yscale("log")
    axes.set_ylim(bottom=_bottom(panel))
    axes.set_title("\n".join(_wrap(panel.title, 70)), fontsize="medium")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(f"{panel.y} (logarithmic)" if panel.log_y else panel.y)
    axes.xaxis.get_major_locator().set_params(integer=True)
    clean(axes)


def _bottom(panel: Panel) -> float | None:
    """Where the axis begins: at zero, unless everything is far above it; if logarithmic, some
    decades below the highest value. None leaves it to matplotlib.
    """
    values = [y for line in panel.lines for y in line.published.values()]
    values += [y for line in panel.lines for ys in line.ours.values() for y in ys]
    finite = [y for y in values if math.isfinite(y)]
    if panel.log_y:
        lowest = max(finite, default=1.0) * 10.0**-_DECADES
        return lowest if min(finite, default=1.0) < lowest else None
    return 0.0 if not finite or min(finite) < 0.4 * max(finite) else None


def _line(axes: Any, line: Line, colour: str, marker: str, panel: Panel) -> None:
    def shows(y: float | None) -> bool:
        return y is not None and math.isfinite(y) and (y > 0 or not panel.log_y)

    places = [x for x in sorted(line.ours) if shows(line.mean(x))]
    if places:
        lows = [min(line.ours[x]) for x in places]
        highs = [max(line.ours[x]) for x in places]
        means = [line.mean(x) for x in places]
        shown = marker if len(places) < _MANY else None
        look = {"color": colour, "marker": shown, "markersize": 4, "linewidth": 1.8}
        look |= {"linestyle": "--" if STOCK in line.key else "-"}
        axes.plot(places, means, label=f"{line.name}, ours", **look)
        if lows != highs:
            axes.fill_between(places, lows, highs, color=colour, alpha=0.18, linewidth=0)
    theirs = [point for point in sorted(line.published.items()) if shows(point[1])]
    if theirs:
        look = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.1}
        label = f"{line.name}, paper"
        axes.plot(*zip(*theirs, strict=True), ":", markerfacecolor="none", label=label, **look)
