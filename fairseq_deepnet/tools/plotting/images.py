"""Plots of runs as an image: losses, a measured quantity, or an overview of everything.

A run has the same colour in all panels; heat maps of a quantity share their colour scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fairseq_deepnet.monitoring.records import QUANTITIES
from fairseq_deepnet.tools.plotting.runs import SIDES, Grid, GridKey, Run
from fairseq_deepnet.tools.plotting.series import (
    SHOWN,
    Line,
    Scale,
    check,
    columns,
    has,
    is_by_layer,
    label_of,
    layer_ticks,
    lines_of,
    part_title,
    parts_of,
    profiles,
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
"""Line panels per row of the overview."""
_COLUMNS: Final = 400
"""Maximum number of updates in a heat map."""


def draw(runs: Sequence[Run], show: str = "loss", part: str | None = None, head: str = "") -> Any:
    """Return a figure; raise ValueError if no run has the quantity for this part.

    Args:
        show: one of SHOWN, or EVERYTHING
        part: part of a layer; by default its representative part
        head: title
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
        _draw_line(axes, line)
    if show in QUANTITIES and scale_of(line.y for line in lines).is_log:
        axes.set_yscale("log")
    axes.set_ylabel(label_of(show))
    for number, run in enumerate(runs):
        _mark_events(axes, run, colour_of(number))
    clean(axes)


def _draw_line(axes: Any, line: Line) -> None:
    look = {**_LOOKS[line.look], "color": colour_of(line.run), "alpha": line.weight}
    if sum(map(math.isfinite, line.y)) == 1:  # a line of one point is invisible
        look |= {"marker": "o", "markersize": 5}
    axes.plot(line.x, line.y, label=line.label, **look)


def _by_layer(runs: Sequence[Run], show: str, part: str | None, head: str) -> Any:
    """Draw heat maps, one row per run and one column per side, with profiles by layer below."""
    part = part or parts_of(runs, show)[0]
    keys = [GridKey(show, side, part) for side in SIDES]
    keys = [key for key in keys if any(key in run.grids for run in runs)]
    drawn = [run for run in runs if any(key in run.grids for key in keys)]
    figure, grid = new_figure(
        len(drawn) + 1, len(keys), (5.5 * len(keys) + 1, 2.7 * len(drawn) + 3.5)
    )
    panels = {
        grid[row, column]: (run, key)
        for row, run in enumerate(drawn)
        for column, key in enumerate(keys)
    }
    _draw_maps(figure, panels, show)
    scale = scale_of(run.grids[key].values for run in drawn for key in keys if key in run.grids)
    for axes, key in zip(grid[-1], keys, strict=True):
        for line in profiles(runs, key):
            _draw_line(axes, line)
        axes.set_yscale("log" if scale.is_log else "linear")
        clean(axes)
        axes.set_title(f"by layer, {key.side}", fontsize="medium")
        axes.set_xlabel("layer (1: at the input)", fontsize="small")
        axes.set_ylabel(label_of(show), fontsize="small")
        axes.set_xticks(layer_ticks(max(r.grids[key].layers for r in drawn if key in r.grids)))
        axes.legend(frameon=False, fontsize="x-small")
    figure.suptitle(head or f"{title(show)}: {part_title(part)}")
    return figure


def _overview(runs: Sequence[Run], head: str) -> Any:
    """Draw lines of everything without layers, then a row of heat maps per quantity by layer."""
    from matplotlib import pyplot

    shown = [show for show in SHOWN if any(has(run, show) for run in runs)]
    flat = [show for show in shown if not is_by_layer(show)]
    deep = [GridKey(show, "", parts_of(runs, show)[0]) for show in shown if is_by_layer(show)]
    rows = -(-len(flat) // _ACROSS)
    heights = [3.0 * rows, *(2.6 for _ in deep)]
    size = (max(14.0, 3.6 * len(runs) * len(SIDES)), sum(heights) + 0.6)
    figure = pyplot.figure(figsize=size, layout="constrained")
    places = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    grid = list(places[0].subplots(rows, _ACROSS, squeeze=False).flat)
    for axes, show in zip(grid, flat, strict=False):
        _draw_lines(axes, runs, show)
        axes.set_xlabel("updates", fontsize="small")
        axes.yaxis.label.set_fontsize("small")
    for axes in grid[len(flat) :]:
        axes.set_visible(False)
    grid[0].legend(frameon=False, fontsize="small")
    for place, key in zip(places[1:], deep, strict=True):
        cells = [(run, key._replace(side=side)) for run in runs for side in SIDES]
        cells = [(run, cell) for run, cell in cells if cell in run.grids]
        row = place.subplots(1, len(cells), squeeze=False)[0]
        _draw_maps(place, dict(zip(row, cells, strict=True)), key.quantity)
        text = f"{title(key.quantity)}: {part_title(key.part)}"
        place.suptitle(text, fontsize="medium", x=0.01, ha="left")
    figure.suptitle(head or ", ".join(run.name for run in runs))
    return figure


def _draw_maps(figure: Any, panels: dict[Any, tuple[Run, GridKey]], quantity: str) -> None:
    """Draw heat maps that share a colour bar; hide the axes of missing sides."""
    scale = scale_of(run.grids[key].values for run, key in panels.values() if key in run.grids)
    for axes, (run, key) in panels.items():
        if key not in run.grids:
            axes.set_visible(False)
            continue
        grid = run.grids[key]
        image = _draw_map(axes, grid.take(columns(grid, _COLUMNS, run.events)), scale)
        _mark_events(axes, run, BROKEN)
        axes.set_title(f"{run.name}, {key.side}", fontsize="medium")
        axes.set_ylabel("layer (1: at the input)", fontsize="small")
        axes.set_xlabel("updates", fontsize="small")
    bar = figure.colorbar(image, ax=list(panels), extend="both", pad=0.015, aspect=25)
    bar.set_label(label_of(quantity), fontsize="small")


def _draw_map(axes: Any, grid: Grid, scale: Scale) -> Any:
    """Draw a heat map; return the image for the colour bar."""
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    norm = (LogNorm if scale.is_log else Normalize)(scale.low, scale.high)
    edges = edges_of(grid.updates)
    layers = np.arange(grid.layers + 1) + 0.5
    values = np.where(grid.values <= 0, scale.low, grid.values) if scale.is_log else grid.values
    axes.set_facecolor(ABSENT)
    look: dict[str, Any] = {"norm": norm, "cmap": "viridis", "rasterized": True}
    image = axes.pcolormesh(edges, layers, np.ma.masked_invalid(values).T, **look)
    broken = grid.given & ~np.isfinite(values)
    if broken.any():
        red = np.ma.masked_where(~broken, np.ones_like(values))
        axes.pcolormesh(edges, layers, red.T, cmap=ListedColormap([BROKEN]), rasterized=True)
    axes.set_yticks(layer_ticks(grid.layers))
    return image


def edges_of(updates: Any) -> Any:
    """Return the borders halfway between adjacent updates, (U + 1) for (U)."""
    centres = np.asarray(updates, dtype=np.float64)
    steps = np.diff(centres) if len(centres) > 1 else np.ones(1)
    inner = centres[:-1] + np.diff(centres) / 2
    return np.concatenate([[centres[0] - steps[0] / 2], inner, [centres[-1] + steps[-1] / 2]])


def _mark_events(axes: Any, run: Run, colour: str) -> None:
    """Draw a dashed line at the start of each event, with a triangle for the legend."""
    kinds = dict.fromkeys(event.finding.kind.label for event in run.events if not event.is_end)
    label = f"{run.name}, divergence watch: {', '.join(kinds)}"
    # a recovery has the start of its trouble
    for update in sorted({event.finding.started for event in run.events})[:20]:
        axes.axvline(update, color=colour, linestyle=(0, (4, 3)), linewidth=1, alpha=0.8)
        place = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        axes.plot(update, 1.0, color=colour, label=label, **_TRIANGLE, **place)
        label = "_nolegend_"
