"""The runs of an analysis: what each has recorded, as numbers over updates, layers or epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.experiments.report.results import Result, find_runs, read_result
from fairseq_deepnet.experiments.sweeps import state
from fairseq_deepnet.files import shown
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import Record

RECORD: Final = "sweep.json"


@dataclass(frozen=True)
class Run:
    """A monitored run.

    Arguments:
        cell: its name in the sweep, without the seed
        records: lines of monitor.jsonl; empty for a run that only has losses
        result: settings and losses
    """

    cell: str
    records: tuple[Record, ...]
    result: Result

    def at(self, updates: range) -> list[Record]:
        """The records of these updates, fewer where the run has ended before."""
        return [record for record in self.records if record["update"] in updates]


def read(folder: Path) -> list[Run]:
    """The cells of a sweep's folder that have begun.

    Raises FileNotFoundError where there are none, ValueError for a run of no sweep.
    """
    return [_run(path) for path in find_runs(folder) if (path / "config.yaml").is_file()]


def _run(folder: Path) -> Run:
    file = folder / RECORD
    if not file.is_file():
        raise ValueError(f"{shown(folder)} is no cell of a sweep: give the folder of one")
    places = state.read(folder).get("places")
    if not places:
        raise ValueError(f"{shown(file)} names no place in a table: {shown(folder)} is no cell")
    place = places[0]
    seed = int(place["seed"])
    cell = folder.name.removesuffix(f".seed{seed}")
    monitored = folder / records.NAME
    lines = tuple(records.read(monitored)) if monitored.is_file() else ()
    return Run(cell, lines, read_result(folder))


def setting(runs: Sequence[Run]) -> str:
    """Shape, length, rate and data of the runs in one line."""
    from fairseq_deepnet.experiments.report.notes import trained

    # a training in epochs does not say how many updates it will have
    return trained([run.result for run in runs]).replace("? updates of", "updates of")


# From records to numbers. A quantity's name and layout are those of monitoring/quantities.py.


def model_update(record: Record) -> float | None:
    """How far the model has moved, after the record's update."""
    value = record["values"].get("model_update")
    return None if value is None else float(value)


def layer_norm_input(part: str, sides: Sequence[str]) -> Callable[[Record], float | None]:
    """Mean input norm of the LayerNorms after one sublayer of every layer, of these sides."""

    def read_it(record: Record) -> float | None:
        quantity = record["values"].get("layer_norm_input", {})
        return mean([value for side in sides for value in quantity.get(side, {}).get(part, [])])

    return read_it


def layer_gradients(records_: Sequence[Record], side: str = "decoder") -> list[float | None]:
    """Gradient norm of every layer of a side, the bottom first, mean over updates."""
    lists = [record["values"].get("gradient_norm", {}).get(side, {}) for record in records_]
    layers = [item["layer"] for item in lists if "layer" in item]
    return [mean(values) for values in zip(*layers, strict=True)]


def mean(values: Sequence[Any]) -> float | None:
    """Mean of what is there, nan or infinite where one is; None of nothing."""
    found = [float(value) for value in values if value is not None]
    return sum(found) / len(found) if found else None
