"""Loss over updates for all runs of a sweep: small panels side by side, a line a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from fairseq_deepnet.divergence.verdict import smoothed
from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.experiments.report import notes
from fairseq_deepnet.experiments.report.figures import (
    CROSS,
    Figure,
    Style,
    heading,
    in_groups,
    styles,
)
from fairseq_deepnet.experiments.report.own_tables import Placed, in_order, placed
from fairseq_deepnet.experiments.report.results import Result
from fairseq_deepnet.experiments.sweeps.definition import Sweep
from fairseq_deepnet.experiments.sweeps.factors import Factor
from fairseq_deepnet.experiments.sweeps.state import Status
from fairseq_deepnet.tools.plotting.curves import METRICS
from fairseq_deepnet.tools.plotting.style import clean, quiet_matplotlib

NAME: Final = "curves"
_PANEL: Final = (3.5, 2.7)
_HIGHEST: Final = 3.0
"""Bits a token above the lowest loss that are shown."""


def of_sweep(sweep: Sweep, results: Sequence[Result]) -> list[Figure]:
    """One figure for all panels of a sweep that have the same factors."""
    panels: dict[tuple[str, ...], list[str]] = {}
    for panel in sweep.panels:
        panels.setdefault(tuple(factor.name for factor in panel.factors), []).append(panel.name)
    found = []
    for names in panels.values():
        members = [item for item in placed(sweep, names, results) if item[1].train_nll]
        factors = sweep.panel(names[0]).factors
        if members and len(factors) <= 3:
            name = NAME if len(panels) == 1 else f"{NAME}-{names[0]}"
            found.append(Figure(name, _drawing(sweep, factors, members)))
    return found


def _drawing(sweep: Sweep, factors: Sequence[Factor], members: Sequence[Placed]) -> Any:
    return lambda: draw(sweep, factors, members)


def draw(sweep: Sweep, factors: Sequence[Factor], members: Sequence[Placed]) -> Any:
    """The training losses as lines, the validation losses as markers, a cross where a run diverged.

    Lines are the values of the factor that sets the scheme, otherwise of the last factor. A second
    factor makes columns, a third rows; schemes are parted by groups where there is room.
    """
    quiet_matplotlib()
    from matplotlib import pyplot

    line, others = _roles(factors)
    names = _values(sweep, members, line)
    groups = in_groups(names) if len(others) < 2 else {"": names}
    across = [_values(sweep, members, name) for name in others]
    rows, columns = _grid(list(groups), across)
    width, height = _PANEL
    figure, grid = pyplot.subplots(
        len(rows),
        len(columns),
        figsize=(max(6.0, width * len(columns)), max(4.0, height * len(rows) + 0.8)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    looks = styles(names)
    for number, row in enumerate(rows):
        for index, column in enumerate(columns):
            chosen = dict(zip(others[::-1], (column, row), strict=False)) if others else {}
            group = row if len(others) == 1 else column if not others else ""
            here = [
                (place, run)
                for place, run in members
                if place[line] in groups[group]
                and all(place[name] == value for name, value in chosen.items() if name in others)
            ]
            axes = grid[number][index]
            _panel(axes, [(place[line], run) for place, run in here], looks)
            title = [f"{name} {value}" for name, value in chosen.items() if name in others]
            axes.set_title(", ".join(filter(None, [group, *title])), fontsize="medium")
    grid[0][0].set_ylim(*_limits([run for _, run in members]))
    bad = {place[line] for place, run in members if run.status == Status.DIVERGED}
    _legends(grid, groups, looks, bad, beside=bool(others))
    setting = notes.trained([run for _, run in members])
    figure.suptitle(heading(sweep.title, setting), fontsize="medium")
    figure.supxlabel("updates (lines: training loss, mean of 5 of the log; markers: validation)")
    figure.supylabel(METRICS["nll_loss"])
    return figure


def _roles(factors: Sequence[Factor]) -> tuple[str, list[str]]:
    names = [factor.name for factor in factors]
    schemes = [factor.name for factor in factors if "residual-scheme" in factor.sets]
    line = schemes[0] if schemes else names[-1]
    return line, [name for name in names if name != line]


def _values(sweep: Sweep, members: Sequence[Placed], factor: str) -> list[Key]:
    return in_order([place[factor] for place, _ in members], sweep, factor)


def _grid(groups: list[str], across: Sequence[list[Key]]) -> tuple[list[Key], list[Key]]:
    """What rows and columns stand for."""
    if not across:
        return [""], groups
    return (groups, across[0]) if len(across) == 1 else (across[0], across[1])


def _panel(axes: Any, runs: Sequence[tuple[Key, Result]], looks: dict[Key, Style]) -> None:
    for name, run in runs:
        look = looks[name]
        points = smoothed(run.train_nll)
        if points:
            # a single point of a line would not be seen
            alone = {"marker": "."} if len(points) == 1 else {}
            axes.plot(*zip(*points, strict=True), color=look.colour, linewidth=1.4, **alone)
        valid = [point for point in run.valid_nll if math.isfinite(point[1])]
        if valid:
            axes.plot(
                *zip(*valid, strict=True),
                color=look.colour,
                marker=look.marker,
                markersize=4,
                linestyle="none",
            )
        if run.status == Status.DIVERGED and points:
            axes.plot(*points[-1], color=look.colour, zorder=4, **CROSS)
    clean(axes)


def _limits(runs: Sequence[Result]) -> tuple[float, float]:
    """From the lowest loss to the highest after the first half of a run."""
    values = []
    for run in runs:
        points = [*smoothed(run.train_nll), *run.valid_nll]
        values += [loss for update, loss in points if update >= run.updates / 2]
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), min(max(finite), min(finite) + _HIGHEST)
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _legends(
    grid: Any,
    groups: dict[str, list[Key]],
    looks: dict[Key, Style],
    diverged: set[Key],
    beside: bool,
) -> None:
    """One legend a group: beside its row, or in its column."""
    from matplotlib.lines import Line2D

    for number, members in enumerate(groups.values()):
        handles: list[Any] = [
            Line2D([], [], color=looks[name].colour, marker=looks[name].marker, label=name)
            for name in members
        ]
        if diverged & set(members):
            handles.append(
                Line2D([], [], color="grey", linestyle="none", label="diverged", **CROSS)
            )
        axes = grid[number][-1] if beside else grid[0][number]
        outside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {}
        axes.legend(handles=handles, frameon=False, fontsize="x-small", **outside)
