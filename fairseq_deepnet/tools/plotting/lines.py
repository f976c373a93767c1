"""What is drawn over updates, whoever draws it: a list of lines for each name that can be shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairseq_deepnet.monitoring.quantities import QUANTITIES, Level
from fairseq_deepnet.tools.plotting.curves import METRICS
from fairseq_deepnet.tools.plotting.runs import LOGGED, SIDES, Grid, Key, Run
from fairseq_deepnet.tools.plotting.scales import axis

LABELS: Final = {
    **METRICS,
    "lr": "learning rate",
    "gnorm": "gradient norm, before clipping",
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


def lines_of(runs: Sequence[Run], show: str) -> list[Line]:
    """All lines of one thing that has no layers."""
    lines: list[Line] = []
    for number, run in enumerate(runs):
        drawn = _logged(run, show) if show in LOGGED else _measured(run, show)
        lines += (Line(number, run.name, *rest) for rest in drawn)
    return lines


def lines_by_layer(runs: Sequence[Run], key: Key) -> list[Line]:
    """Of a part of a side's layers: the highest layer solid, the middle one dashed, the lowest
    dotted.
    """
    lines = []
    for number, run in enumerate(runs):
        if key in run.grids:
            grid = run.grids[key]
            for layer, look in _layers(grid):
                values = grid.updates.tolist(), grid.values[:, layer].tolist()
                what = f"layer {layer + 1}" if grid.layers > 1 else ""
                lines.append(Line(number, run.name, what, look, *values))
    return lines


_Drawn = tuple[str, str, Sequence[int], Sequence[float]]


def _logged(run: Run, metric: str) -> Iterator[_Drawn]:
    curves = run.metrics.get(metric)
    for what, look in (("train", "solid"), ("valid", "dots")):
        points = getattr(curves, what, [])
        if points:
            told = what if metric in METRICS else ""
            yield told, look, *_unzipped(points)


def _unzipped(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [update for update, _ in points], [value for _, value in points]


def _measured(run: Run, quantity: str) -> Iterator[_Drawn]:
    for key, grid in run.grids.items():
        if key.quantity == quantity and not key.part:
            look = "dashed" if key.side == SIDES[0] else "solid"
            yield key.side, look, *_single(grid)
    bounded = run.grids.get(Key(_MEASURED.get(quantity, "")))
    if bounded is not None:
        yield f"measured {_MEASURED[quantity]}", "dotted", *_single(bounded)


def _single(grid: Grid) -> tuple[list[int], list[float]]:
    return grid.updates.tolist(), grid.values[:, 0].tolist()


def _layers(grid: Grid) -> Iterator[tuple[int, str]]:
    looks = {0: "dotted", (grid.layers - 1) // 2: "dashed", grid.layers - 1: "solid"}
    return iter(sorted(looks.items(), reverse=True))
