"""What is drawn over updates, whoever draws it: a list of lines for each name that can be shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fairseq_deepnet.monitoring.quantities import QUANTITIES, Level
from fairseq_deepnet.plotting.runs import LOGGED, SIDES, Grid, Key, Run
from fairseq_deepnet.plotting.scales import axis

LABELS: Final = {
    "loss": "training objective (bits per token)",
    "nll_loss": "negative log-likelihood (bits per token)",
    "lr": "learning rate",
    "gnorm": "norm of all gradients, before clipping",
}
"""What fairseq logs, as axes name it."""
_MEASURED: Final = {"update_bound": "model_update", "step_bound": "step_update"}
"""A bound of the theory -> what it bounds, drawn with it."""


@dataclass(frozen=True)
class Line:
    """One line of a run.

    Arguments:
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


def label_of(show: str) -> str:
    """The vertical axis of a thing that is shown: name and unit."""
    return LABELS.get(show) or axis(show)


def is_by_layer(show: str) -> bool:
    """Whether it has a number for every layer, and so heat maps and profiles beside lines."""
    return show in QUANTITIES and QUANTITIES[show].level is Level.PART


def has(run: Run, show: str) -> bool:
    """Whether a run has anything of it."""
    return show in run.metrics or any(key.quantity == show for key in run.grids)


def lines_of(runs: Sequence[Run], show: str, part: str = "") -> list[Line]:
    """All lines of one thing: of what has layers the lowest, the middle and the highest of a part,
    side by side.
    """
    lines: list[Line] = []
    for number, run in enumerate(runs):
        drawn = _logged(run, show) if show in LOGGED else _measured(run, show, part)
        lines += (Line(number, run.name, *rest) for rest in drawn)
    return lines


_Drawn = tuple[str, str, Sequence[int], Sequence[float]]


def _logged(run: Run, metric: str) -> Iterator[_Drawn]:
    curves = run.metrics.get(metric)
    for what, look in (("train", "solid"), ("valid", "dots")):
        points = getattr(curves, what, [])
        if points:
            told = what if metric in ("loss", "nll_loss") else ""
            yield told, look, *_unzipped(points)


def _unzipped(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [update for update, _ in points], [value for _, value in points]


def _measured(run: Run, quantity: str, part: str) -> Iterator[_Drawn]:
    for key, grid in run.grids.items():
        if key.quantity == quantity and key.part == part:
            look = "dashed" if key.side == SIDES[0] else "solid"
            for what, layer in _layers(grid) if key.part else (("", 0),):
                yield f"{key.side} {what}".strip(), look, *_values(grid, layer)
    bounded = run.grids.get(Key(_MEASURED.get(quantity, "")))
    if bounded is not None:
        yield f"measured {_MEASURED[quantity]}", "dotted", *_values(bounded, 0)


def _layers(grid: Grid) -> Iterator[tuple[str, int]]:
    top = grid.layers - 1
    for layer in sorted({0, top // 2, top}):
        yield f"layer {layer + 1}", layer


def _values(grid: Grid, layer: int) -> tuple[list[int], list[float]]:
    values = np.asarray(grid.values[:, layer])
    return grid.updates.tolist(), values.tolist()
