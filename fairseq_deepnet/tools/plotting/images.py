"""Runs as one image: losses, a measured quantity, or an overview of everything.

A run has one colour wherever it appears; an event of the divergence watch is a triangle in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools.plotting.heat_maps import (
    draw_maps,
    draw_profiles,
    mark_events,
    panels_of,
)
from fairseq_deepnet.tools.plotting.lines import Line, has, is_by_layer, label_of, lines_of
from fairseq_deepnet.tools.plotting.runs import LOGGED, Run
from fairseq_deepnet.tools.plotting.scales import part_title, title, wants_log
from fairseq_deepnet.tools.plotting.style import COLOURS, clean, quiet_matplotlib, save

EVERYTHING: Final = "all"
SHOWN: Final = (*LOGGED, *QUANTITIES, EVERYTHING)
"""What an image can show."""
_LOOKS: Final[dict[str, dict[str, Any]]] = {
    "solid": {"linestyle": "-", "linewidth": 1.8},
    "dashed": {"linestyle": "--", "linewidth": 1.4},
    "dotted": {"linestyle": ":", "linewidth": 1.4},
    "dots": {"linestyle": "--", "linewidth": 0.8, "marker": "o", "markersize": 5},
}
_ACROSS: Final = 3
"""Panels of lines in a row of the overview."""


def draw(runs: Sequence[Run], show: str = "loss", part: str | None = None, head: str = "") -> Any:
    """The figure of one thing; ValueError where no run has it.

    Arguments:
        show: one of SHOWN
        part: of a layer, for what has several: that which stands for the layer unless given
        head: a title above all
    """
    quiet_matplotlib()
    if show == EVERYTHING:
        return _overview(runs, head)
    if not any(has(run, show) for run in runs):
        raise ValueError(_missing(show))
    return _by_layer(runs, show, part, head) if is_by_layer(show) else _lines(runs, show, head)


def write(figure: Any, file: Path) -> None:
    """Write a figure to a file, whole or not at all."""
    save(figure, file)


def _missing(show: str) -> str:
    if show in LOGGED:
        return f"--show {show}: none of these runs has logged it"
    return (
        f"--show {show}: it was measured in none of these runs; train with --monitor-interval N,"
        f" and with {show} in --monitor"
    )


def _lines(runs: Sequence[Run], show: str, head: str) -> Any:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    _draw_lines(axes, runs, show)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_formatter())
    axes.xaxis.set_minor_formatter(_minor_formatter())
    axes.grid(which="minor", alpha=0.15)
    axes.set_xlabel("updates (logarithmic)")
    axes.set_title(head)
    axes.legend(frameon=False)
    return figure


def _formatter() -> Any:
    from matplotlib.ticker import StrMethodFormatter

    return StrMethodFormatter("{x:,.0f}")


def _minor_formatter() -> Any:
    from matplotlib.ticker import LogFormatter

    return LogFormatter(minor_thresholds=(2, 0.6))


def _draw_lines(axes: Any, runs: Sequence[Run], show: str) -> None:
    lines = lines_of(runs, show)
    for line in lines:
        axes.plot(line.updates, line.values, color=_colour(line), label=line.label, **_look(line))
    if show in QUANTITIES and wants_log([np.asarray(line.values) for line in lines]):
        axes.set_yscale("log")
    axes.set_ylabel(label_of(show))
    mark_events(axes, [(run, COLOURS[n % len(COLOURS)]) for n, run in enumerate(runs)])
    clean(axes)


def _colour(line: Line) -> str:
    return COLOURS[line.run % len(COLOURS)]


def _look(line: Line) -> dict[str, Any]:
    look = _LOOKS[line.look]
    # a single point of a line would not be seen
    points = sum(map(math.isfinite, line.values))
    return look if points != 1 else {**look, "marker": "o", "markersize": 5}


def _by_layer(runs: Sequence[Run], show: str, part: str | None, head: str) -> Any:
    """Heat maps, a row a run and a column a side, and below them profiles by layer."""
    from matplotlib import pyplot

    part, panels = panels_of(runs, show, part)
    sides = len({side for _, side, _ in panels})
    shown = list(dict.fromkeys(run.name for run, _, _ in panels))
    figure = pyplot.figure(figsize=(5.5 * sides + 1, 2.7 * len(shown) + 3.5), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(2.7 * len(shown), 3.2))
    above, below = halves
    grid = above.subplots(len(shown), sides, squeeze=False, sharex=True)
    places = {(run.name, side): (run, side, values) for run, side, values in panels}
    order = list(dict.fromkeys(side for _, side, _ in panels))
    cells = [(name, side) for name in shown for side in order]
    for axes, cell in zip(grid.flat, cells, strict=True):
        axes.set_visible(cell in places)
    used = [axes for axes, cell in zip(grid.flat, cells, strict=True) if cell in places]
    draw_maps(above, used, [places[cell] for cell in cells if cell in places], show)
    draw_profiles(below.subplots(1, sides, squeeze=False)[0], runs, panels, show)
    figure.suptitle(head or f"{title(show)}: {part_title(part)}")
    return figure


def _overview(runs: Sequence[Run], head: str) -> Any:
    """Lines of what has no layers, then a row of heat maps for each quantity that has."""
    from matplotlib import pyplot

    known = [show for show in SHOWN[:-1] if any(has(run, show) for run in runs)]
    flat = [show for show in known if not is_by_layer(show)]
    deep = [(show, panels_of(runs, show, None)) for show in known if is_by_layer(show)]
    rows = -(-len(flat) // _ACROSS)
    across = max([len(panels) for _, (_, panels) in deep], default=0)
    heights = [3.0 * rows, *(2.6 for _ in deep)]
    figure = pyplot.figure(
        figsize=(max(14.0, 3.6 * across), sum(heights) + 0.6), layout="constrained"
    )
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    grid = list(parts[0].subplots(rows, _ACROSS, squeeze=False).flat)
    for axes, show in zip(grid, flat, strict=False):
        _draw_lines(axes, runs, show)
        axes.set_xlabel("updates", fontsize="small")
        axes.yaxis.label.set_fontsize("small")
    for axes in grid[len(flat) :]:
        axes.set_visible(False)
    grid[0].legend(frameon=False, fontsize="small")
    for place, (show, (part, panels)) in zip(parts[1:], deep, strict=True):
        draw_maps(place, place.subplots(1, len(panels), squeeze=False)[0], panels, show)
        place.suptitle(f"{title(show)}: {part_title(part)}", fontsize="medium", x=0.01, ha="left")
    figure.suptitle(head or ", ".join(run.name for run in runs))
    return figure
