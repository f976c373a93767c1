"""A run as pictures need it: what it logged, what was measured in it, what went wrong, its scores.

Shapes: U = monitored updates, L = layers of a stack, counted from its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_deepnet.divergence import events
from fairseq_deepnet.divergence.events import Event
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.quantities import QUANTITIES, Level
from fairseq_deepnet.tools.plotting.curves import LOG, Curves, number, read_metrics

LOGGED: Final = ("loss", "nll_loss", "lr", "gnorm")
"""What is read of train.log, and of monitor.jsonl where there is no log."""
SIDES: Final = ("encoder", "decoder")


class GridKey(NamedTuple):
    """What a grid is of; side and part are empty for what has one number a model or side."""

    quantity: str
    side: str = ""
    part: str = ""


@dataclass(frozen=True)
class Grid:
    """A quantity over updates, layer by layer.

    Args:
        updates: (U), rising
        values: (U, L); nan where there is none. Numbers that are not finite are kept.
        given: (U, L), false where there was nothing to measure, as a layer that LayerDrop left out
    """

    updates: NDArray[np.int64]
    values: NDArray[np.float64]
    given: NDArray[np.bool_]

    @property
    def layers(self) -> int:
        """How many, or 1 for what has no layers."""
        return int(self.values.shape[1])

    def take(self, columns: NDArray[np.int64]) -> Grid:
        """Return only some of the updates, by their index."""
        return Grid(self.updates[columns], self.values[columns], self.given[columns])


@dataclass
class Run:
    """Everything that a run folder has to show.

    Args:
        name: unlike that of every other run that is drawn with it
        metrics: of LOGGED, those that were logged: training and validation by update
        grids: what was measured
        is_monitored: whether there is a monitor.jsonl
    """

    name: str
    folder: Path
    metrics: dict[str, Curves] = field(default_factory=dict)
    grids: dict[GridKey, Grid] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    is_monitored: bool = False

    @property
    def last_update(self) -> int:
        """The last one that anything is known of."""
        logged = [c.train[-1:] + c.valid[-1:] for c in self.metrics.values()]
        ends = [update for points in logged for update, _ in points]
        return max([*ends, *(int(grid.updates[-1]) for grid in self.grids.values())], default=0)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run folders (or logs); FileNotFoundError or ValueError names every one that is none."""
    wrong = [path for path in paths if not _is_run(path)]
    if wrong:
        raise FileNotFoundError(
            "; ".join(f"{path} {_what_is_wrong(path)}" for path in wrong)
            + f": give run folders, with the {LOG} that scripts/train.sh writes or the"
            f" {records.NAME} of --monitor-interval"
        )
    return [read_run(path, name) for path, name in zip(paths, distinct_names(paths), strict=True)]


def _is_run(path: Path) -> bool:
    files = (path, path / LOG, _monitored(path) / records.NAME)
    return any(file.is_file() for file in files)


def _monitored(path: Path) -> Path:
    """Return the folder that holds monitor.jsonl: a log's is the one it lies in."""
    return records.run_folder(path) if path.is_dir() else path.parent


def _what_is_wrong(path: Path) -> str:
    if not path.exists():
        return "does not exist"
    inside = sorted(child.name for child in path.iterdir() if child.is_dir() and _is_run(child))
    text = f"has no {LOG} and no {records.NAME}"
    return f"{text}, but holds runs ({', '.join(inside)})" if inside else text


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Name each run by its folder, with as many parents as tell all runs apart."""
    full = [path.resolve() if path.is_dir() else path.resolve().with_suffix("") for path in paths]
    full = [path.parent if path.name == Path(LOG).stem else path for path in full]
    for depth in range(1, max(len(path.parts) for path in full) + 1):
        names = ["/".join(path.parts[-depth:]).replace("//", "/") for path in full]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(full, 1)]  # one given twice


def read_run(path: Path, name: str) -> Run:
    """Read all that a run folder has; ValueError where that is nothing."""
    folder = _monitored(path)
    run = Run(name, folder)
    if path.is_file() or (path / LOG).is_file():
        run.metrics = read_metrics(path, LOGGED)
    monitor = folder / records.NAME
    if path.is_dir() and monitor.is_file():
        run.is_monitored = True
        kept = list({record["update"]: record for record in _compact(monitor)}.values())
        kept.sort(key=lambda record: int(record["update"]))
        run.grids = _grids(kept)
        for metric in LOGGED:
            points = [(int(r["update"]), number(r[metric])) for r in kept if metric in r]
            if points and metric not in run.metrics:
                run.metrics[metric] = Curves(name, points)
    if path.is_dir():
        found = events.read(folder / events.NAME)
        run.events = sorted(found, key=lambda event: (event.finding.started, event.update))
    if not run.metrics and not run.grids:
        raise ValueError(
            f"{path} has no progress lines in {LOG} and no records in {records.NAME}: train with"
            " --log-format json, and wait for the first line"
        )
    return run


def _compact(file: Path) -> Iterator[records.Record]:
    """Yield records with arrays for lists: of a deep model a file has millions of numbers."""
    for record in records.read(file):
        yield {**record, "values": dict(_series(record.get("values")))}


def _series(values: Any) -> Iterator[tuple[GridKey, NDArray[np.float64]]]:
    """Yield a record's values by what they are of, each (L); -1 where there is none."""
    for name, value in values.items() if isinstance(values, dict) else ():
        level = QUANTITIES[name].level if name in QUANTITIES else None
        if level is Level.MODEL:
            yield GridKey(name), _array([value])
        elif level is not None and isinstance(value, dict):
            for side, item in value.items():
                if level is Level.STACK:
                    yield GridKey(name, side), _array([item])
                elif isinstance(item, dict):
                    for part, layers in item.items():
                        if isinstance(layers, list) and layers:
                            yield GridKey(name, side, part), _array(layers)


_NONE: Final = -1.0
"""In these arrays: no number was measured. All quantities are norms, ratios and entropies."""


def _array(values: Iterable[Any]) -> NDArray[np.float64]:
    return np.array([_NONE if value is None else number(value) for value in values])


def _grids(kept: Sequence[records.Record]) -> dict[GridKey, Grid]:
    """Return grids, quantities and sides in the order of their tables, parts as recorded."""
    rows: dict[GridKey, dict[int, NDArray[np.float64]]] = {}
    for record in kept:
        for key, row in record["values"].items():
            rows.setdefault(key, {})[int(record["update"])] = row
    order = list(QUANTITIES)
    grids = {}
    for key in sorted(rows, key=lambda key: (order.index(key.quantity), key.side != SIDES[0])):
        values = np.full((len(rows[key]), max(map(len, rows[key].values()))), _NONE)
        for place, row in enumerate(rows[key].values()):
            values[place, : len(row)] = row
        given = values != _NONE
        grids[key] = Grid(np.array(list(rows[key])), np.where(given, values, np.nan), given)
    return grids
