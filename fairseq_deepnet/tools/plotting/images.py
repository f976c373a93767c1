"""Plots of runs as images: losses and other quantities as lines, or as heat maps by layer.

A run has the same colour in all panels. The heat maps of a quantity share one colour scale.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fairseq_deepnet.files import whole
from fairseq_deepnet.monitoring.records import QUANTITIES
from fairseq_deepnet.tools.plotting.runs import (
    LOGGED,
    SIDES,
    Key,
    Run,
    Scale,
    Series,
    label_of,
    lines_of,
    parts_of,
    scale_of,
)

# fairseq configures the root logger, so matplotlib would log its settings and every font
logging.getLogger("matplotlib").setLevel(logging.WARNING)

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind readers can distinguish."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "h")
BROKEN: Final = "#d62728"
"""Colour of values that are not finite."""
CROSS: Final[dict[str, Any]] = {"marker": "x", "markersize": 8, "markeredgewidth": 2}
"""Marker of a run that diverged or crashed."""
_LOOKS: Final[dict[str, dict[str, Any]]] = {
    "solid": {"linestyle": "-", "linewidth": 1.8},
    "dashed": {"linestyle": "--", "linewidth": 1.4},
    "dotted": {"linestyle": ":", "linewidth": 1.4},
    "dots": {"linestyle": "--", "linewidth": 0.8, "marker": "o", "markersize": 5},
}


def colour_of(number: int) -> str:
    """Return the colour of a line by its index."""
    return COLOURS[number % len(COLOURS)]


def look_of(number: int) -> dict[str, str]:
    """Return a line's colour, marker and style by index; reused colours have dash-dotted lines."""
    again = number // len(COLOURS)
    marker = MARKERS[(number + again) % len(MARKERS)]
    return {"color": colour_of(number), "marker": marker, "linestyle": "-." if again else "-"}


def new_figure(size: tuple[float, float]) -> Any:
    """Return an empty figure with this width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def clean(axes: Any) -> None:
    """Add a light grid, and remove the top and right sides of the frame."""
    axes.grid(which="major", alpha=0.35)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, file: Path) -> None:
    """Write an image atomically, in the format given by the file's suffix."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole(file) as part:
        figure.savefig(part, dpi=150, format=file.suffix.removeprefix("."))


def draw(runs: Sequence[Run], show: str = "loss", head: str = "") -> Any:
    """Draw a quantity of SHOWN as lines, or as heat maps if it is measured by layer.

    Raises:
        ValueError: if no run has the quantity.
    """
    parts = parts_of(runs, show)
    if not parts:
        remedy = "" if show in LOGGED else "; train with --monitor-interval N"
        raise ValueError(f"--show {show}: none of these runs has this quantity{remedy}")
    if parts[0]:
        head = ". ".join(filter(None, (head, f"{label_of(show)}: {parts[0]}")))
        figure = _draw_layers(runs, show, parts[0])
    else:
        figure = _draw_lines(runs, show)
    figure.suptitle(head)
    return figure


def _draw_lines(runs: Sequence[Run], show: str) -> Any:
    figure = new_figure((8.0, 5.0))
    axes = figure.subplots()
    lines = lines_of(runs, show)
    for line in lines:
        axes.plot(line.x, line.y, label=line.label, color=colour_of(line.run), **_LOOKS[line.look])
    if show in QUANTITIES and scale_of(line.y for line in lines).is_log:
        axes.set_yscale("log")
    axes.set_xscale("log")
    axes.set_xlabel("updates (logarithmic)")
    axes.set_ylabel(label_of(show))
    for number, run in enumerate(runs):
        _mark_events(axes, run, colour_of(number))
    axes.legend(frameon=False)
    clean(axes)
    return figure


def _draw_layers(runs: Sequence[Run], show: str, part: str) -> Any:
    """Draw a heat map per run (row) and side (column)."""
    maps = {
        (run.name, side): run.series.get(Key(show, side, part)) for run in runs for side in SIDES
    }
    runs = [run for run in runs if any(maps[run.name, side] for side in SIDES)]
    sides = [side for side in SIDES if any(maps[run.name, side] for run in runs)]
    scale = scale_of(series.values for series in maps.values() if series)
    figure = new_figure((7.5 * len(sides), 1 + 2.2 * len(runs)))
    grid = figure.subplots(len(runs), len(sides), squeeze=False)
    for run, row in zip(runs, grid, strict=True):
        for side, axes in zip(sides, row, strict=True):
            axes.set_title(f"{run.name}, {side}", fontsize="medium")
            if series := maps[run.name, side]:
                image = _draw_map(axes, series, scale)
                _mark_events(axes, run, BROKEN)
    bar = figure.colorbar(image, ax=grid, extend="both", pad=0.015, aspect=25)
    bar.set_label(label_of(show))
    return figure


def _draw_map(axes: Any, series: Series, scale: Scale) -> Any:
    """Draw a heat map with red cells for values that are not finite; return its image."""
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    # a column extends halfway to the neighbouring measurements, but not beyond the outer ones
    updates, values = series.updates, series.values.T
    start = updates[0] - (len(updates) == 1)
    edges = np.concatenate([[start], (updates[1:] + updates[:-1]) / 2, updates[-1:]])
    layers = np.arange(len(values) + 1) + 0.5
    shown = np.where(values <= 0, scale.low, values) if scale.is_log else values
    norm = (LogNorm if scale.is_log else Normalize)(scale.low, scale.high)
    image = axes.pcolormesh(edges, layers, np.ma.masked_invalid(shown), norm=norm)
    broken = np.ma.masked_equal(np.isinf(values), False)
    axes.pcolormesh(edges, layers, broken, cmap=ListedColormap([BROKEN]))
    axes.set_facecolor("#e4e4e4")  # where there is no measurement
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("layer (1: at the input)")
    axes.set_xlabel("updates")
    return image


def _mark_events(axes: Any, run: Run, colour: str) -> None:
    """Mark the starts of the first 20 events with dashed lines and triangles."""
    for update in [event.started for event in run.events if not event.ended][:20]:
        axes.axvline(update, color=colour, linestyle=(0, (4, 3)), linewidth=1, alpha=0.8)
        place = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        axes.plot(update, 1.0, color=colour, marker="v", markersize=8, **place)
