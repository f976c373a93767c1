"""A sweep's results as images: a measure against depth, and loss curves side by side.

Schemes are grouped as in the paper's figure 6, by where LayerNorm is; within a group each has a
colour and a marker of its own, the same in every panel. A run that diverged is a cross.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from fairseq_deepnet.experiments.paper import GROUPS, Key, group_of, is_number, ordered
from fairseq_deepnet.experiments.results import Run, Status, smoothed
from fairseq_deepnet.experiments.tables import MEASURES, Entry, Table
from fairseq_deepnet.tools.plotting.style import CROSS, Look, clean, handle, look_of, new_figure

_DEPTH_PANEL: Final = (4.3, 3.9)
_CURVES_PANEL: Final = (3.5, 2.7)
"""Width and height of one panel in inches."""
_HIGHEST: Final = 3.0
"""Bits per token above the lowest loss that curves show."""
_DIVERGED: Final = functools.partial(handle, "diverged", color="grey", linestyle="none", **CROSS)


def of_sweep(tables: Sequence[Table], runs: Sequence[Run]) -> dict[str, Callable[[], Any]]:
    """Return the figures of a sweep by name: one per table with depth on a side, then the loss
    curves, one for all panels with the same factors.
    """
    figures: dict[str, Callable[[], Any]] = {
        table.name: functools.partial(against_depth, table)
        for table in tables
        if table.depth and table.has_values
    }
    panels: dict[tuple[str, ...], dict[str, list[Run]]] = {}
    for run in runs:
        for place in run.cell["places"] if run.train_nll else ():
            by_panel = panels.setdefault(tuple(place["values"]), {})
            by_panel.setdefault(place["panel"], []).append(run)
    for factors, by_panel in panels.items():
        if len(factors) <= 3:
            members = list({id(run): run for found in by_panel.values() for run in found}.values())
            name = "curves" if len(panels) == 1 else f"curves-{next(iter(by_panel))}"
            figures[name] = functools.partial(loss_curves, factors, members)
    return figures


def looks_of(names: Sequence[Key]) -> dict[Key, Look]:
    """Return a look for each line, counted within its group, so that few are needed; a scheme has
    the same in every figure, whichever others are drawn.
    """
    from fairseq_deepnet.schemes import SCHEMES

    looks: dict[Key, Look] = {}
    seen: dict[str, int] = {}
    for name in dict.fromkeys([*SCHEMES, *names] if set(names) & set(SCHEMES) else names):
        number = seen.get(group_of(name), 0)
        seen[group_of(name)] = number + 1
        looks[name] = look_of(number)
    return looks


def _in_groups(names: Sequence[Key]) -> dict[str, list[Key]]:
    """Return lines by group, in the order of the paper's figure 6, those of no group last."""
    groups = {g: [n for n in names if group_of(n) == g] for g in (*GROUPS.values(), "")}
    return {group: members for group, members in groups.items() if members}


def against_depth(table: Table) -> Any:
    """Draw a measure against depth: a panel per group, a line per scheme, the paper's dotted."""
    by_depth = table.by_depth()
    lines = {
        line: entries
        for line, entries in by_depth.items()
        if any(len(entry.runs) for entry in entries.values())
    }
    is_row = table.depth == table.row
    names, headings = (table.columns, table.rows) if is_row else (table.rows, table.columns)
    depths = [key for key in headings if is_number(key)]
    groups = _in_groups(list(lines))
    size = (max(6.0, _DEPTH_PANEL[0] * len(groups)), _DEPTH_PANEL[1] + 1.3)
    figure, grid = new_figure(1, len(groups), size, share=True)
    looks = looks_of(list(lines))
    shown = [entry for entries in lines.values() for entry in entries.values()]
    limits = axis_limits(shown, table.level)
    for axes, (group, members) in zip(grid[0], groups.items(), strict=True):
        axes.set_ylim(*limits)
        for number, line in enumerate(members):
            # side by side, so that bars and crosses at one depth do not hide each other
            shift = 1.04 ** (number - (len(members) - 1) / 2)
            entries = {depth * shift: entry for depth, entry in lines[line].items()}
            _draw_means(axes, entries, names[line], looks[line], limits)
            law = table.laws.get(line)
            if law is not None and len(law.residuals) > 2:  # any two points lie on a line
                ends = [min(law.residuals)[0], max(law.residuals)[0]]
                look = {"color": looks[line].color, "linewidth": 1, "zorder": 1}
                axes.plot(ends, list(map(law.at, ends)), "--", **look)
        axes.set_xscale("log")
        axes.set_xticks([float(depth) for depth in depths], labels=depths, fontsize="small")
        axes.minorticks_off()
        axes.set_xlabel("layers per side" if "-" in headings[depths[0]] else "layers")
        axes.set_title(group)
        axes.set_xlim(float(depths[0]) / 1.25, float(depths[-1]) * 1.25)
        clean(axes)
        _finish(axes, table, [e for line in members for e in lines[line].values()])
    measures = dict.fromkeys(entry.measure for entry in table.entries.values())
    grid[0][0].set_ylabel(" ".join(MEASURES[m].axis for m in list(measures)[:1]))
    figure.suptitle(
        f"{table.title.partition(': ')[0]}\n{table.setting}", fontsize="medium", wrap=True
    )
    seeds = max((len(entry.runs) for entry in shown), default=1)
    means = f"means of up to {seeds} seeds that did not diverge; bars: sample standard deviation"
    figure.supxlabel("one seed" if seeds < 2 else means, fontsize="small")
    return figure


def _draw_means(
    axes: Any, entries: dict[float, Entry], name: str, look: Look, limits: tuple[float, float]
) -> None:
    """Draw means over seeds with spread, crosses for runs that diverged, the paper's numbers."""
    # a depth that was not run does not interrupt the line, one where all diverged does
    drawn = {x: e for x, e in entries.items() if e.all_bad or e.ours is not None}
    means = [math.nan if e.all_bad or e.ours is None else e.ours for e in drawn.values()]
    bars = [0.0 if e.all_bad or e.deviation is None else e.deviation for e in drawn.values()]
    style = {**look._asdict(), "markersize": 5, "linewidth": 1.6, "capsize": 3}
    axes.errorbar(list(drawn), means, bars, label=name, **style)
    for x, entry in entries.items():
        for value in entry.values[entry.runs["status"] == Status.DIVERGED]:
            # without a number at the bad edge, with one beyond the limits at the nearer edge
            bad = limits[0] if "more is better" in MEASURES[entry.measure].axis else limits[1]
            height = bad if math.isnan(value) else min(max(value, limits[0]), limits[1])
            axes.plot(x, height, color=look.color, clip_on=False, zorder=4, **CROSS)
    theirs = [e.paper if isinstance(e.paper, int | float) else math.nan for e in entries.values()]
    if not all(map(math.isnan, theirs)):
        hollow = {"markerfacecolor": "none", "markersize": 5, "linewidth": 1.1, "linestyle": ":"}
        axes.plot(list(entries), theirs, **{**look._asdict(), **hollow})


def axis_limits(entries: Sequence[Entry], level: float | None) -> tuple[float, float]:
    """Return axis limits: the range of finite values of sound runs and of the paper, widened to
    diverged values and to `level` within one such range of it.
    """
    sound = [value for e in entries if not e.all_bad for value in e.counted]
    sound += [e.paper for e in entries if isinstance(e.paper, int | float)]
    everything = [value for e in entries for value in e.values if math.isfinite(value)]
    everything += [] if level is None else [level]
    base = sound or everything or [0.0, 1.0]
    span = max(max(base) - min(base), 1.0)
    near = [value for value in everything if min(base) - span <= value <= max(base) + span]
    low, high = min(base + near), max(base + near)
    return low - 0.08 * (high - low + 0.1), high + 0.08 * (high - low + 0.1)


def _finish(axes: Any, table: Table, entries: Sequence[Entry]) -> None:
    """Draw the line of a unigram model, and the legend."""
    level = table.level
    if level is not None and axes.get_ylim()[0] < level < axes.get_ylim()[1]:
        axes.axhline(level, color="grey", linestyle="--", linewidth=1)
        look = {"fontsize": "x-small", "color": "dimgrey", "va": "top"}
        place = axes.get_yaxis_transform()
        axes.text(0.02, level, "word frequencies alone", transform=place, **look)
    handles = axes.get_legend_handles_labels()[0]
    handles += [_DIVERGED()] if any(entry.count(Status.DIVERGED) for entry in entries) else []
    if any(isinstance(entry.paper, int | float) for entry in entries):
        handles.append(handle("the paper's", color="grey", linestyle=":"))
    if table.laws:
        handles.append(handle("A log(d) + B, fitted", color="grey", linestyle="--"))
    is_bare = table.published is None and not table.groups and table.depth == table.column
    style = {"frameon": False, "fontsize": "small", "ncols": 3}
    title = table.row if is_bare else None  # names of schemes speak for themselves
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.14), title=title, **style
    )


def loss_curves(factors: tuple[str, ...], runs: Sequence[Run]) -> Any:
    """Draw the training losses as lines, the validation losses as markers, a cross where a run
    diverged.

    Lines are the schemes, otherwise the values of the last factor. A second factor makes columns, a
    third rows; schemes are divided by groups where there is room.
    """
    line = "scheme" if "scheme" in factors else factors[-1]
    others = [factor for factor in factors if factor != line]
    members = [
        (next(p["values"] for p in run.cell["places"] if tuple(p["values"]) == factors), run)
        for run in runs
    ]

    def values(factor: str) -> list[Key]:
        return ordered(list(dict.fromkeys(place[factor] for place, _ in members)))

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
    grid[0][0].set_ylim(*_loss_limits(runs))
    bad = {place[line] for place, run in members if run.status is Status.DIVERGED}
    for number, lines in enumerate(groups.values()):  # a legend beside its row, or in its column
        handles = [handle(name, **looks[name]._asdict()) for name in lines]
        handles += [_DIVERGED()] if bad & set(lines) else []
        axes = grid[number][-1] if others else grid[0][number]
        outside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if others else {}
        axes.legend(handles=handles, frameon=False, fontsize="x-small", **outside)
    figure.suptitle(str(runs[0].cell.get("title", "")), fontsize="medium", wrap=True)
    figure.supxlabel("updates (lines: training loss, mean of 5 in the log; markers: validation)")
    figure.supylabel("negative log-likelihood (bits per token)")
    return figure


def _draw_losses(axes: Any, run: Run, look: Look) -> None:
    points = smoothed(run.train_nll)
    if points:
        # a single point of a line would be invisible
        alone = {"marker": "."} if len(points) == 1 else {}
        style = {"color": look.color, "linestyle": look.linestyle, "linewidth": 1.4}
        axes.plot(*zip(*points, strict=True), **style, **alone)
    valid = [point for point in run.valid_nll if math.isfinite(point[1])]
    if valid:
        markers = look._replace(linestyle="none")._asdict()
        axes.plot(*zip(*valid, strict=True), **markers, markersize=4)
    if run.status is Status.DIVERGED and points:
        axes.plot(*points[-1], color=look.color, zorder=4, **CROSS)


def _loss_limits(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the lowest loss and the highest one after the first half of a run, with a margin."""
    values = []
    for run in runs:
        points = [*smoothed(run.train_nll), *run.valid_nll]
        values += [loss for update, loss in points if update >= run.updates / 2]
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), min(max(finite), min(finite) + _HIGHEST)
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin
