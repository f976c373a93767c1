"""The figures: which run is which line, what is on the axes, and what the paper has there.

A panel is one plot of the paper's with its lines; a line's key is its row in paper.yaml. An
iteration i, counted from 0, is the pass after i updates: the model update after update i, and
activations and gradients of update i + 1, which sees the parameters of i updates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.analysis import runs as reading
from fairseq_deepnet.experiments.analysis.runs import Run
from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.monitoring.records import Record

BOTH: Final = ("encoder", "decoder")
UPDATES: Final = {"fig3a": "26-30", "fig3b": "1-5", "fig4": "26-30", "fig5": "5"}
"""Updates that a figure is taken at, where the paper does not state them."""
STOCK: Final = "-stock"
"""What the name of a run with `--init stock` has in it."""
OWN_NAMES: Final = {
    "post-ln-stock": "Post-LN, fairseq's start",
    "post-ln-stock_warmup": "Post-LN, warm-up, fairseq's start",
    "post-ln-stock_no-warmup": "Post-LN, no warm-up, fairseq's start",
}
"""Lines that the paper does not have."""
_MANY: Final = 12
"""Columns that a table may have."""


@dataclass
class Line:
    """A curve: x -> our values, one a seed; and the paper's, where it has the curve."""

    key: Key
    name: str
    ours: dict[float, list[float]] = field(default_factory=dict)
    published: dict[float, float] = field(default_factory=dict)

    def mean(self, x: float) -> float | None:
        """Ours at x over seeds."""
        return reading.mean(self.ours.get(x, []))


@dataclass
class Panel:
    """A plot: ours and the paper's."""

    name: str
    title: str
    x: str
    y: str
    lines: list[Line]
    log_y: bool = False

    @property
    def columns(self) -> list[float]:
        """The places that a table shows: all, or those of the paper's where these are many."""
        theirs = {x for line in self.lines for x in line.published}
        all_of_them = theirs | {x for line in self.lines for x in line.ours}
        return sorted(all_of_them if len(all_of_them) <= _MANY or not theirs else theirs)


def window(figure: str, text: str | None) -> range:
    """The updates "10" or "1-5" of a figure, or those it has without being told."""
    text = text or UPDATES.get(figure, "1")
    found = re.fullmatch(r"([1-9]\d*)(?:-([1-9]\d*))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise ValueError(f"--updates {text}: an update from 1 on is expected, or a range as in 1-5")
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def make(figure: str, runs: Sequence[Run], updates: range) -> list[Panel]:
    """The panels of a figure.

    Raises ValueError where no run has recorded what it needs.
    """
    panels = _MAKERS[figure](runs, updates)
    for panel in panels:
        if not any(line.ours for line in panel.lines):
            raise ValueError(
                f"{panel.name}: none of these runs has recorded it; run"
                f" `bash scripts/reproduce_analysis.sh {figure}`"
            )
    return panels


def _lines(name: str, keys: Sequence[Key]) -> dict[Key, Line]:
    """A line for each key, with the paper's values."""
    table = paper.table(name)
    lines = {}
    for key in keys:
        row = table.rows.get(key)
        values = {} if row is None else {float(x): float(y) for x, y in row.values.items()}
        name = OWN_NAMES.get(key, key) if row is None else row.name
        lines[key] = Line(key, name, published=values)
    return lines


def _collect(name: str, points: Sequence[tuple[Key, float, float | None]]) -> list[Line]:
    """Lines from (key, x, value), in the paper's order, then ours that it does not have."""
    there = {key for key, _, _ in points}
    ordered = [key for key in paper.table(name).rows if key in there]
    ordered += [key for key in dict.fromkeys(key for key, _, _ in points) if key not in ordered]
    lines = _lines(name, ordered)
    for key, x, value in points:
        if value is not None:
            lines[key].ours.setdefault(x, []).append(value)
    return list(lines.values())


def _over_iterations(
    name: str, runs: Sequence[Run], read: Callable[[Record], float | None], shift: int
) -> list[Line]:
    points: list[tuple[Key, float, float | None]] = [
        (run.cell, record["update"] + shift, read(record)) for run in runs for record in run.records
    ]
    if shift == 0:
        points += [(run.cell, 0, 0.0) for run in runs if run.records]
    return _collect(name, sorted(points, key=lambda point: point[1]))


def _by_layer(name: str, runs: Sequence[Run], updates: range, lowest: int = 1) -> list[Line]:
    points: list[tuple[Key, float, float | None]] = []
    for run in runs:
        for layer, value in enumerate(reading.layer_gradients(run.at(updates)), start=1):
            if layer >= lowest:
                points.append((run.cell, layer, value))
    return _collect(name, points)


def _named(updates: range, one: str = "update") -> str:
    first, last = updates[0], updates[-1]
    return f"{one} {first}" if first == last else f"mean of updates {first} to {last}"


def _fig3a(runs: Sequence[Run], updates: range) -> list[Panel]:
    chosen = [run for run in runs if run.cell.endswith("_warmup")]
    depth = max((int(_depth(run)) for run in chosen), default=0)
    lines = _by_layer("fig3a", chosen, updates, lowest=max(1, depth - 5))
    title = f"(a) gradient norm of the top decoder layers, {_named(updates)}"
    return [Panel("fig3a", title, "decoder layer", "gradient norm", lines)]


def _depth(run: Run) -> float:
    return float(str(run.result.config.options.get("decoder-layers", 0)))


def _kind(run: Run) -> Key:
    """What a run is at any depth: its cell is called {kind}_{depth}l."""
    return run.cell.rpartition("_")[0]


def _fig3b(runs: Sequence[Run], updates: range) -> list[Panel]:
    points: list[tuple[Key, float, float | None]] = []
    for run in sorted(runs, key=_depth):
        layers = reading.layer_gradients(run.at(updates))
        points.append((_kind(run), _depth(run), layers[-1] if layers else None))
    title = f"(b) gradient norm of the last decoder layer, {_named(updates)}"
    lines = _collect("fig3b", points)
    return [Panel("fig3b", title, "layers a side", "gradient norm", lines)]


def _fig3c(runs: Sequence[Run], updates: range) -> list[Panel]:
    points: list[tuple[Key, float, float | None]] = []
    for run in runs:
        for epoch, (_, loss) in enumerate(run.result.valid_loss):
            points.append((run.cell, epoch, loss))
    lines = _collect("fig3c", points)
    title = "(c) validation loss by epoch"
    return [Panel("fig3c", title, "epoch, the first is 0", "loss, bits a token", lines)]


def _fig4(runs: Sequence[Run], updates: range) -> list[Panel]:
    feed_forward = reading.layer_norm_input("ffn", BOTH)
    attention = reading.layer_norm_input("self_attn", BOTH)
    iterations = "iteration"
    return [
        Panel(
            "fig4a",
            "(a) accumulated model update",
            "updates made",
            "norm of F(x, θᵢ) − F(x, θ₀)",
            _over_iterations("fig4a", runs, reading.model_update, 0),
        ),
        Panel(
            "fig4b",
            "(b) LayerNorm input after the feed-forward network",
            iterations,
            "norm, mean over LayerNorms",
            _over_iterations("fig4b", runs, feed_forward, -1),
        ),
        Panel(
            "fig4c",
            "(c) LayerNorm input after self-attention",
            iterations,
            "norm, mean over LayerNorms",
            _over_iterations("fig4c", runs, attention, -1),
        ),
        Panel(
            "fig4d",
            f"(d) gradient norm of every decoder layer, {_named(updates)}",
            "decoder layer",
            "gradient norm",
            _by_layer("fig4d", runs, updates),
            log_y=True,
        ),
    ]


def _fig5(runs: Sequence[Run], updates: range) -> list[Panel]:
    """By depth, as the paper has it; by the number of updates, which the paper does not state."""
    by_depth: list[tuple[Key, float, float | None]] = []
    for run in sorted(runs, key=_depth):
        values = [reading.model_update(record) for record in run.at(updates)]
        by_depth.append((_kind(run), _depth(run), reading.mean(values)))
    return [
        Panel(
            "fig5",
            f"model update by depth, {_named(updates, 'after update')}",
            "layers a side",
            "norm of F(x, θᵢ) − F(x, θ₀)",
            _collect("fig5", by_depth),
            log_y=True,
        ),
        _by_updates(runs),
    ]


def _by_updates(runs: Sequence[Run]) -> Panel:
    depths = sorted({_depth(run) for run in runs})
    shown = (depths[0], depths[len(depths) // 2], depths[-1])
    published = paper.table("fig5").rows
    lines: dict[Key, Line] = {}
    for run in sorted(runs, key=lambda run: (_kind(run), _depth(run))):
        if _depth(run) not in shown or _kind(run) not in published:
            continue
        name = f"{published[_kind(run)].name}, {_depth(run):.0f} layers a side"
        line = lines.setdefault(name, Line(run.cell, name))
        for record in run.records:
            value = reading.model_update(record)
            if value is not None:
                line.ours.setdefault(record["update"], []).append(value)
    return Panel(
        "fig5-updates",
        "the same by the number of updates",
        "updates made",
        "norm of F(x, θᵢ) − F(x, θ₀)",
        list(lines.values()),
        log_y=True,
    )


_MAKERS: Final[dict[str, Callable[[Sequence[Run], range], list[Panel]]]] = {
    "fig3a": _fig3a,
    "fig3b": _fig3b,
    "fig3c": _fig3c,
    "fig4": _fig4,
    "fig5": _fig5,
}
