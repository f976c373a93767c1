"""Per-layer quantities as images: heat maps of layers x updates, and profiles by layer.

The panels of one quantity share their colours, so that runs and sides can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fairseq_deepnet.tools.plotting.runs import SIDES, Grid, Key, Run
from fairseq_deepnet.tools.plotting.scales import (
    Scale,
    axis,
    chosen_updates,
    columns,
    main_part,
    scale_of,
)
from fairseq_deepnet.tools.plotting.style import COLOURS, clean

MAP: Final = "viridis"
BROKEN: Final = "#d62728"
"""Colour of what is not finite."""
ABSENT: Final = "#e4e4e4"
"""Colour of what was not measured."""
_COLUMNS: Final = 400
"""An image has no room for more."""

Panel = tuple[Run, str, Grid]


def panels_of(runs: Sequence[Run], quantity: str, part: str | None) -> tuple[str, list[Panel]]:
    """The part that is drawn, and a panel for each run and side that has it."""
    parts = [key.part for run in runs for key in run.grids if key.quantity == quantity]
    if not parts:
        return "", []
    if part is not None and part not in parts:
        known = ", ".join(dict.fromkeys(parts))
        raise ValueError(f"--part {part}: {quantity} was measured of {known}")
    part = part or main_part(parts)
    keys = [Key(quantity, side, part) for side in SIDES]
    return part, [
        (run, key.side, run.grids[key]) for run in runs for key in keys if key in run.grids
    ]


def draw_maps(figure: Any, grid: Sequence[Any], panels: Sequence[Panel], quantity: str) -> None:
    """Heat maps into given axes, which share a colour bar."""
    scale = scale_of(panel.values for _, _, panel in panels)
    image = None
    for axes, (run, side, values) in zip(grid, panels, strict=False):
        image = draw_map(axes, values.take(columns(values, _COLUMNS, run.events)), scale)
        mark_events(axes, [(run, BROKEN)])
        axes.set_title(f"{run.name}, {side}", fontsize="medium")
        axes.set_ylabel("layer (1: at the input)", fontsize="small")
        axes.set_xlabel("updates", fontsize="small")
    if image is not None:
        bar = figure.colorbar(image, ax=list(grid), extend="both", pad=0.015, aspect=25)
        bar.set_label(axis(quantity), fontsize="small")


def draw_map(axes: Any, grid: Grid, scale: Scale) -> Any:
    """One heat map; returns what a colour bar is made of."""
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    norm = (LogNorm if scale.is_log else Normalize)(scale.low, scale.high)
    edges = edges_of(grid.updates)
    layers = np.arange(grid.layers + 1) + 0.5
    values = np.where(grid.values <= 0, scale.low, grid.values) if scale.is_log else grid.values
    broken = grid.given & ~np.isfinite(values)
    axes.set_facecolor(ABSENT)
    image = axes.pcolormesh(
        edges, layers, np.ma.masked_invalid(values).T, norm=norm, cmap=MAP, rasterized=True
    )
    if broken.any():
        shown = np.ma.masked_where(~broken, np.ones_like(values))
        axes.pcolormesh(edges, layers, shown.T, cmap=ListedColormap([BROKEN]), rasterized=True)
    axes.set_yticks(layer_ticks(grid.layers))
    return image


def edges_of(updates: Any) -> Any:
    """Borders half-way between neighbouring updates, (U + 1) for (U)."""
    centres = np.asarray(updates, dtype=np.float64)
    steps = np.diff(centres) if len(centres) > 1 else np.ones(1)
    inner = centres[:-1] + np.diff(centres) / 2
    return np.concatenate([[centres[0] - steps[0] / 2], inner, [centres[-1] + steps[-1] / 2]])


def layer_ticks(layers: int) -> list[int]:
    """Whole layers, the first and the last among them."""
    step = next(
        step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if layers / step <= 10 or step == 500
    )
    inner = [
        tick
        for tick in range(step, layers, step)
        if tick > step / 2 + 1 and layers - tick >= step / 2
    ]
    return sorted({1, *inner, layers})


def mark_events(axes: Any, runs: Sequence[tuple[Run, str]]) -> None:
    """Draw a dashed line where an event began, with a triangle at the top that a legend names."""
    for run, colour in runs:
        kinds = dict.fromkeys(event.finding.kind.words for event in run.events if not event.is_end)
        label = f"{run.name}, divergence watch: {', '.join(kinds)}"
        # a recovery has the start of its trouble
        for update in sorted({event.finding.started for event in run.events})[:20]:
            axes.axvline(update, color=colour, linestyle=(0, (4, 3)), linewidth=1, alpha=0.8)
            axes.plot(
                update,
                1.0,
                marker="v",
                color=colour,
                markeredgecolor="white",
                markersize=8,
                linestyle="none",
                label=label,
                transform=axes.get_xaxis_transform(),
                clip_on=False,
                zorder=5,
            )
            label = "_nolegend_"


def draw_profiles(
    grid: Sequence[Any], runs: Sequence[Run], panels: Sequence[Panel], quantity: str
) -> None:
    """Values by layer at a few updates, a panel a side: a colour a run, later updates darker."""
    names = [run.name for run in runs]
    scale = scale_of(values.values for _, _, values in panels)
    sides = [side for side in SIDES if any(side == panel for _, panel, _ in panels)]
    for axes, side in zip(grid, sides, strict=False):
        for run, _, values in (panel for panel in panels if panel[1] == side):
            chosen = chosen_updates(values)
            for number, index in enumerate(chosen, 1):
                axes.plot(
                    np.arange(values.layers) + 1,
                    values.values[index],
                    color=COLOURS[names.index(run.name) % len(COLOURS)],
                    alpha=0.25 + 0.75 * number / len(chosen),
                    linewidth=0.8 + 1.2 * number / len(chosen),
                    marker="." if values.layers <= 30 else None,
                    label=f"{run.name}, update {values.updates[index]:,}",
                )
        if scale.is_log:
            axes.set_yscale("log")
        clean(axes)
        axes.set_title(f"by layer, {side}", fontsize="medium")
        axes.set_xlabel("layer (1: at the input)", fontsize="small")
        axes.set_ylabel(axis(quantity), fontsize="small")
        axes.set_xticks(
            layer_ticks(max(values.layers for _, where, values in panels if where == side))
        )
        axes.legend(frameon=False, fontsize="x-small")
