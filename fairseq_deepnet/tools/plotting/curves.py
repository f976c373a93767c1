"""Training curves from the JSON lines of fairseq's log."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

# fairseq's logger name stands between bars before the JSON: "... | INFO | train_inner | {...}".
_PROGRESS = re.compile(r"\| (train_inner|valid) \| (\{.*\})\s*$")
LOG: Final = "train.log"


@dataclass
class Curves:
    """Updates and losses (base 2, per token) from the log of a run."""

    name: str
    train: list[tuple[int, float]] = field(default_factory=list)
    valid: list[tuple[int, float]] = field(default_factory=list)


def _records(log: Path) -> Iterator[tuple[str, dict[str, object]]]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            match = _PROGRESS.search(line)
            if match:
                try:
                    yield match[1], json.loads(match[2])
                except json.JSONDecodeError:
                    continue  # the line that a killed run was writing


def number(value: object) -> float:
    """Parse a number, which fairseq's log writes as text; nan for anything else."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def read_metrics(run: Path, metrics: Sequence[str]) -> dict[str, Curves]:
    """Read several metrics of a run folder (or of a log file) in one pass.

    If a resumed run logged an update twice, the later line counts. If the run went back to an
    earlier update, later points are dropped. Losses that are not finite are kept, as they show
    where a run broke. Metrics that were never logged are left out.

    Raises FileNotFoundError for a run without a log.
    """
    log = run / LOG if run.is_dir() else run
    if not log.is_file():
        raise FileNotFoundError(f"{run} has no {LOG}; give a run folder of train.sh")
    name = run.resolve().name if run.is_dir() else run.stem
    points: dict[tuple[str, str], dict[int, float]] = {}
    latest = 0.0
    for kind, record in _records(log):
        prefix = "valid_" if kind == "valid" else ""
        update = number(record.get(f"{prefix}num_updates"))
        if not math.isfinite(update):
            continue
        if update < latest:
            for series in points.values():
                for beyond in [key for key in series if key > update]:
                    del series[beyond]
        latest = update
        for metric in metrics:
            value = record.get(f"{prefix}{metric}")
            if value is not None:
                points.setdefault((metric, kind), {})[int(update)] = number(value)
    curves = {}
    for metric in metrics:
        both = [sorted(points.get((metric, kind), {}).items()) for kind in ("train_inner", "valid")]
        if any(both):
            curves[metric] = Curves(name, *both)
    return curves
