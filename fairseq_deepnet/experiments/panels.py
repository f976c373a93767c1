"""The panels of the paper's figures 3, 4 and 5: which run is which curve, what the axes are, and
what the paper has there.

A panel is one plot of the paper's with its curves; a curve's key is its row in paper.yaml. An
iteration i, counted from 0, is the pass after i updates: the model update after update i, and
activations and gradients of update i + 1, which sees the parameters of i updates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.experiments.runs import RECORD, RunResult, find_runs, read_result
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
    """A cell of a sweep, called as there without the seed, with what was measured in it."""

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
    file, monitored = folder / RECORD, folder / records.NAME
    if not file.is_file():
        raise ValueError(f"{shown(folder)} is no cell of a sweep: give the folder of one")
    result = read_result(folder)
    if not result.places:
        raise ValueError(f"{shown(file)} names no place in a table: {shown(folder)} is no cell")
    cell = folder.name.removesuffix(f".seed{result.places[0]['seed']}")
    return MonitoredRun(cell, tuple(records.read(monitored)) if monitored.is_file() else (), result)


@dataclass
class Curve:
    """A curve: x -> our values, one a seed; and the paper's, where it has the curve."""

    key: Key
    name: str
    ours: dict[float, list[float]] = field(default_factory=dict)
    published: dict[float, float] = field(default_factory=dict)

    def mean(self, x: float) -> float | None:
        """Return ours at x over seeds."""
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
    """Return the updates "10" or "1-5" of a figure, by default those of UPDATES."""
    text = text or UPDATES.get(figure, "1")
    found = re.fullmatch(r"([1-9]\d*)(?:-([1-9]\d*))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if last < first:
        raise ValueError(f"--updates {text}: an update from 1 on is expected, or a range as in 1-5")
    return range(first, last + 1)


def make(figure: str, runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    """Make the panels of a figure; ValueError where no run has recorded what it needs."""
    panels = FIGURES[figure](runs, updates)
    for panel in panels:
        if not any(curve.ours for curve in panel.curves):
            raise ValueError(
                f"{panel.name}: none of these runs has recorded it; run"
                f" `bash scripts/reproduce_analysis.sh {figure}`"
            )
    return panels


def _panel(
    name: str, title: str, x: str, y: str, points: Iterable[Point], log_y: bool = False
) -> CurvePanel:
    """Make a panel of points, with curves in the paper's order, then ours that it does not have."""
    points, rows = list(points), paper.table(name).rows
    there = dict.fromkeys(key for key, _, _ in points)
    curves: dict[Key, Curve] = {}
    for key in [*(key for key in rows if key in there), *(key for key in there if key not in rows)]:
        theirs = rows[key].values.items() if key in rows else ()
        label = rows[key].name if key in rows else OWN_NAMES.get(key, key)
        curves[key] = Curve(key, label, {}, {float(place): float(value) for place, value in theirs})
    for key, place, value in points:
        if value is not None:
            curves[key].ours.setdefault(place, []).append(value)
    return CurvePanel(name, title, x, y, list(curves.values()), log_y)


def _inputs(runs: Sequence[MonitoredRun], part: str) -> list[Point]:
    """Return the input of LayerNorms after a sublayer, by iteration."""
    points = [
        (run.cell, r["update"] - 1, layer_norm_input(r, part)) for run in runs for r in run.records
    ]
    return sorted(points, key=lambda point: point[1])


def _moves(runs: Sequence[MonitoredRun]) -> list[Point]:
    """Return how far the model has moved after each update, and before the first."""
    points = [(run.cell, r["update"], model_update(r)) for run in runs for r in run.records]
    points += [(run.cell, 0, 0.0) for run in runs if run.records]
    return sorted(points, key=lambda point: point[1])


def _by_layer(runs: Sequence[MonitoredRun], updates: range, lowest: int = 1) -> Iterator[Point]:
    for run in runs:
        for layer, value in enumerate(layer_gradients(run.at(updates)), start=1):
            if layer >= lowest:
                yield run.cell, layer, value


def _named(updates: range, one: str = "update") -> str:
    first, last = updates[0], updates[-1]
    return f"{one} {first}" if first == last else f"mean of updates {first} to {last}"


def _by_depth(runs: Sequence[MonitoredRun]) -> list[MonitoredRun]:
    return sorted(runs, key=lambda run: run.depth)


def _fig3a(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    chosen = [run for run in runs if run.cell.endswith("_warmup")]
    depth = max((int(run.depth) for run in chosen), default=0)
    title = f"(a) gradient norm of the top decoder layers, {_named(updates)}"
    points = _by_layer(chosen, updates, lowest=max(1, depth - 5))
    return [_panel("fig3a", title, "decoder layer", "gradient norm", points)]


def _fig3b(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    title = f"(b) gradient norm of the last decoder layer, {_named(updates)}"
    layers = ((run, layer_gradients(run.at(updates))) for run in _by_depth(runs))
    points = [(run.kind, run.depth, norms[-1] if norms else None) for run, norms in layers]
    return [_panel("fig3b", title, "layers a side", "gradient norm", points)]


def _fig3c(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    epochs = ((run, enumerate(run.result.valid_loss)) for run in runs)
    points = [(run.cell, epoch, loss) for run, losses in epochs for epoch, (_, loss) in losses]
    title, x = "(c) validation loss by epoch", "epoch, the first is 0"
    return [_panel("fig3c", title, x, "loss, bits a token", points)]


def _fig4(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    a, x = "(a) accumulated model update", "updates made"
    b = "(b) LayerNorm input after the feed-forward network"
    c = "(c) LayerNorm input after self-attention"
    d = f"(d) gradient norm of every decoder layer, {_named(updates)}"
    norm, layers = "norm, mean over LayerNorms", _by_layer(runs, updates)
    return [
        _panel("fig4a", a, x, _MOVED, _moves(runs)),
        _panel("fig4b", b, "iteration", norm, _inputs(runs, "ffn")),
        _panel("fig4c", c, "iteration", norm, _inputs(runs, "self_attn")),
        _panel("fig4d", d, "decoder layer", "gradient norm", layers, log_y=True),
    ]


def _fig5(runs: Sequence[MonitoredRun], updates: range) -> list[CurvePanel]:
    """Plot by depth, as the paper does, and by the number of updates, which it does not state."""
    title, x = f"model update by depth, {_named(updates, 'after update')}", "layers a side"
    found = ((run, mean(map(model_update, run.at(updates)))) for run in _by_depth(runs))
    points = [(run.kind, run.depth, value) for run, value in found]
    again = "the same by the number of updates"
    return [
        _panel("fig5", title, x, _MOVED, points, log_y=True),
        CurvePanel("fig5-updates", again, "updates made", _MOVED, _by_updates(runs), log_y=True),
    ]


def _by_updates(runs: Sequence[MonitoredRun]) -> list[Curve]:
    """Return curves of the shallowest, the middle and the deepest runs of the paper's kinds."""
    depths = sorted({run.depth for run in runs})
    drawn = (depths[0], depths[len(depths) // 2], depths[-1])
    published = paper.table("fig5").rows
    curves: dict[str, Curve] = {}
    for run in sorted(runs, key=lambda run: (run.kind, run.depth)):
        if run.depth in drawn and run.kind in published:
            name = f"{published[run.kind].name}, {run.depth:.0f} layers a side"
            curve = curves.setdefault(name, Curve(run.cell, name))
            for record in run.records:
                if (value := model_update(record)) is not None:
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
