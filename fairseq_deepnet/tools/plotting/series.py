"""What is drawn of runs, whoever draws it: names, lines, scales, and fewer points than there are.

Shapes: U = updates, L = layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_deepnet.divergence.events import Event
from fairseq_deepnet.monitoring.quantities import QUANTITIES, Level
from fairseq_deepnet.tools.plotting.curves import METRICS
from fairseq_deepnet.tools.plotting.runs import LOGGED, SIDES, Grid, GridKey, Run

LABELS: Final = {
    **METRICS,
    "lr": "learning rate",
    "gnorm": "gradient norm, before clipping",
}
"""What fairseq logs, as axes name it."""
BOUNDED: Final = {"update_bound": "model_update", "step_bound": "step_update"}
"""A bound of the theory -> what it bounds, drawn with it."""
PARTS: Final = {
    "layer": "whole layer",
    "embedding": "LayerNorm of the embedding",
    "self_attn": "self-attention",
    "encoder_attn": "cross-attention",
    "post_activation_transform": "inside feed-forward",
    "ffn": "feed-forward",
    "residuals": "",
    "branch_norm": "LayerNorm of the branch",
    "combination": "combination of layers",
    "final": "final LayerNorm",
    "qk": "query and key",
    "vo": "value and output",
}
"""Pieces of a part's name in words, from the input of a layer or stack to its output."""
_DECADE: Final = 10.0
_COVERED: Final = (1.0, 99.0)
"""Percentiles that a colour scale reaches to: one exploding update would hide all others."""
_MANY: Final = 1000
"""Points of one line that are drawn."""


# Names.


def title(quantity: str) -> str:
    """Return a quantity's name in words."""
    words = quantity.replace("_", " ")
    words = words[0].upper() + words[1:]
    return words.replace("Layer norm", "LayerNorm")


def axis(quantity: str) -> str:
    """Return a quantity's name with its unit."""
    unit = QUANTITIES[quantity].unit
    return title(quantity) if unit == "none" else f"{title(quantity)} ({unit})"


def label_of(show: str) -> str:
    """Return the vertical axis of a thing that is shown: name and unit."""
    return LABELS.get(show) or axis(show)


def part_title(part: str) -> str:
    """Return a part of a layer in words: "self-attention, query and key" for self_attn.qk."""
    return ", ".join(filter(None, (PARTS.get(piece, piece) for piece in part.split("."))))


def ordered(parts: Iterable[str]) -> list[str]:
    """Return parts of a layer from its input to its output, the whole layer first."""
    place = list(PARTS)

    def position(part: str) -> tuple[int, ...]:
        return tuple(place.index(p) if p in place else len(place) for p in part.split("."))

    return sorted(dict.fromkeys(parts), key=position)


def main_part(parts: Iterable[str]) -> str:
    """Return the part that stands for a layer: the whole of it, or what comes last in it."""
    known = ordered(parts)
    return next((part for part in ("layer", "ffn") if part in known), known[0])


# Lines.


class Line(NamedTuple):
    """One line of a run.

    Args:
        run: its place among the runs, which gives the colour
        what: what sets it apart from the run's other lines; may be empty
        look: solid, dashed, dotted or dots
    """

    run: int
    name: str
    what: str
    look: str
    updates: Sequence[int]
    values: Sequence[float]

    @property
    def label(self) -> str:
        """For the legend."""
        return f"{self.name}, {self.what}" if self.what else self.name


def is_by_layer(show: str) -> bool:
    """Return True if it has a number a layer, and so heat maps and profiles beside lines."""
    return show in QUANTITIES and QUANTITIES[show].level is Level.PART


def has(run: Run, show: str) -> bool:
    """Return True if a run has anything of it."""
    return show in run.metrics or any(key.quantity == show for key in run.grids)


def parts_of(runs: Sequence[Run], quantity: str) -> list[str]:
    """Return the parts of layers that a quantity was measured of in any run."""
    parts = (key.part for run in runs for key in run.grids if key.quantity == quantity)
    return list(dict.fromkeys(parts))


def check(runs: Sequence[Run], show: str, part: str | None = None) -> None:
    """Raise ValueError for what no run has, or has not of this part of a layer."""
    if not any(has(run, show) for run in runs):
        if show in LOGGED:
            raise ValueError(f"--show {show}: none of these runs has logged it")
        raise ValueError(
            f"--show {show}: it was measured in none of these runs; train with --monitor-interval"
            f" N, and with {show} in --monitor"
        )
    parts = parts_of(runs, show)
    if part is not None and part not in parts:
        raise ValueError(f"--part {part}: {show} was measured of {', '.join(parts)}")


def lines_of(runs: Sequence[Run], show: str) -> list[Line]:
    """Return all lines of one thing that has no layers."""
    drawn = _logged if show in LOGGED else _measured
    return [line for number, run in enumerate(runs) for line in drawn(number, run, show)]


def lines_by_layer(runs: Sequence[Run], key: GridKey) -> list[Line]:
    """Return lines of a part of a side's layers: the highest layer solid, the middle one dashed,
    the lowest dotted.
    """
    lines = []
    for number, run in enumerate(runs):
        if (grid := run.grids.get(key)) is not None:
            top = grid.layers - 1
            looks = {0: "dotted", top // 2: "dashed", top: "solid"}
            for layer in sorted(looks, reverse=True):
                what = f"layer {layer + 1}" if top else ""
                lines.append(_of_grid(number, run, what, looks[layer], grid, layer))
    return lines


def _of_grid(number: int, run: Run, what: str, look: str, grid: Grid, layer: int = 0) -> Line:
    values = grid.values[:, layer].tolist()
    return Line(number, run.name, what, look, grid.updates.tolist(), values)


def _logged(number: int, run: Run, metric: str) -> Iterator[Line]:
    curves = run.metrics.get(metric)
    for what, look in (("train", "solid"), ("valid", "dots")):
        points = getattr(curves, what, [])
        if points:
            updates, values = zip(*points, strict=True)
            name = what if metric in METRICS else ""
            yield Line(number, run.name, name, look, list(updates), list(values))


def _measured(number: int, run: Run, quantity: str) -> Iterator[Line]:
    for key, grid in run.grids.items():
        if key.quantity == quantity and not key.part:
            look = "dashed" if key.side == SIDES[0] else "solid"
            yield _of_grid(number, run, key.side, look, grid)
    bounded = BOUNDED.get(quantity, "")
    if (measured := run.grids.get(GridKey(bounded))) is not None:
        yield _of_grid(number, run, f"measured {bounded}", "dotted", measured)


# Scales, and fewer points.


class Scale(NamedTuple):
    """From where to where colours or an axis reach; positive where it is logarithmic."""

    low: float
    high: float
    is_log: bool


def scale_of(arrays: Iterable[NDArray[np.float64]]) -> Scale:
    """Return one scale for all panels that are compared: logarithmic where values span a decade."""
    flat = [np.asarray(array, dtype=np.float64).ravel() for array in arrays]
    values = np.concatenate([np.empty(0), *flat])
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    if not len(values):
        return Scale(0.0, 1.0, False)
    spans = len(positive) > 0 and positive.max() > _DECADE * positive.min()
    is_log = bool(spans and values.min() >= 0)
    low, high = np.percentile(positive if is_log else values, _COVERED)
    if low == high:
        low, high = (low / 2, high * 2) if is_log else (low - 0.5, high + 0.5)
    return Scale(float(low), float(high), is_log)


def thin_line(
    updates: Sequence[int], values: Sequence[float], most: int = _MANY
) -> tuple[list[int], list[float]]:
    """Return a line of at most about `most` points: the lowest and the highest of each stretch."""
    count = len(updates)
    if count <= most:
        return list(updates), list(values)
    array = np.asarray(values, dtype=np.float64)
    kept = {0, count - 1}
    for stretch in np.array_split(np.arange(count), most // 2):
        finite = stretch[np.isfinite(array[stretch])]
        ends = [array[finite].argmin(), array[finite].argmax()] if len(finite) else []
        kept.update(map(int, finite[ends] if ends else stretch[:1]))
        # where a run broke is what a reader looks for
        kept.update(map(int, stretch[~np.isfinite(array[stretch])][:1]))
    order = sorted(kept)
    return [int(updates[index]) for index in order], [float(array[index]) for index in order]


def columns(grid: Grid, most: int, events: Sequence[Event] = ()) -> NDArray[np.int64]:
    """Return which updates a heat map of at most about `most` columns shows: evenly chosen ones,
    and those next to an event.
    """
    count = len(grid.updates)
    if count <= most:
        return np.arange(count)
    even = np.linspace(0, count - 1, most).round().astype(np.int64)
    places = np.searchsorted(grid.updates, [event.finding.started for event in events[:20]])
    near = (places[:, None] + np.arange(-2, 3)).ravel().astype(np.int64)
    return np.unique(np.clip(np.concatenate([even, near]), 0, count - 1))


def chosen_updates(grid: Grid, number: int = 4) -> NDArray[np.int64]:
    """Return a few updates for profiles by layer, by index: the first and the last that have
    numbers, and evenly between in log.
    """
    sound = np.flatnonzero(np.isfinite(grid.values).any(axis=1))
    if not len(sound):
        return sound
    steps = np.geomspace(1, len(sound), number).round().astype(np.int64) - 1
    return np.unique(sound[np.clip(steps, 0, len(sound) - 1)])


def layer_ticks(layers: int) -> list[int]:
    """Return whole layers, the first and the last among them."""
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100, 200) if layers / step <= 10), 500)
    first, last = step / 2 + 1, layers - step / 2  # else too near to the ends
    inner = [tick for tick in range(step, layers, step) if first < tick <= last]
    return sorted({1, *inner, layers})
