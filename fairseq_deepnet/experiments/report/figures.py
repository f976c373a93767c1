"""A sweep's results as images: a measure against depth, and loss curves side by side.

Schemes are grouped as in the paper's figure 6, by where LayerNorm stands; within a group each has
a colour (Okabe and Ito's, which colour-blind readers tell apart) and a marker of its own, the same
in every panel. A run that diverged is a cross.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairseq_deepnet.experiments.paper import DIVERGED, Key
from fairseq_deepnet.experiments.report.measures import MEASURES
from fairseq_deepnet.experiments.report.own_tables import GROUPS, group_of
from fairseq_deepnet.experiments.report.results import Result
from fairseq_deepnet.experiments.report.table import Entry, Seed, Table, is_number
from fairseq_deepnet.experiments.sweeps.definition import Sweep
from fairseq_deepnet.tools.plotting.style import COLOURS, clean, quiet_matplotlib

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "h")
CROSS: Final[dict[str, Any]] = {"marker": "x", "markersize": 8, "markeredgewidth": 2}
_PANEL: Final = (4.3, 3.9)
"""Width and height of one panel in inches."""


@dataclass(frozen=True)
class Figure:
    """An image that is drawn when it is wanted."""

    name: str
    draw: Callable[[], Any]


def of_sweep(sweep: Sweep, tables: Sequence[Table], results: Sequence[Result]) -> list[Figure]:
    """All figures of a sweep's results: one a table with depth on a side, and the loss curves."""
    from fairseq_deepnet.experiments.report import curves

    depths = {
        factor.name
        for panel in sweep.panels
        for factor in panel.factors
        if {"encoder-layers", "decoder-layers"} & factor.sets.keys()
    }
    figures = [
        Figure(table.name, lambda table=table: against_depth(table))  # type: ignore[misc]
        for table in tables
        if depths & {table.row_factor, table.column_factor} and table.has_values
    ]
    return figures + curves.of_sweep(sweep, results)


@dataclass(frozen=True)
class Style:
    """How a line looks."""

    colour: str
    marker: str


def styles(names: Sequence[Key]) -> dict[Key, Style]:
    """A style for each line, counted within its group, so that few are needed; a scheme has the
    same in every figure, whichever others are drawn.
    """
    from fairseq_deepnet.schemes import SCHEMES

    found: dict[Key, Style] = {}
    seen: dict[str, int] = {}
    for name in dict.fromkeys([*SCHEMES, *names] if set(names) & set(SCHEMES) else names):
        number = seen.get(group_of(name), 0)
        seen[group_of(name)] = number + 1
        found[name] = Style(COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)])
    return found


def in_groups(names: Sequence[Key]) -> dict[str, list[Key]]:
    """Lines by their group, in the order of the paper's figure 6; others in one without a name."""
    groups: dict[str, list[Key]] = {group: [] for group in (*GROUPS.values(), "")}
    for name in names:
        groups[group_of(name)].append(name)
    return {group: members for group, members in groups.items() if members}


def against_depth(table: Table) -> Any:
    """A table's measure against depth: a panel a group, a line a scheme, the paper's dotted."""
    quiet_matplotlib()
    from matplotlib import pyplot

    turned = is_number(next(iter(table.rows)))  # figure 6 has depths as rows
    lines = list(table.columns if turned else table.rows)
    depths = [key for key in (table.rows if turned else table.columns) if is_number(key)]
    names = table.columns if turned else table.rows

    def entries_of(line: Key) -> list[Entry]:
        pairs = [(depth, line) if turned else (line, depth) for depth in depths]
        return [table.entries[pair] for pair in pairs]

    lines = [line for line in lines if any(entry.seeds for entry in entries_of(line))]
    groups = in_groups(lines)
    width, height = _PANEL
    figure, grid = pyplot.subplots(
        1,
        len(groups),
        figsize=(max(6.0, width * len(groups)), height + 1.3),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    looks = styles(lines)
    limits = _limits([entry for line in lines for entry in entries_of(line)], table.level)
    for axes, (group, members) in zip(grid[0], groups.items(), strict=True):
        axes.set_ylim(*limits)
        for number, line in enumerate(members):
            # side by side, so that bars and crosses at one depth do not hide each other
            shift = 1.04 ** (number - (len(members) - 1) / 2)
            places = [float(depth) * shift for depth in depths]
            _line(axes, places, entries_of(line), names[line], looks[line], limits)
            law = table.laws.get(line)
            if law is not None:
                ends = [min(depth for depth, _ in law.residuals), max(d for d, _ in law.residuals)]
                fitted = [law.at(depth) for depth in ends]
                axes.plot(ends, fitted, "--", color=looks[line].colour, linewidth=1, zorder=1)
        _finish_depths(
            axes, depths, group, table, [e for line in members for e in entries_of(line)]
        )
    grid[0][0].set_ylabel(_axis_label(table))
    figure.suptitle(heading(table.title.partition(": ")[0], table.setting), fontsize="medium")
    figure.supxlabel(_caption(table), fontsize="small")
    return figure


def _line(
    axes: Any,
    places: Sequence[float],
    entries: Sequence[Entry],
    name: str,
    style: Style,
    limits: tuple[float, float],
) -> None:
    """Means over seeds with their spread; crosses for runs that diverged; the paper's numbers."""
    means = [math.nan if e.all_bad or e.ours is None else e.ours for e in entries]
    spreads = [0.0 if e.deviation is None or e.all_bad else e.deviation for e in entries]
    look = {"color": style.colour, "marker": style.marker}
    # a depth that was not run does not part the line, one where all diverged does
    drawn = [n for n, entry in enumerate(entries) if entry.all_bad or entry.ours is not None]
    axes.errorbar(
        [places[n] for n in drawn],
        [means[n] for n in drawn],
        [spreads[n] for n in drawn],
        **look,
        markersize=5,
        linewidth=1.6,
        capsize=3,
        label=name,
    )
    for place, entry in zip(places, entries, strict=True):
        for seed in entry.seeds:
            if seed.status == "diverged":
                height = _within(seed, limits)
                axes.plot(place, height, color=style.colour, clip_on=False, zorder=4, **CROSS)
    theirs = [
        float(e.published) if isinstance(e.published, int | float) else math.nan for e in entries
    ]
    if not all(map(math.isnan, theirs)):
        axes.plot(places, theirs, ":", **look, markerfacecolor="none", markersize=5, linewidth=1.1)


def _within(seed: Seed, limits: tuple[float, float]) -> float:
    """Where a diverged run's cross stands: at its value, at an edge where that is beyond it, and at
    the lower one where there is none.
    """
    if seed.value is None:
        return limits[0]
    if not math.isfinite(seed.value):
        return limits[1]
    return min(max(seed.value, limits[0]), limits[1])


def _limits(entries: Sequence[Entry], level: float | None) -> tuple[float, float]:
    """The range of what did not diverge; and what lies as far again beyond, or one bit or point."""
    sound = [value for entry in entries if not entry.all_bad for value in entry.values]
    theirs = [float(e.published) for e in entries if isinstance(e.published, int | float)]
    everything = [seed.value for entry in entries for seed in entry.seeds if seed.value is not None]
    everything += [level] if level is not None else []
    finite = [value for value in everything if math.isfinite(value)]
    base = sound + theirs or finite or [0.0, 1.0]
    span = max(max(base) - min(base), 1.0)
    near = [value for value in finite if min(base) - span <= value <= max(base) + span]
    low, high = min(base + near), max(base + near)
    return low - 0.08 * (high - low + 0.1), high + 0.08 * (high - low + 0.1)


def _finish_depths(
    axes: Any, depths: Sequence[Key], group: str, table: Table, entries: Sequence[Entry]
) -> None:
    from matplotlib.lines import Line2D

    axes.set_xscale("log")
    axes.set_xticks([float(depth) for depth in depths], labels=depths, fontsize="small")
    axes.minorticks_off()
    axes.set_xlabel("layers a side" if "-" in _depth_heading(table) else "layers")
    axes.set_title(group)
    clean(axes)
    if table.level is not None and axes.get_ylim()[0] < table.level < axes.get_ylim()[1]:
        axes.axhline(table.level, color="grey", linestyle="--", linewidth=1)
        axes.annotate(
            "word frequencies alone",
            (0.02, table.level),
            xycoords=("axes fraction", "data"),
            fontsize="x-small",
            color="dimgrey",
            va="top",
        )
    handles = axes.get_legend_handles_labels()[0]
    axes.set_xlim(float(depths[0]) / 1.25, float(depths[-1]) * 1.25)
    if any(entry.count(DIVERGED) for entry in entries):
        handles.append(Line2D([], [], color="grey", linestyle="none", label="diverged", **CROSS))
    if any(isinstance(entry.published, int | float) for entry in entries):
        handles.append(Line2D([], [], color="grey", linestyle=":", label="the paper's"))
    if table.laws:
        fitted = Line2D([], [], color="grey", linestyle="--", label="A log(d) + B, fitted")
        handles.append(fitted)
    axes.legend(
        handles=handles,
        frameon=False,
        fontsize="small",
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=3,
    )


def _depth_heading(table: Table) -> str:
    headings = {**table.rows, **table.columns}
    return next(text for key, text in headings.items() if is_number(key))


def _axis_label(table: Table) -> str:
    measure = MEASURES.get(table.measure)
    return table.measure if measure is None else measure.axis


def _caption(table: Table) -> str:
    seeds = max((len(entry.seeds) for entry in table.entries.values()), default=1)
    if seeds < 2:
        return "one seed"
    return f"means of up to {seeds} seeds that did not diverge; bars: sample standard deviation"


def heading(title: str, setting: str) -> str:
    """What stands above a figure: its title, and how the runs were trained."""
    import textwrap

    return "\n".join([*textwrap.wrap(title, 90), *textwrap.wrap(setting, 110)])
