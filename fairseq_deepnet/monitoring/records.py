"""Monitored quantities, read from quantities.md, and their records.

monitor.jsonl contains one JSON object per monitored update:

    {"update": 100, "lr": 2e-4, "loss": 7.1, "nll_loss": 5.9, "gnorm": 1.3,
     "values": {"model_update": 3.2,                                          # model
                "embedding_gradient_norm": {"encoder": 0.1, "decoder": 0.2},   # side
                "gradient_norm": {"decoder": {"layer": [0.1, ...], "self_attn": [...], ...}}}}

Lists contain one value per layer, lowest layer first. Single values, such as those of Pre-LN's
final LayerNorm, are lists of length one. null marks a missing value, such as that of a layer that
LayerDrop skipped. Non-finite numbers are written as "nan", "inf" and "-inf", because strict JSON
does not support them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..files import write_text
from ..records import strict

NAME: Final = "monitor.jsonl"
Record = dict[str, Any]


@dataclass(frozen=True)
class Quantity:
    """Row of the table in quantities.md, with one field per column."""

    name: str  # in --monitor, monitor.jsonl, TensorBoard and figures
    level: str  # scope of a value: "model", "side" or "layer and part"
    unit: str
    when: str  # moment of the measurement within an update
    meaning: str  # definition, including the reduction
    source: str  # place in the paper


def _rows() -> Iterator[Quantity]:
    for line in Path(__file__).with_name("quantities.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            name, *rest = (cell.strip().replace(r"\|", "|") for cell in cells)
            yield Quantity(name.strip("`"), *rest)


QUANTITIES: Final = {quantity.name: quantity for quantity in _rows()}
"""Quantities by name, in the order of the table."""


def run_folder(save_dir: Path) -> Path:
    """Return the folder that contains a run's records.

    With scripts/train.sh, it is the run folder; with plain fairseq-train, it is --save-dir.
    """
    parent = save_dir.absolute().parent  # also if checkpoints is a link to another disk
    is_run = save_dir.name == "checkpoints" and (parent / "config.yaml").is_file()
    return parent if is_run else save_dir


def _line(record: Record) -> str:
    # float32 has seven significant digits
    return json.dumps(strict(record, digits=7), allow_nan=False) + "\n"


def _numbers(value: Any) -> Any:
    """Replace the strings "nan", "inf" and "-inf" with floats; this is the inverse of `strict`."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def append(file: Path, record: Record) -> None:
    """Append a line to a JSON-lines file. A crash may truncate the line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(_line(record))


def read(file: Path) -> Iterator[Record]:
    """Yield the records in order, skipping unfinished lines of killed runs."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                yield _numbers(json.loads(line))


def keep_until(file: Path, update: int, attempt: int = 0) -> None:
    """Drop the records of updates after `update`; a run that resumes there repeats these updates.

    Args:
        attempt: records of earlier attempts stay; later ones are those of a discarded run
    """
    if file.is_file():
        remaining = [
            record
            for record in read(file)
            if record["update"] <= update or record.get("attempt", 0) < attempt
        ]
        write_text(file, "".join(map(_line, remaining)))
