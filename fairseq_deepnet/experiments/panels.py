"""The panels of the paper's figures 3, 4 and 5: which run is which curve, what the axes are, and
what the paper has there.

A panel is one plot of the paper's with its curves; a curve's key is its row in paper.yaml. An
iteration i, counted from 0, is the pass after i updates: the model update after update i, and
activations and gradients of update i + 1, which sees the parameters of i updates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.experiments.runs import (
    RECORD,
    RunResult,
    find_runs,
    read_cell_record,
    read_result,
)
from fairseq_deepnet.files import shown
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import Record

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
_MOVED: Final = "norm of F(x, θᵢ) − F(x, θ₀)"
Point = tuple[Key, float, float | None]
"""A curve's key, x, and what a run has there."""


@dataclass(frozen=True)
class MonitoredRun:
    """A cell of a sweep with what was measured in it.

    Args:
        cell: its name in the sweep, without the seed
        records: lines of monitor.jsonl; empty for a run that only has losses
        result: settings and losses
    """

    cell: str
    records: tuple[Record, ...]
    result: RunResult

    @property
    def depth(self) -> float:
        """Layers of the decoder."""
        return float(str(self.result.config.options.get("decoder-layers", 0)))

    @property
    def kind(self) -> Key:
        """What a run is at any depth: its cell is called {kind}_{depth}l."""
        return self.cell.rpartition("_")[0]

    def at(self, updates: range) -> list[Record]:
        """Return the records of these updates, fewer where the run has ended before."""
        return [record for record in self.records if record["update"] in updates]


def read_runs(folder: Path) -> list[MonitoredRun]:
    """Read the cells of a sweep's folder that have begun.

    Raises FileNotFoundError where there are none, ValueError for a run of no sweep.
    """
    return [_read_run(path) for path in find_runs(folder) if (path / "config.yaml").is_file()]


def _read_run(folder: Path) -> MonitoredRun:
    file = folder / RECORD
    if not file.is_file():
        raise ValueError(f"{shown(folder)} is no cell of a sweep: give the folder of one")
    places = read_cell_record(folder).get("places")
    if not places:
        raise ValueError(f"{shown(file)} names no place in a table: {shown(folder)} is no cell")
    place = places[0]
    seed = int(place["seed"])
    cell = folder.name.removesuffix(f".seed{seed}")
    monitored = folder / records.NAME
    lines = tuple(records.read(monitored)) if monitored.is_file() else ()
    return MonitoredRun(cell, lines, read_result(folder))


@dataclass
class Curve:
    """A curve: x -> our values, one a seed; and the paper's, where it has the curve."""

    key: Key
    name: str
    ours: dict[float, list[float]] = field(default_factory=dict)
    published: dict[float, float] = field(default_factory=dict)

    def mean(self, x: float) -> float | None:
        """Ours at x over seeds."""
        return mean(self.ours.get(x, []))


@dataclass
class CurvePanel:
    """A plot: ours and the paper's."""

    name: str
    title: str
    x: str
    y: str
    curves: list[Curve]
    log_y: bool = False

    @property
    def columns(self) -> list[float]:
        """The places that a table shows: all, or those of the paper's where these are many."""
        theirs = {x for curve in self.curves for x in curve.published}
        all_of_them = theirs | {x for curve in self.curves for x in curve.ours}
        return sorted(all_of_them if len(all_of_them) <= _MANY or not theirs else theirs)


def window(figure: str, text: str | None) -> range:
    """Return the updates "10" or "1-5" of a figure, or those it has without being told."""
    text = text or UPDATES.get(figure, "1")
    found = re.fullmatch(r"([1-9]\d*)(?:-([1-9]\d*))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise ValueError(f"--updates {text}: an update from 1 on is expected, or a range as in 1-5")
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def make(figure: str, runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    """Make the panels of a figure.

    Raises ValueError where no run has recorded what it needs.
    """
    panels = FIGURES[figure](runs, updates)
    for panel in panels:
        if not any(curve.ours for curve in panel.curves):
            raise ValueError(
                f"{panel.name}: none of these runs has recorded it; run"
                f" `bash scripts/reproduce_analysis.sh {figure}`"
            )
    return panels


def _collect(name: str, points: Sequence[Point]) -> list[Curve]:
    """Curves of (key, x, value), in the paper's order, then ours that it does not have."""
    there = dict.fromkeys(key for key, _, _ in points)
    rows = paper.table(name).rows
    curves: dict[Key, Curve] = {}
    for key in [*(key for key in rows if key in there), *(key for key in there if key not in rows)]:
        if key in rows:
            theirs = {float(x): float(y) for x, y in rows[key].values.items()}
            curves[key] = Curve(key, rows[key].name, published=theirs)
        else:
            curves[key] = Curve(key, OWN_NAMES.get(key, key))
    for key, x, value in points:
        if value is not None:
            curves[key].ours.setdefault(x, []).append(value)
    return list(curves.values())


def _over_iterations(
    name: str, runs: Sequence[MonitoredRun], read: Callable[[Record], float | None]
) -> list[Curve]:
    points = [
        (run.cell, record["update"] - 1, read(record)) for run in runs for record in run.records
    ]
    return _collect(name, sorted(points, key=lambda point: point[1]))


def _over_updates(name: str, runs: Sequence[MonitoredRun]) -> list[Curve]:
    """How far the model has moved after each update, and before the first."""
    points = [(run.cell, r["update"], model_update(r)) for run in runs for r in run.records]
    points += [(run.cell, 0, 0.0) for run in runs if run.records]
    return _collect(name, sorted(points, key=lambda point: point[1]))


def _by_layer(
    name: str, runs: Sequence[MonitoredRun], updates: range, lowest: int = 1
) -> list[Curve]:
    points: list[Point] = []
    for run in runs:
        layers = list(enumerate(layer_gradients(run.at(updates)), start=1))
        points += [(run.cell, layer, value) for layer, value in layers if layer >= lowest]
    return _collect(name, points)


def _named(updates: range, one: str = "update") -> str:
    first, last = updates[0], updates[-1]
    return f"{one} {first}" if first == last else f"mean of updates {first} to {last}"


def _fig3a(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    chosen = [run for run in runs if run.cell.endswith("_warmup")]
    depth = max((int(run.depth) for run in chosen), default=0)
    curves = _by_layer("fig3a", chosen, updates, lowest=max(1, depth - 5))
    title = f"(a) gradient norm of the top decoder layers, {_named(updates)}"
    return [CurvePanel("fig3a", title, "decoder layer", "gradient norm", curves)]


def _fig3b(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    points: list[Point] = []
    for run in sorted(runs, key=lambda run: run.depth):
        layers = layer_gradients(run.at(updates))
        points.append((run.kind, run.depth, layers[-1] if layers else None))
    title = f"(b) gradient norm of the last decoder layer, {_named(updates)}"
    curves = _collect("fig3b", points)
    return [CurvePanel("fig3b", title, "layers a side", "gradient norm", curves)]


def _fig3c(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    points: list[Point] = []
    for run in runs:
        losses = [loss for _, loss in run.result.valid_loss]
        points += [(run.cell, epoch, loss) for epoch, loss in enumerate(losses)]
    title, curves = "(c) validation loss by epoch", _collect("fig3c", points)
    return [CurvePanel("fig3c", title, "epoch, the first is 0", "loss, bits a token", curves)]


def _fig4(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    moved = _over_updates("fig4a", runs)
    after_ffn = _over_iterations("fig4b", runs, lambda record: layer_norm_input(record, "ffn"))
    after_attention = _over_iterations(
        "fig4c", runs, lambda record: layer_norm_input(record, "self_attn")
    )
    by_layer = _by_layer("fig4d", runs, updates)
    d = f"(d) gradient norm of every decoder layer, {_named(updates)}"
    b = "(b) LayerNorm input after the feed-forward network"
    c = "(c) LayerNorm input after self-attention"
    norm = "norm, mean over LayerNorms"
    return [
        CurvePanel("fig4a", "(a) accumulated model update", "updates made", _MOVED, moved),
        CurvePanel("fig4b", b, "iteration", norm, after_ffn),
        CurvePanel("fig4c", c, "iteration", norm, after_attention),
        CurvePanel("fig4d", d, "decoder layer", "gradient norm", by_layer, log_y=True),
    ]


def _fig5(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    """By depth, as the paper has it; by the number of updates, which the paper does not state."""
    by_depth: list[Point] = []
    for run in sorted(runs, key=lambda run: run.depth):
        by_depth.append((run.kind, run.depth, mean(map(model_update, run.at(updates)))))
    title = f"model update by depth, {_named(updates, 'after update')}"
    curves = _collect("fig5", by_depth)
    again = "the same by the number of updates"
    return [
        CurvePanel("fig5", title, "layers a side", _MOVED, curves, log_y=True),
        CurvePanel("fig5-updates", again, "updates made", _MOVED, _by_updates(runs), log_y=True),
    ]


def _by_updates(runs: Sequence[MonitoredRun]) -> list[Curve]:
    """The shallowest, the middle and the deepest runs of the paper's kinds."""
    depths = sorted({run.depth for run in runs})
    drawn = (depths[0], depths[len(depths) // 2], depths[-1])
    published = paper.table("fig5").rows
    curves: dict[str, Curve] = {}
    for run in sorted(runs, key=lambda run: (run.kind, run.depth)):
        if run.depth in drawn and run.kind in published:
            name = f"{published[run.kind].name}, {run.depth:.0f} layers a side"
            curve = curves.setdefault(name, Curve(run.cell, name))
            for record in run.records:
                value = model_update(record)
                if value is not None:
                    curve.ours.setdefault(record["update"], []).append(value)
    return list(curves.values())


FIGURES: Final = {"fig3a": _fig3a, "fig3b": _fig3b, "fig3c": _fig3c, "fig4": _fig4, "fig5": _fig5}


# From records to numbers. A quantity's name and layout are those of monitoring/quantities.py.


def model_update(record: Record) -> float | None:
    """Return how far the model has moved, after the record's update."""
    value = record["values"].get("model_update")
    return None if value is None else float(value)


def layer_norm_input(record: Record, part: str) -> float | None:
    """Return the mean input norm of the LayerNorms after one sublayer of every layer."""
    quantity = record["values"].get("layer_norm_input", {})
    sides = [quantity.get(side, {}).get(part, []) for side in ("encoder", "decoder")]
    return mean(value for side in sides for value in side)


def layer_gradients(taken: Sequence[Record]) -> list[float | None]:
    """Return the mean gradient norm of every layer of the decoder over updates, bottom first."""
    lists = [record["values"].get("gradient_norm", {}).get("decoder", {}) for record in taken]
    layers = [item["layer"] for item in lists if "layer" in item]
    return [mean(values) for values in zip(*layers, strict=True)]


def mean(values: Iterable[Any]) -> float | None:
    """Return the mean of what is there, nan or infinite where one is; None of nothing."""
    found = [float(value) for value in values if value is not None]
    return sum(found) / len(found) if found else None
