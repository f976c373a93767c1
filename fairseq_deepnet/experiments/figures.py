"""A sweep's results as images: a measure against depth, and loss curves side by side.

Schemes are grouped as in the paper's figure 6, by where LayerNorm stands; within a group each has
a colour and a marker of its own, the same in every panel. A run that diverged is a cross.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from fairseq_deepnet.divergence.verdict import smoothed
from fairseq_deepnet.experiments import notes
from fairseq_deepnet.experiments.definition import BY_MEASURE, Sweep
from fairseq_deepnet.experiments.paper import GROUPS, Key, group_of, is_number
from fairseq_deepnet.experiments.result_tables import Entry, Placed, ResultTable, placed
from fairseq_deepnet.experiments.runs import RunResult, Status
from fairseq_deepnet.tools.plotting.curves import METRICS
from fairseq_deepnet.tools.plotting.style import CROSS, Look, clean, handle, look_of, new_figure

_DEPTH_PANEL: Final = (4.3, 3.9)
_CURVES_PANEL: Final = (3.5, 2.7)
"""Width and height of one panel in inches."""
_HIGHEST: Final = 3.0
"""Bits a token above the lowest loss that curves show."""
_DIVERGED: Final = functools.partial(handle, "diverged", color="grey", linestyle="none", **CROSS)


class Figure(NamedTuple):
    """An image that is drawn when it is wanted."""

    name: str
    draw: Callable[[], Any]


def of_sweep(
    sweep: Sweep, tables: Sequence[ResultTable], results: Sequence[RunResult]
) -> list[Figure]:
    """Return the figures of a sweep: one a table with depth on a side, then the loss curves, one
    for all panels that have the same factors.
    """
    figures = [
        Figure(table.name, functools.partial(against_depth, table))
        for table in tables
        if table.depth and table.has_values
    ]
    panels: dict[tuple[str, ...], list[str]] = {}
    for panel in sweep.panels:
        panels.setdefault(tuple(factor.name for factor in panel.factors), []).append(panel.name)
    for factor_names, names in panels.items():
        members = [item for item in placed(sweep, names, results) if item[1].train_nll]
        if members and len(factor_names) <= 3:
            name = "curves" if len(panels) == 1 else f"curves-{names[0]}"
            figures.append(Figure(name, functools.partial(loss_curves, sweep, names[0], members)))
    return figures


def looks_of(names: Sequence[Key]) -> dict[Key, Look]:
    """Return a look for each line, counted within its group, so that few are needed; a scheme has
    the same in every figure, whichever others are drawn.
    """
    from fairseq_deepnet.schemes import SCHEMES

    found: dict[Key, Look] = {}
    seen: dict[str, int] = {}
    for name in dict.fromkeys([*SCHEMES, *names] if set(names) & set(SCHEMES) else names):
        number = seen.get(group_of(name), 0)
        seen[group_of(name)] = number + 1
        found[name] = look_of(number)
    return found


def _in_groups(names: Sequence[Key]) -> dict[str, list[Key]]:
    """Return lines by group, in the order of the paper's figure 6, those of no group last."""
    groups = {g: [n for n in names if group_of(n) == g] for g in (*GROUPS.values(), "")}
    return {group: members for group, members in groups.items() if members}


def _head(figure: Any, title: str, setting: str) -> None:
    """Write above a figure its title, and how the runs were trained."""
    figure.suptitle(f"{title}\n{setting}", fontsize="medium", wrap=True)


# A measure against depth.


def against_depth(table: ResultTable) -> Any:
    """Draw a measure against depth: a panel a group, a line a scheme, the paper's dotted."""
    lines = {
        line: list(entries.values())
        for line, entries in table.by_depth().items()
        if any(entry.seeds for entry in entries.values())
    }
    names, headings = table.sides
    depths = [key for key in headings if is_number(key)]
    groups = _in_groups(list(lines))
    width, height = _DEPTH_PANEL
    size = (max(6.0, width * len(groups)), height + 1.3)
    figure, grid = new_figure(1, len(groups), size, share=True)
    looks = looks_of(list(lines))
    # any two points lie on a line
    laws = {line: law for line, law in table.laws.items() if len(law.residuals) > 2}
    limits = _limits([entry for found in lines.values() for entry in found], table.level)
    for axes, (group, members) in zip(grid[0], groups.items(), strict=True):
        axes.set_ylim(*limits)
        for number, line in enumerate(members):
            # side by side, so that bars and crosses at one depth do not hide each other
            shift = 1.04 ** (number - (len(members) - 1) / 2)
            places = [float(depth) * shift for depth in depths]
            _draw_means(axes, places, lines[line], names[line], looks[line], limits)
            if line in laws:
                fitted = [depth for depth, _ in laws[line].residuals]
                ends = [min(fitted), max(fitted)]
                look = {"color": looks[line].color, "linewidth": 1, "zorder": 1}
                axes.plot(ends, list(map(laws[line].at, ends)), "--", **look)
        axes.set_xscale("log")
        axes.set_xticks([float(depth) for depth in depths], labels=depths, fontsize="small")
        axes.minorticks_off()
        axes.set_xlabel("layers a side" if "-" in headings[depths[0]] else "layers")
        axes.set_title(group)
        clean(axes)
        axes.set_xlim(float(depths[0]) / 1.25, float(depths[-1]) * 1.25)
        entries = [entry for line in members for entry in lines[line]]
        _finish(axes, table, entries, has_laws=any(line in laws for line in members))
    several = table.layout.columns == BY_MEASURE and len(table.layout.measures) > 1
    axis = table.measure(next(iter(table.columns))).axis
    grid[0][0].set_ylabel(" ".join(table.layout.measures) if several else axis)
    _head(figure, table.title.partition(": ")[0], table.setting)
    seeds = max((len(entry.seeds) for entry in table.entries.values()), default=1)
    means = f"means of up to {seeds} seeds that did not diverge; bars: sample standard deviation"
    figure.supxlabel("one seed" if seeds < 2 else means, fontsize="small")
    return figure


def _draw_means(
    axes: Any,
    places: Sequence[float],
    entries: Sequence[Entry],
    name: str,
    look: Look,
    limits: tuple[float, float],
) -> None:
    """Draw means over seeds with spread, crosses for runs that diverged, the paper's numbers."""
    # a depth that was not run does not part the line, one where all diverged does
    drawn = [(x, e) for x, e in zip(places, entries, strict=True) if e.all_bad or e.values]
    means = [math.nan if e.all_bad or e.ours is None else e.ours for _, e in drawn]
    bars = [0.0 if e.all_bad or e.deviation is None else e.deviation for _, e in drawn]
    style = {**look._asdict(), "markersize": 5, "linewidth": 1.6, "capsize": 3}
    axes.errorbar([place for place, _ in drawn], means, bars, label=name, **style)
    for place, entry in zip(places, entries, strict=True):
        for seed in entry.seeds:
            if seed.status is Status.DIVERGED:
                # at its value; at an edge where that is beyond it; at the lower one without any
                value = limits[0] if seed.value is None else seed.value
                height = (
                    min(max(value, limits[0]), limits[1]) if math.isfinite(value) else limits[1]
                )
                axes.plot(place, height, color=look.color, clip_on=False, zorder=4, **CROSS)
    if any(entry.paper is not None for entry in entries):
        theirs = [math.nan if entry.paper is None else entry.paper for entry in entries]
        hollow = {"markerfacecolor": "none", "markersize": 5, "linewidth": 1.1, "linestyle": ":"}
        axes.plot(places, theirs, **{**look._asdict(), **hollow})


def _limits(entries: Sequence[Entry], level: float | None) -> tuple[float, float]:
    """Return the range of what did not diverge, and of what lies as far again beyond."""
    sound = [value for entry in entries if not entry.all_bad for value in entry.values]
    theirs = [entry.paper for entry in entries if entry.paper is not None]
    everything = [seed.value for entry in entries for seed in entry.seeds if seed.value is not None]
    everything += [level] if level is not None else []
    finite = [value for value in everything if math.isfinite(value)]
    base = sound + theirs or finite or [0.0, 1.0]
    span = max(max(base) - min(base), 1.0)
    near = [value for value in finite if min(base) - span <= value <= max(base) + span]
    low, high = min(base + near), max(base + near)
    return low - 0.08 * (high - low + 0.1), high + 0.08 * (high - low + 0.1)


def _finish(
    axes: Any, table: ResultTable, entries: Sequence[Entry], has_laws: bool = False
) -> None:
    """Draw the line of a unigram model, and the legend."""
    level = table.level
    if level is not None and axes.get_ylim()[0] < level < axes.get_ylim()[1]:
        axes.axhline(level, color="grey", linestyle="--", linewidth=1)
        look = {"fontsize": "x-small", "color": "dimgrey", "va": "top"}
        place = axes.get_yaxis_transform()
        axes.text(0.02, level, "word frequencies alone", transform=place, **look)
    handles = axes.get_legend_handles_labels()[0]
    handles += [_DIVERGED()] * any(entry.count(Status.DIVERGED) for entry in entries)
    if any(entry.paper is not None for entry in entries):
        handles.append(handle("the paper's", color="grey", linestyle=":"))
    if has_laws:
        handles.append(handle("A log(d) + B, fitted", color="grey", linestyle="--"))
    layout = table.layout  # schemes and lines of the paper have names that speak for themselves
    is_bare = layout.paper is None and not table.groups and table.depth == layout.columns
    title = layout.rows if is_bare else None
    style = {"frameon": False, "fontsize": "small", "ncols": 3, "title": title}
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.14), **style)


# Loss over updates.


def loss_curves(sweep: Sweep, panel: str, members: Sequence[Placed]) -> Any:
    """Draw the training losses as lines, the validation losses as markers, a cross where a run
    diverged.

    Lines are the values of the factor that sets the scheme, otherwise of the last factor. A second
    factor makes columns, a third rows; schemes are parted by groups where there is room.
    """
    factors = sweep.panel(panel).factors
    schemes = [factor.name for factor in factors if factor.is_scheme]
    line = schemes[0] if schemes else factors[-1].name
    others = [factor.name for factor in factors if factor.name != line]

    def values(factor: str) -> list[Key]:
        return sweep.in_order([place[factor] for place, _ in members], factor)

    names = values(line)
    groups = _in_groups(names) if len(others) < 2 else {"": names}
    looks = looks_of(names)
    rows = values(others[0]) if len(others) > 1 else list(groups) if others else [""]
    columns = values(others[-1]) if others else list(groups)
    width, height = _CURVES_PANEL
    size = (max(6.0, width * len(columns)), max(4.0, height * len(rows) + 0.8))
    figure, grid = new_figure(len(rows), len(columns), size, share=True)
    for number, row in enumerate(rows):
        for index, column in enumerate(columns):
            group = {0: column, 1: row}.get(len(others), "")
            chosen = dict(zip(others[::-1], (column, row), strict=False))
            axes = grid[number][index]
            for place, run in members:
                fits = all(place[name] == value for name, value in chosen.items())
                if fits and place[line] in groups[group]:
                    _draw_losses(axes, run, looks[place[line]])
            clean(axes)
            title = [group, *(f"{name} {value}" for name, value in chosen.items())]
            axes.set_title(", ".join(filter(None, title)), fontsize="medium")
    runs = [run for _, run in members]
    grid[0][0].set_ylim(*_loss_limits(runs))
    bad = {place[line] for place, run in members if run.status is Status.DIVERGED}
    for number, lines in enumerate(groups.values()):  # a legend beside its row, or in its column
        handles = [handle(name, **looks[name]._asdict()) for name in lines]
        handles += [_DIVERGED()] * bool(bad & set(lines))
        axes = grid[number][-1] if others else grid[0][number]
        outside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if others else {}
        axes.legend(handles=handles, frameon=False, fontsize="x-small", **outside)
    _head(figure, sweep.title, notes.trained(runs))
    figure.supxlabel("updates (lines: training loss, mean of 5 of the log; markers: validation)")
    figure.supylabel(METRICS["nll_loss"])
    return figure


def _draw_losses(axes: Any, run: RunResult, look: Look) -> None:
    points = smoothed(run.train_nll)
    if points:
        # a single point of a line would not be seen
        alone = {"marker": "."} if len(points) == 1 else {}
        style = {"color": look.color, "linestyle": look.linestyle, "linewidth": 1.4}
        axes.plot(*zip(*points, strict=True), **style, **alone)
    valid = [point for point in run.valid_nll if math.isfinite(point[1])]
    if valid:
        markers = look._replace(linestyle="none")._asdict()
        axes.plot(*zip(*valid, strict=True), **markers, markersize=4)
    if run.status is Status.DIVERGED and points:
        axes.plot(*points[-1], color=look.color, zorder=4, **CROSS)


def _loss_limits(runs: Sequence[RunResult]) -> tuple[float, float]:
    """Return the lowest loss and the highest one after the first half of a run, with a margin."""
    values = []
    for run in runs:
        points = [*smoothed(run.train_nll), *run.valid_nll]
        values += [loss for update, loss in points if update >= run.updates / 2]
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), min(max(finite), min(finite) + _HIGHEST)
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin
