"""Content of run folders for plots: log, measurements of the monitor, and events.

Shapes: U = monitored updates, L = layers of a stack, counted from its input.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_deepnet.divergence import events
from fairseq_deepnet.divergence.events import Event
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import QUANTITIES, Level

# fairseq's logger name stands between bars before the JSON: "... | INFO | train_inner | {...}".
_PROGRESS = re.compile(r"\| (train_inner|valid) \| (\{.*\})\s*$")
LOG: Final = "train.log"
LOGGED: Final = {
    "loss": "training objective (bits per token)",
    "nll_loss": "negative log-likelihood (bits per token)",
    "lr": "learning rate",
    "gnorm": "gradient norm, before clipping",
}
"""Columns of train.log -> axis labels; monitor.jsonl replaces a missing log."""
SIDES: Final = ("encoder", "decoder")
_ABSENT: Final = -1.0
"""Marks missing numbers while reading. All quantities are norms, ratios and entropies."""


@dataclass
class Curves:
    """Training and validation values (losses in base 2, per token) by update."""

    train: list[tuple[int, float]] = field(default_factory=list)
    valid: list[tuple[int, float]] = field(default_factory=list)


def read_metrics(run: Path, metrics: Sequence[str]) -> dict[str, Curves]:
    """Read several metrics of a run folder (or of a log file) in one pass.

    If a resumed run logged an update twice, the later line counts. If the run went back to an
    earlier update, later points are dropped. Losses that are not finite are kept, as they show
    where a run broke. Metrics that were never logged are left out.

    Raises FileNotFoundError for a run without a log.
    """
    points: dict[tuple[str, str], dict[int, float]] = {}
    latest = 0
    with (run / LOG if run.is_dir() else run).open(encoding="utf-8", errors="replace") as lines:
        for match in filter(None, map(_PROGRESS.search, lines)):
            kind, prefix = match[1], "valid_" * (match[1] == "valid")
            try:
                record = json.loads(match[2])
            except json.JSONDecodeError:
                continue  # the line that a killed run was writing
            update = int(float(record[f"{prefix}num_updates"]))
            if update < latest:
                for key, series in points.items():
                    points[key] = {u: value for u, value in series.items() if u <= update}
            latest = update
            for metric in metrics:
                if (value := record.get(f"{prefix}{metric}")) is not None:
                    points.setdefault((metric, kind), {})[update] = float(value)
    curves = {}
    for metric in metrics:
        both = [sorted(points.get((metric, kind), {}).items()) for kind in ("train_inner", "valid")]
        if any(both):
            curves[metric] = Curves(*both)
    return curves


class GridKey(NamedTuple):
    """Key of a grid; side and part are empty for quantities of the model or of a side."""

    quantity: str
    side: str = ""
    part: str = ""


@dataclass(frozen=True)
class Grid:
    """A quantity by update and layer.

    Args:
        updates: (U), increasing
        values: (U, L); nan for missing ones. Numbers that are not finite are kept.
        given: (U, L), False where nothing was measured (a layer that LayerDrop skipped)
    """

    updates: NDArray[np.int64]
    values: NDArray[np.float64]
    given: NDArray[np.bool_]

    @property
    def layers(self) -> int:
        """Number of layers, or 1 for quantities without layers."""
        return int(self.values.shape[1])

    def thin(self, most: int, events: Sequence[Event] = ()) -> Grid:
        """Select about `most` updates: evenly spaced ones, and those near events."""
        count = len(self.updates)
        even = np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
        places = np.searchsorted(self.updates, [event.finding.started for event in events[:20]])
        near = (places[:, None] + np.arange(-2, 3)).ravel().astype(np.int64)
        columns = np.unique(np.clip(np.concatenate([even, near]), 0, count - 1))
        return Grid(self.updates[columns], self.values[columns], self.given[columns])


@dataclass
class Run:
    """Content of a run folder.

    Args:
        name: name that differs from those of the other runs
        metrics: logged columns of LOGGED: training and validation values by update
        grids: measurements of the monitor
    """

    name: str
    folder: Path
    metrics: dict[str, Curves] = field(default_factory=dict)
    grids: dict[GridKey, Grid] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run folders (or logs); raise ValueError for the first one without a number."""
    paths = list({path.resolve(): path for path in paths}.values())
    return [read_run(path, name) for path, name in zip(paths, distinct_names(paths), strict=True)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Name runs by their folders, by paths below their common parent if names are equal."""
    full = [path.resolve() if path.is_dir() else path.resolve().with_suffix("") for path in paths]
    full = [path.parent if path.name == Path(LOG).stem else path for path in full]
    names = [path.name for path in full]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([path.parent for path in full])
    return [path.relative_to(common).as_posix() for path in full]


def read_run(path: Path, name: str) -> Run:
    """Read a run folder or a log; raise ValueError for a run without any number."""
    folder = records.run_folder(path) if path.is_dir() else path.parent
    run = Run(name, folder)
    if path.is_file() or (path / LOG).is_file():
        run.metrics = read_metrics(path, tuple(LOGGED))
    if path.is_dir():
        if (folder / records.NAME).is_file():
            _add_measurements(run)
        run.events = events.read(folder / events.NAME)
        run.events.sort(key=lambda event: (event.finding.started, event.update))
    if not run.metrics and not run.grids:
        raise ValueError(
            f"{path}: no progress lines in {LOG} (--log-format json) and no {records.NAME}; give"
            " run folders of scripts/train.sh"
        )
    return run


def _add_measurements(run: Run) -> None:
    """Add the grids of monitor.jsonl, and its losses if there is no log."""
    latest: dict[int, records.Record] = {}  # the last record of an update counts
    for record in records.read(run.folder / records.NAME):
        # arrays for lists at once: the file of a deep model holds millions of numbers
        latest[int(record["update"])] = {**record, "values": dict(_rows(record["values"]))}
    rows: dict[GridKey, dict[int, NDArray[np.float64]]] = {}
    for update, record in sorted(latest.items()):
        for key, row in record["values"].items():
            rows.setdefault(key, {})[update] = row
    run.grids = {key: _grid(updates) for key, updates in rows.items()}
    for metric in LOGGED:
        logged = [(u, record.get(metric)) for u, record in sorted(latest.items())]
        points = [(update, float(value)) for update, value in logged if value is not None]
        if points and metric not in run.metrics:
            run.metrics[metric] = Curves(points)


def _rows(values: Mapping[str, Any]) -> Iterator[tuple[GridKey, NDArray[np.float64]]]:
    """Yield the values of a record, each (L), by key; skip unknown quantities."""
    for name, value in values.items():
        level = QUANTITIES[name].level if name in QUANTITIES else None
        if level is Level.MODEL:
            yield GridKey(name), _array([value])
        elif level is Level.STACK:
            yield from ((GridKey(name, side), _array([item])) for side, item in value.items())
        elif level is Level.PART:
            for side, parts in value.items():
                for part, layers in parts.items():
                    yield GridKey(name, side, part), _array(layers)


def _array(values: Sequence[Any]) -> NDArray[np.float64]:
    return np.array([_ABSENT if value is None else float(value) for value in values])


def _grid(rows: Mapping[int, NDArray[np.float64]]) -> Grid:
    values = np.full((len(rows), max(map(len, rows.values()))), _ABSENT)
    for place, row in enumerate(rows.values()):
        values[place, : len(row)] = row
    given = values != _ABSENT
    return Grid(np.array(list(rows)), np.where(given, values, np.nan), given)
