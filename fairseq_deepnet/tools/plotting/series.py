"""Labels, lines and scales for images and the page.

Shapes: U = updates, L = layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_deepnet.monitoring.records import QUANTITIES, Level
from fairseq_deepnet.tools.plotting.runs import LOGGED, SIDES, Grid, GridKey, Run

SHOWN: Final = (*LOGGED, *QUANTITIES)
BOUNDED: Final = {"update_bound": "model_update", "step_bound": "step_update"}
"""A theoretical bound -> the quantity that it bounds, which is drawn with it."""
_COVERED: Final = (1.0, 99.0)
"""Percentiles at the ends of a colour scale: one exploding update would hide all others."""


def title(quantity: str) -> str:
    """Return the name of a quantity in words."""
    return quantity.replace("_", " ").capitalize()


def label_of(show: str) -> str:
    """Return the axis label of a quantity: name and unit."""
    if show in LOGGED:
        return LOGGED[show]
    unit = QUANTITIES[show].unit
    return title(show) if unit == "none" else f"{title(show)} ({unit})"


def is_by_layer(show: str) -> bool:
    """Return True for quantities with one number per layer, which have heat maps."""
    return show in QUANTITIES and QUANTITIES[show].level is Level.PART


def has(run: Run, show: str) -> bool:
    """Return True if a run has logged or measured it."""
    return show in run.metrics or any(key.quantity == show for key in run.grids)


def parts_of(runs: Sequence[Run], quantity: str) -> list[str]:
    """Return the measured parts of layers; the first one represents the others."""
    parts = {key.part for run in runs for key in run.grids if key.quantity == quantity}
    first = [part for part in ("layer", "ffn", "self_attn") if part in parts]
    return [*first, *sorted(parts - {*first})]


def check(runs: Sequence[Run], show: str, part: str | None = None) -> None:
    """Raise ValueError if no run has it, or none has it for this part."""
    if not any(has(run, show) for run in runs):
        remedy = "" if show in LOGGED else "; train with --monitor-interval N"
        raise ValueError(f"--show {show}: none of these runs has it{remedy}")
    parts = parts_of(runs, show)
    if part is not None and part not in parts:
        raise ValueError(f"--part {part}: {show} was measured of {', '.join(parts)}")


class Line(NamedTuple):
    """A line of a run.

    Args:
        run: index of the run, which determines the colour
        look: solid, dashed, dotted or dots
        x: updates or layers
        weight: opacity, at most 1
    """

    run: int
    label: str
    look: str
    x: Sequence[int]
    y: Sequence[float]
    weight: float = 1.0


def lines_of(runs: Sequence[Run], show: str) -> list[Line]:
    """Return all lines of a logged column or of a quantity without layers."""
    lines = []
    for number, run in enumerate(runs):
        curves = run.metrics.get(show)
        for what, look in (("train", "solid"), ("valid", "dots")):
            if points := getattr(curves, what, []):
                x, y = zip(*points, strict=True)
                label = f"{run.name}, {what}" if "loss" in show else run.name
                lines.append(Line(number, label, look, x, y))
        shown = {key: grid for key, grid in run.grids.items() if key.quantity == show}
        for key, grid in shown.items():
            look = "dashed" if key.side == SIDES[0] else "solid"
            label = f"{run.name}, {key.side}" if key.side else run.name
            lines.append(_over_updates(number, label, look, grid))
        bounded = BOUNDED.get(show, "")
        if shown and (measured := run.grids.get(GridKey(bounded))) is not None:
            label = f"{run.name}, measured {bounded}"
            lines.append(_over_updates(number, label, "dotted", measured))
    return lines


def _over_updates(number: int, label: str, look: str, grid: Grid) -> Line:
    return Line(number, label, look, grid.updates.tolist(), grid.values[:, 0].tolist())


def profiles(run: Run, number: int, key: GridKey, most: int = 4) -> list[Line]:
    """Return values by layer at a few updates, evenly spaced in log; later ones are darker.

    The first and the last update with numbers are among them.

    Args:
        number: index of the run
    """
    if (grid := run.grids.get(key)) is None:
        return []
    sound = np.flatnonzero(np.isfinite(grid.values).any(axis=1))
    steps = np.geomspace(1, max(len(sound), 1), most).round().astype(np.int64) - 1
    lines = []
    chosen = np.unique(sound[steps]) if len(sound) else sound
    for place, index in enumerate(chosen, 1):
        label = f"{run.name}, update {grid.updates[index]:,}"
        layers = list(range(1, grid.layers + 1))
        weight = 0.25 + 0.75 * place / len(chosen)
        lines.append(Line(number, label, "solid", layers, grid.values[index].tolist(), weight))
    return lines


class Scale(NamedTuple):
    """Range of a colour scale or an axis; positive if it is logarithmic."""

    low: float
    high: float
    is_log: bool


def scale_of(arrays: Iterable[Iterable[float] | NDArray[np.float64]]) -> Scale:
    """Return a common scale for several panels; logarithmic if the values span a decade."""
    flat = [np.asarray(array, dtype=np.float64).ravel() for array in arrays]
    values = np.concatenate([np.empty(0), *flat])
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    if not len(values):
        return Scale(0.0, 1.0, False)
    spans = len(positive) > 0 and positive.max() > 10 * positive.min()
    is_log = bool(spans and values.min() >= 0)
    low, high = np.percentile(positive if is_log else values, _COVERED)
    if low == high:
        low, high = (low / 2, high * 2) if is_log else (low - 0.5, high + 0.5)
    return Scale(float(low), float(high), is_log)
