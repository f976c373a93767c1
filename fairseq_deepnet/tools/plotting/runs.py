"""Readers of logs, measurements and events in run folders, and lines and scales of plots.

Shapes: U = logged or monitored updates, L = layers of a stack, numbered from the input.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_deepnet.divergence import events
from fairseq_deepnet.divergence.events import Event
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import QUANTITIES

# fairseq logs progress as "... | INFO | train_inner | {...}", with the logger's name before JSON
_PROGRESS = re.compile(r"\| (train_inner|valid) \| (\{.*\})$", re.MULTILINE)
LOG: Final = "train.log"
LOGGED: Final = {
    "loss": "training objective (bits per token)",
    "nll_loss": "negative log-likelihood (bits per token)",
    "lr": "learning rate",
    "gnorm": "gradient norm, before clipping",
}
"""Column of train.log (or, if there is no log, of monitor.jsonl) -> axis label."""
SIDES: Final = ("encoder", "decoder")
SHOWN: Final = (*LOGGED, *QUANTITIES)
BOUNDED: Final = {"update_bound": "model_update"}
"""Theoretical bound -> quantity that it limits and that is drawn in the same plot."""
_LOOKS: Final = {"valid": "dots", "encoder": "dashed"}
"""`Key.side` -> style of the line; lines of other sides are solid."""
_COVERED: Final = (1.0, 99.0)
"""Percentiles that limit a colour scale, so that outliers do not hide other values."""
Points = Sequence[tuple[int, float]]
"""Pairs of update and value, in the order of updates."""


def read_metrics(run: Path, metrics: Sequence[str]) -> dict[tuple[str, str], Points]:
    """Read metrics from a run's log; return points under keys (metric, "train" or "valid").

    If a resumed run logged an update twice, the later line is used. If the run returned to an
    earlier update, the old points after that update are dropped. Losses that are not finite remain,
    because they show where a run failed. Without a log, there are no points.
    """
    points: dict[tuple[str, str], dict[int, float]]
    points = {(metric, kind): {} for metric in metrics for kind in ("train", "valid")}
    latest, log = 0, run / LOG
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    for match in _PROGRESS.finditer(text):
        kind, prefix = match[1].removesuffix("_inner"), "valid_" if match[1] == "valid" else ""
        try:
            record = json.loads(match[2])
        except json.JSONDecodeError:
            continue  # incomplete, because the run was killed
        update = int(float(record[f"{prefix}num_updates"]))
        if update < latest:
            for key, values in points.items():
                points[key] = {u: value for u, value in values.items() if u <= update}
        latest = update
        for metric in metrics:
            if (value := record.get(f"{prefix}{metric}")) is not None:
                points[metric, kind][update] = float(value)
    return {key: sorted(values.items()) for key, values in points.items()}


class Key(NamedTuple):
    """Key of a series: a column of the log or a monitored quantity.

    Args:
        side: "encoder" or "decoder", or for columns of the log "train" or "valid"; otherwise empty
        part: part of a layer; empty for quantities without layers
    """

    quantity: str
    side: str = ""
    part: str = ""


class Series(NamedTuple):
    """Values of a quantity by update and layer.

    Args:
        updates: [U], increasing
        values: [U, L], where L is 1 for quantities without layers; nan where nothing was measured
            (a layer that LayerDrop skipped); inf where the measured number was not finite
    """

    updates: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass
class Run:
    """Contents of a run folder, with a unique name."""

    name: str
    folder: Path
    series: dict[Key, Series] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read runs (skip files), named after their folders, or after paths if names are equal."""
    paths = [path for path in paths if not path.is_file()] or paths
    folders = list(dict.fromkeys(records.run_folder(path).resolve() for path in paths))
    common = os.path.commonpath([folder.parent for folder in folders])
    has_equal_names = len({folder.name for folder in folders}) < len(folders)
    return [read_run(f, os.path.relpath(f, common) if has_equal_names else f.name) for f in folders]


def read_run(folder: Path, name: str) -> Run:
    """Read a run folder; raise ValueError if it contains no values."""
    rows: dict[Key, dict[int, NDArray[np.float64]]] = {}
    measurements = folder / records.NAME
    for record in records.read(measurements) if measurements.is_file() else ():
        logged = {name: {"train": record[name]} for name in LOGGED if record.get(name) is not None}
        for key, row in _rows(logged | record["values"]):
            rows.setdefault(key, {})[record["update"]] = row
    for (metric, kind), points in read_metrics(folder, tuple(LOGGED)).items():
        if points:
            rows[Key(metric, kind)] = {update: _row([value]) for update, value in points}
    if not rows:
        is_logged = (folder / LOG).is_file()
        log = f"no progress lines in {LOG} (--log-format json)" if is_logged else f"no {LOG}"
        raise ValueError(
            f"{folder}: {log} and no {records.NAME}; choose a run folder of scripts/train.sh"
        )
    series = {}
    for key, by_update in rows.items():
        updates = sorted(by_update)
        series[key] = Series(np.array(updates), np.stack([by_update[u] for u in updates]))
    watched = events.read(folder / events.NAME)
    watched.sort(key=lambda event: (event.started, event.update))
    return Run(name, folder, series, watched)


def _rows(values: Any, *key: str) -> Iterator[tuple[Key, NDArray[np.float64]]]:
    """Yield a record's values, each of shape [L], with their keys."""
    if isinstance(values, dict):
        for name, inner in values.items():
            yield from _rows(inner, *key, name)
    else:
        yield Key(*key), _row(values if isinstance(values, list) else [values])


def _row(values: Sequence[float | None]) -> NDArray[np.float64]:
    missing = np.array([value is None for value in values])
    row = np.array(values, dtype=np.float64)
    return np.where(np.isfinite(row) | missing, row, math.inf)


def label_of(show: str) -> str:
    """Return a quantity's axis label, with its unit."""
    if show in LOGGED:
        return LOGGED[show]
    return f"{show.replace('_', ' ')} ({QUANTITIES[show].unit})".replace(" (none)", "")


def parts_of(runs: Sequence[Run], show: str) -> list[str]:
    """Return the measured parts of layers, beginning with the part that an image shows.

    The only part of a quantity that is not measured by layer is "". The list is
    empty if nothing was measured.
    """
    parts = {key.part for run in runs for key in run.series if key.quantity == show}
    first = [part for part in ("layer", "ffn", "self_attn") if part in parts]
    return [*first, *sorted(parts - {*first})]


class Line(NamedTuple):
    """A line that shows a quantity of one run by update.

    Args:
        run: index of the run, which determines the colour
        look: solid, dashed, dotted or dots
        x: updates
        y: values; nan where they are not finite
    """

    run: int
    label: str
    look: str
    x: NDArray[np.int64]
    y: NDArray[np.float64]


def lines_of(runs: Sequence[Run], show: str) -> list[Line]:
    """Return the runs' lines for a logged column or a quantity that is not measured by layer."""
    lines = []
    for number, run in enumerate(runs):
        looks = {key: _LOOKS.get(key.side, "solid") for key in run.series if key.quantity == show}
        looks |= {Key(BOUNDED[show]): "dotted"} if looks and show in BOUNDED else {}
        for key, look in looks.items():
            if key in run.series:
                kind = f"measured {key.quantity}" if look == "dotted" else key.side
                updates, values = run.series[key]
                y = finite(values[:, 0])
                look = "dots" if np.isfinite(y).sum() == 1 else look  # a point needs a marker
                label = ", ".join(filter(None, (run.name, kind)))
                lines.append(Line(number, label, look, updates, y))
    return lines


def finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace infinite values with nan, so that figures have gaps there."""
    return np.where(np.isfinite(values), values, np.nan)


class Scale(NamedTuple):
    """Range of a colour scale or an axis. Both limits are positive if `is_log` is True."""

    low: float
    high: float
    is_log: bool


def scale_of(arrays: Iterable[NDArray[np.float64]]) -> Scale:
    """Return a common scale for all arrays, logarithmic for values >= 0 that span a decade."""
    values = np.concatenate([np.empty(0), *(array.ravel() for array in arrays)])
    values = values[np.isfinite(values)]
    if not len(values):
        return Scale(0.0, 1.0, False)
    positive = values[values > 0]
    is_log = len(positive) > 0 and values.min() >= 0 and positive.max() > 10 * positive.min()
    low, high = np.percentile(positive if is_log else values, _COVERED)
    if low == high:
        low, high = (low / 2, high * 2) if is_log else (low - 0.5, high + 0.5)
    return Scale(float(low), float(high), bool(is_log))
