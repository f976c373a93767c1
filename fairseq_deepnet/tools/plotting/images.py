"""Plots of runs as an image: losses, a measured quantity, or an overview of everything.

A run has the same colour in all panels; heat maps of a quantity share their colour scale.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fairseq_deepnet.monitoring.records import QUANTITIES
from fairseq_deepnet.tools.plotting.runs import SIDES, GridKey, Run
from fairseq_deepnet.tools.plotting.series import (
    SHOWN,
    Line,
    Scale,
    check,
    has,
    is_by_layer,
    label_of,
    lines_of,
    parts_of,
    profiles,
    scale_of,
    title,
)

EVERYTHING: Final = "all"
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
"""Palette of Okabe and Ito, which colour-blind readers can distinguish."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "h")
BROKEN: Final = "#d62728"
"""Colour of values that are not finite."""
CROSS: Final[dict[str, Any]] = {"marker": "x", "markersize": 8, "markeredgewidth": 2}
"""Marker of a run that diverged."""
_LOOKS: Final[dict[str, dict[str, Any]]] = {
    "solid": {"linestyle": "-", "linewidth": 1.8},
    "dashed": {"linestyle": "--", "linewidth": 1.4},
    "dotted": {"linestyle": ":", "linewidth": 1.4},
    "dots": {"linestyle": "--", "linewidth": 0.8, "marker": "o", "markersize": 5},
}
_ACROSS: Final = 3
"""Line panels per row of the overview."""


def colour_of(number: int) -> str:
    """Return the colour of a line by its index among those it is compared with."""
    return COLOURS[number % len(COLOURS)]


def look_of(number: int) -> dict[str, str]:
    """Return colour, marker and line style by index; colours repeat with other markers, dashed."""
    again = number // len(COLOURS)
    marker = MARKERS[(number + again) % len(MARKERS)]
    return {"color": colour_of(number), "marker": marker, "linestyle": "-." if again else "-"}


def new_figure(size: tuple[float, float]) -> Any:
    """Return an empty figure of a size in inches."""
    # fairseq configures the root logger; matplotlib would list every font
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def clean(axes: Any) -> None:
    """Add a light grid, and remove the frame above and on the right."""
    axes.grid(which="major", alpha=0.35)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, file: Path) -> None:
    """Write an image atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.stem}.part{file.suffix}")
    try:
        figure.savefig(unfinished, dpi=150)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def draw(runs: Sequence[Run], show: str = "loss", part: str | None = None, head: str = "") -> Any:
    """Draw lines of everything without layers, then heat maps and profiles of what has layers.

    Args:
        show: one of SHOWN, or EVERYTHING
        part: part of a layer; by default its representative part
        head: title

    Raises ValueError if no run has the quantity for this part.
    """
    if show != EVERYTHING:
        check(runs, show, part)
    shown = [s for s in SHOWN if show in (s, EVERYTHING) and any(has(run, s) for run in runs)]
    flat = [show for show in shown if not is_by_layer(show)]
    deep = [show for show in shown if is_by_layer(show)]
    across = min(len(flat), _ACROSS)
    rows = -(-len(flat) // _ACROSS)
    heights = [(5.0 if across == 1 else 3.0) * rows] * bool(flat)
    heights += [1 + 2.2 * len(runs)] * len(deep)
    figure = new_figure((15.0 if deep or across > 1 else 8.0, sum(heights)))
    places = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if flat:
        panels = list(places[0].subplots(rows, across, squeeze=False).flat)
        for axes, show in zip(panels, flat, strict=False):
            _draw_lines(axes, runs, show)
        for axes in panels[len(flat) :]:
            axes.set_visible(False)
        panels[0].legend(frameon=False)
    for place, show in zip(places[bool(flat) :], deep, strict=True):
        _draw_layers(place, runs, show, part or parts_of(runs, show)[0])
    figure.suptitle(head)
    return figure


def _draw_lines(axes: Any, runs: Sequence[Run], show: str) -> None:
    lines = lines_of(runs, show)
    for line in lines:
        _draw_line(axes, line)
    if show in QUANTITIES and scale_of(line.y for line in lines).is_log:
        axes.set_yscale("log")
    axes.set_xscale("log")
    axes.set_xlabel("updates (logarithmic)")
    axes.set_ylabel(label_of(show))
    for number, run in enumerate(runs):
        _mark_events(axes, run, colour_of(number))
    clean(axes)


def _draw_line(axes: Any, line: Line) -> None:
    look = {**_LOOKS[line.look], "color": colour_of(line.run), "alpha": line.weight}
    if sum(map(math.isfinite, line.y)) == 1:  # a line of one point is invisible
        look |= {"marker": "o", "markersize": 5}
    axes.plot(line.x, line.y, label=line.label, **look)


def _draw_layers(figure: Any, runs: Sequence[Run], show: str, part: str) -> None:
    """Draw a heat map per run (row) and side (column), and on the right profiles by layer."""
    keys = [GridKey(show, side, part) for side in SIDES]
    keys = [key for key in keys if any(key in run.grids for run in runs)]
    runs_drawn = [run for run in runs if any(key in run.grids for key in keys)]
    scale = scale_of(run.grids[key].values for run in runs for key in keys if key in run.grids)
    grid = figure.add_gridspec(len(runs_drawn), 2 * len(keys))
    maps = []
    for column, key in enumerate(keys):
        for row, run in enumerate(runs_drawn):
            if key in run.grids:
                maps.append(figure.add_subplot(grid[row, column]))
                image = _draw_map(maps[-1], run, key, scale)
        axes = figure.add_subplot(grid[:, len(keys) + column])
        for number, run in enumerate(runs):
            for line in profiles(run, number, key):
                _draw_line(axes, line)
        axes.set_yscale("log" if scale.is_log else "linear")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(f"by layer, {key.side}", fontsize="medium")
        axes.set_xlabel("layer (1: at the input)")
        axes.legend(frameon=False, fontsize="x-small")
        clean(axes)
    bar = figure.colorbar(image, ax=maps, extend="both", pad=0.015, aspect=25)
    bar.set_label(label_of(show))
    figure.suptitle(f"{title(show)}: {part}")


def _draw_map(axes: Any, run: Run, key: GridKey, scale: Scale) -> Any:
    """Draw a heat map, red where a value is not finite; return the image for the colour bar."""
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    grid = run.grids[key].thin(400, run.events)
    # a column reaches to the next measured update
    edges = np.append(grid.updates, grid.updates[-1] + max(1, np.ptp(grid.updates[-2:])))
    layers = np.arange(grid.layers + 1) + 0.5
    values = np.where(grid.values <= 0, scale.low, grid.values) if scale.is_log else grid.values
    norm = (LogNorm if scale.is_log else Normalize)(scale.low, scale.high)
    image = axes.pcolormesh(edges, layers, np.ma.masked_invalid(values).T, norm=norm)
    broken = np.ma.masked_equal(grid.given & ~np.isfinite(grid.values), False)
    axes.pcolormesh(edges, layers, broken.T, cmap=ListedColormap([BROKEN]))
    axes.set_facecolor("#e4e4e4")  # missing measurements
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_title(f"{run.name}, {key.side}", fontsize="medium")
    axes.set_ylabel("layer (1: at the input)")
    axes.set_xlabel("updates")
    _mark_events(axes, run, BROKEN)
    return image


def _mark_events(axes: Any, run: Run, colour: str) -> None:
    """Draw a dashed line at the start of each event, with a triangle for the legend."""
    kinds = dict.fromkeys(event.finding.kind.label for event in run.events if not event.is_end)
    label = f"{run.name}, divergence watch: {', '.join(kinds)}"
    look = {"color": colour, "marker": "v", "markersize": 8, "linestyle": "none"}
    # a recovery has the start of its trouble
    for update in sorted({event.finding.started for event in run.events})[:20]:
        axes.axvline(update, color=colour, linestyle=(0, (4, 3)), linewidth=1, alpha=0.8)
        place = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        axes.plot(update, 1.0, label=label, **look, **place)
        label = "_nolegend_"
