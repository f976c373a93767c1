"""Training curves of runs, read from the JSON lines of fairseq's log."""

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
METRICS: Final = {
    "loss": "training objective (bits per token)",
    "nll_loss": "negative log-likelihood (bits per token)",
}


@dataclass
class Curves:
    """Updates and losses (base 2, per token) of one run's log."""

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
    """Read a number, which fairseq's log writes as text; nan for what is none."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def read_metrics(run: Path, metrics: Sequence[str]) -> dict[str, Curves]:
    """Read the curves of a run folder (or of a log file), one pass for several metrics.

    A resumed run writes some updates twice: the later line counts, and what lay beyond the update
    that it goes on from is of a training that was given up. Losses that are not finite are
    kept, for they show where a run broke. Metrics that were never logged are left out.

    Raises FileNotFoundError for a run without a log.
    """
    log = run / LOG if run.is_dir() else run
    if not log.is_file():
        raise FileNotFoundError(f"{run} has no {LOG}; give a run folder that train.sh made")
    name = run.resolve().name if run.is_dir() else run.stem
    points: dict[tuple[str, str], dict[int, float]] = {}
    latest = 0.0
    for kind, record in _records(log):
        prefix = "valid_" if kind == "valid" else ""
        update = number(record.get(f"{prefix}num_updates"))
        if update < latest:
            for held in points.values():
                for beyond in [key for key in held if key > update]:
                    del held[beyond]
        if math.isfinite(update):
            latest = update
        for metric in metrics:
            value = record.get(f"{prefix}{metric}")
            if value is not None and math.isfinite(update):
                points.setdefault((metric, kind), {})[int(update)] = number(value)
    found = {}
    for metric in metrics:
        both = [sorted(points.get((metric, kind), {}).items()) for kind in ("train_inner", "valid")]
        if any(both):
            found[metric] = Curves(name, *both)
    return found


def read_curves(run: Path, metric: str = "loss") -> Curves:
    """Read one metric of a run folder (or of a log file): `read_metrics`.

    Raises FileNotFoundError for a run without a log, ValueError for a log without progress.
    """
    found = read_metrics(run, (metric,))
    if metric not in found:
        log = run / LOG if run.is_dir() else run
        advice = "train with --log-format json, and wait for the first one"
        raise ValueError(f"{log} has no progress lines; {advice}")
    return found[metric]
