"""How numbers become pictures: names, logarithmic or not, limits of colours, thinning.

Shapes: U = updates, L = layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fairseq_deepnet.divergence.events import Event
from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools.plotting.runs import Grid

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


def title(quantity: str) -> str:
    """A quantity's name in words."""
    words = quantity.replace("_", " ")
    words = words[0].upper() + words[1:]
    return words.replace("Layer norm", "LayerNorm")


def axis(quantity: str) -> str:
    """A quantity's name with its unit."""
    unit = QUANTITIES[quantity].unit
    return title(quantity) if unit == "none" else f"{title(quantity)} ({unit})"


def part_title(part: str) -> str:
    """A part of a layer in words: "self-attention, query and key" for self_attn.qk."""
    return ", ".join(filter(None, (PARTS.get(piece, piece) for piece in part.split("."))))


def ordered(parts: Iterable[str]) -> list[str]:
    """Parts of a layer from its input to its output, the whole layer first."""
    place = list(PARTS)

    def position(part: str) -> tuple[int, ...]:
        return tuple(place.index(p) if p in place else len(place) for p in part.split("."))

    return sorted(dict.fromkeys(parts), key=position)


def main_part(parts: Iterable[str]) -> str:
    """The part that stands for a layer: the whole of it, or what comes last in it."""
    known = ordered(parts)
    for part in ("layer", "ffn"):
        if part in known:
            return part
    return known[0]


@dataclass(frozen=True)
class Scale:
    """From where to where colours or an axis reach; positive where it is logarithmic."""

    low: float
    high: float
    is_log: bool


def scale_of(arrays: Iterable[NDArray[np.float64]]) -> Scale:
    """One scale for all panels that are compared: logarithmic where values span a decade."""
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


def wants_log(arrays: Sequence[NDArray[np.float64]]) -> bool:
    """Whether lines are drawn on a logarithmic axis."""
    return bool(arrays) and scale_of(arrays).is_log


def thin_line(
    updates: Sequence[int], values: Sequence[float], most: int = _MANY
) -> tuple[list[int], list[float]]:
    """A line of at most about `most` points: the lowest and the highest of each stretch."""
    count = len(updates)
    if count <= most:
        return list(updates), list(values)
    array = np.asarray(values, dtype=np.float64)
    kept = {0, count - 1}
    for stretch in np.array_split(np.arange(count), most // 2):
        finite = stretch[np.isfinite(array[stretch])]
        chosen = (
            (finite[array[finite].argmin()], finite[array[finite].argmax()]) if len(finite) else ()
        )
        kept.update(map(int, chosen or stretch[:1]))
        # where a run broke is what a reader looks for
        kept.update(map(int, stretch[~np.isfinite(array[stretch])][:1]))
    order = sorted(kept)
    return [int(updates[index]) for index in order], [float(array[index]) for index in order]


def columns(grid: Grid, most: int, events: Sequence[Event] = ()) -> NDArray[np.int64]:
    """Which updates a heat map of at most about `most` columns shows: evenly chosen ones, and those
    next to an event.
    """
    count = len(grid.updates)
    if count <= most:
        return np.arange(count)
    even = np.linspace(0, count - 1, most).round().astype(np.int64)
    places = np.searchsorted(grid.updates, [event.finding.started for event in events[:20]])
    near = (places[:, None] + np.arange(-2, 3)).ravel().astype(np.int64)
    return np.unique(np.clip(np.concatenate([even, near]), 0, count - 1))


def chosen_updates(grid: Grid, number: int = 4) -> NDArray[np.int64]:
    """A few updates for profiles by layer, by index: the first and the last that have numbers, and
    evenly between in log.
    """
    sound = np.flatnonzero(np.isfinite(grid.values).any(axis=1))
    if not len(sound):
        return sound
    steps = np.geomspace(1, len(sound), number).round().astype(np.int64) - 1
    return np.unique(sound[np.clip(steps, 0, len(sound) - 1)])
