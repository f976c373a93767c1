"""Runs as one image: losses, a measured quantity, or an overview of everything.

A run has one colour wherever it appears; an event of the divergence watch is a triangle in it. The
heat maps (layers x updates) of one quantity share their colours, so that runs and sides can be
compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools.plotting.runs import LOGGED, SIDES, Grid, GridKey, Run
from fairseq_deepnet.tools.plotting.series import (
    Scale,
    axis,
    check,
    chosen_updates,
    columns,
    has,
    is_by_layer,
    label_of,
    layer_ticks,
    lines_of,
    main_part,
    part_title,
    parts_of,
    scale_of,
    title,
)
from fairseq_deepnet.tools.plotting.style import (
    ABSENT,
    BROKEN,
    clean,
    colour_of,
    new_figure,
    quiet_matplotlib,
)

EVERYTHING: Final = "all"
SINGLE: Final = (*LOGGED, *QUANTITIES)
SHOWN: Final = (*SINGLE, EVERYTHING)
"""What an image can show."""
_LOOKS: Final[dict[str, dict[str, Any]]] = {
    "solid": {"linestyle": "-", "linewidth": 1.8},
    "dashed": {"linestyle": "--", "linewidth": 1.4},
    "dotted": {"linestyle": ":", "linewidth": 1.4},
    "dots": {"linestyle": "--", "linewidth": 0.8, "marker": "o", "markersize": 5},
}
_TRIANGLE: Final[dict[str, Any]] = {
    **{"marker": "v", "markeredgecolor": "white", "markersize": 8, "linestyle": "none"}
}
_ACROSS: Final = 3
"""Panels of lines in a row of the overview."""
_COLUMNS: Final = 400
"""Updates of a heat map: an image has no room for more."""
Panel = tuple[Run, str, Grid]
"""A run, a side, and what was measured there."""


def draw(runs: Sequence[Run], show: str = "loss", part: str | None = None, head: str = "") -> Any:
    """Draw one thing; ValueError where no run has it, or not of this part.

    Args:
        show: one of SHOWN
        part: of a layer, for what has several: that which stands for the layer unless given
        head: a title above all
    """
    quiet_matplotlib()
    if show == EVERYTHING:
        return _overview(runs, head)
    check(runs, show, part)
    return _by_layer(runs, show, part, head) if is_by_layer(show) else _lines(runs, show, head)


def _lines(runs: Sequence[Run], show: str, head: str) -> Any:
    from matplotlib.ticker import LogFormatter, StrMethodFormatter

    figure, ((axes,),) = new_figure(1, 1, (8, 5))
    _draw_lines(axes, runs, show)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.6)))
    axes.grid(which="minor", alpha=0.15)
    axes.set_xlabel("updates (logarithmic)")
    axes.set_title(head)
    axes.legend(frameon=False)
    return figure


def _draw_lines(axes: Any, runs: Sequence[Run], show: str) -> None:
    lines = lines_of(runs, show)
    for line in lines:
        # a single point of a line would not be seen
        is_alone = sum(map(math.isfinite, line.values)) == 1
        alone = {"marker": "o", "markersize": 5} if is_alone else {}
        look = {**_LOOKS[line.look], "color": colour_of(line.run), "label": line.label}
        axes.plot(line.updates, line.values, **look | alone)
    if show in QUANTITIES and scale_of([np.asarray(line.values) for line in lines]).is_log:
        axes.set_yscale("log")
    axes.set_ylabel(label_of(show))
    _mark_events(axes, [(run, colour_of(number)) for number, run in enumerate(runs)])
    clean(axes)


def _by_layer(runs: Sequence[Run], show: str, part: str | None, head: str) -> Any:
    """Draw heat maps, a row a run and a column a side, and below them profiles by layer."""
    from matplotlib import pyplot

    part, panels = _panels_of(runs, show, part)
    shown = list(dict.fromkeys(run.name for run, _, _ in panels))
    sides = list(dict.fromkeys(side for _, side, _ in panels))
    size = (5.5 * len(sides) + 1, 2.7 * len(shown) + 3.5)
    figure = pyplot.figure(figsize=size, layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(2.7 * len(shown), 3.2))
    above, below = halves
    grid = above.subplots(len(shown), len(sides), squeeze=False, sharex=True)
    places = {(panel[0].name, panel[1]): panel for panel in panels}
    cells = [places.get((name, side)) for name in shown for side in sides]
    used = {axes: panel for axes, panel in zip(grid.flat, cells, strict=True) if panel}
    for axes in grid.flat:
        axes.set_visible(axes in used)
    _draw_maps(above, list(used), list(used.values()), show)
    _draw_profiles(below.subplots(1, len(sides), squeeze=False)[0], runs, panels, show)
    figure.suptitle(head or f"{title(show)}: {part_title(part)}")
    return figure


def _overview(runs: Sequence[Run], head: str) -> Any:
    """Draw lines of what has no layers, then a row of heat maps for each quantity that has."""
    from matplotlib import pyplot

    known = [show for show in SINGLE if any(has(run, show) for run in runs)]
    flat = [show for show in known if not is_by_layer(show)]
    deep = [(show, _panels_of(runs, show, None)) for show in known if is_by_layer(show)]
    rows = -(-len(flat) // _ACROSS)
    across = max([len(panels) for _, (_, panels) in deep], default=0)
    heights = [3.0 * rows, *(2.6 for _ in deep)]
    size = (max(14.0, 3.6 * across), sum(heights) + 0.6)
    figure = pyplot.figure(figsize=size, layout="constrained")
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
        _draw_maps(place, place.subplots(1, len(panels), squeeze=False)[0], panels, show)
        place.suptitle(f"{title(show)}: {part_title(part)}", fontsize="medium", x=0.01, ha="left")
    figure.suptitle(head or ", ".join(run.name for run in runs))
    return figure


# What has layers: heat maps, and profiles at a few updates.


def _panels_of(runs: Sequence[Run], quantity: str, part: str | None) -> tuple[str, list[Panel]]:
    """Return the part that is drawn, and a panel for each run and side that has it."""
    parts = parts_of(runs, quantity)
    if not parts:
        return "", []
    part = part or main_part(parts)
    keys = [(run, GridKey(quantity, side, part)) for run in runs for side in SIDES]
    return part, [(run, key.side, run.grids[key]) for run, key in keys if key in run.grids]


def _draw_maps(figure: Any, grid: Sequence[Any], panels: Sequence[Panel], quantity: str) -> None:
    """Draw heat maps into given axes, which share a colour bar."""
    scale = scale_of(panel.values for _, _, panel in panels)
    image = None
    for axes, (run, side, values) in zip(grid, panels, strict=False):
        image = _draw_map(axes, values.take(columns(values, _COLUMNS, run.events)), scale)
        _mark_events(axes, [(run, BROKEN)])
        axes.set_title(f"{run.name}, {side}", fontsize="medium")
        axes.set_ylabel("layer (1: at the input)", fontsize="small")
        axes.set_xlabel("updates", fontsize="small")
    if image is not None:
        bar = figure.colorbar(image, ax=list(grid), extend="both", pad=0.015, aspect=25)
        bar.set_label(axis(quantity), fontsize="small")


def _draw_map(axes: Any, grid: Grid, scale: Scale) -> Any:
    """Draw one heat map; return what a colour bar is made of."""
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    norm = (LogNorm if scale.is_log else Normalize)(scale.low, scale.high)
    edges = edges_of(grid.updates)
    layers = np.arange(grid.layers + 1) + 0.5
    values = np.where(grid.values <= 0, scale.low, grid.values) if scale.is_log else grid.values
    broken = grid.given & ~np.isfinite(values)
    axes.set_facecolor(ABSENT)
    look: dict[str, Any] = {"norm": norm, "cmap": "viridis", "rasterized": True}
    image = axes.pcolormesh(edges, layers, np.ma.masked_invalid(values).T, **look)
    if broken.any():
        shown = np.ma.masked_where(~broken, np.ones_like(values))
        axes.pcolormesh(edges, layers, shown.T, cmap=ListedColormap([BROKEN]), rasterized=True)
    axes.set_yticks(layer_ticks(grid.layers))
    return image


def edges_of(updates: Any) -> Any:
    """Return borders half-way between neighbouring updates, (U + 1) for (U)."""
    centres = np.asarray(updates, dtype=np.float64)
    steps = np.diff(centres) if len(centres) > 1 else np.ones(1)
    inner = centres[:-1] + np.diff(centres) / 2
    return np.concatenate([[centres[0] - steps[0] / 2], inner, [centres[-1] + steps[-1] / 2]])


def _mark_events(axes: Any, runs: Sequence[tuple[Run, str]]) -> None:
    """Draw a dashed line where an event began, with a triangle at the top that a legend names."""
    for run, colour in runs:
        kinds = dict.fromkeys(event.finding.kind.label for event in run.events if not event.is_end)
        label = f"{run.name}, divergence watch: {', '.join(kinds)}"
        # a recovery has the start of its trouble
        for update in sorted({event.finding.started for event in run.events})[:20]:
            axes.axvline(update, color=colour, linestyle=(0, (4, 3)), linewidth=1, alpha=0.8)
            place = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
            axes.plot(update, 1.0, color=colour, label=label, **_TRIANGLE, **place)
            label = "_nolegend_"


def _draw_profiles(
    grid: Sequence[Any], runs: Sequence[Run], panels: Sequence[Panel], quantity: str
) -> None:
    """Draw values by layer at a few updates, a panel a side, later updates darker."""
    names = [run.name for run in runs]
    scale = scale_of(values.values for _, _, values in panels)
    sides = [side for side in SIDES if any(side == panel for _, panel, _ in panels)]
    for axes, side in zip(grid, sides, strict=False):
        for run, _, values in (panel for panel in panels if panel[1] == side):
            chosen = chosen_updates(values)
            look = {"color": colour_of(names.index(run.name))}
            look["marker"] = "." if values.layers <= 30 else ""
            for number, index in enumerate(chosen, 1):
                late = number / len(chosen)
                weight = {"alpha": 0.25 + 0.75 * late, "linewidth": 0.8 + 1.2 * late}
                name = f"{run.name}, update {values.updates[index]:,}"
                layers = np.arange(values.layers) + 1
                axes.plot(layers, values.values[index], label=name, **look, **weight)
        if scale.is_log:
            axes.set_yscale("log")
        clean(axes)
        axes.set_title(f"by layer, {side}", fontsize="medium")
        axes.set_xlabel("layer (1: at the input)", fontsize="small")
        axes.set_ylabel(axis(quantity), fontsize="small")
        deepest = max(values.layers for _, where, values in panels if where == side)
        axes.set_xticks(layer_ticks(deepest))
        axes.legend(frameon=False, fontsize="x-small")
