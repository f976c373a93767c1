"""The monitored quantities, read from the table in quantities.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final


class Level(StrEnum):
    """Unit that has one value of a quantity."""

    MODEL = "model"
    STACK = "side"
    PART = "layer and part"


@dataclass(frozen=True)
class Quantity:
    """Row of the table, with one field per column."""

    name: str  # in --monitor, monitor.jsonl, TensorBoard and figures
    level: Level  # what there is a value of
    unit: str  # of each value
    when: str  # moment of the update at which it is taken
    meaning: str  # what it is, with its reduction
    source: str  # where the paper has it


def _rows() -> list[Quantity]:
    found = []
    for line in Path(__file__).with_suffix(".md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            name, level, *rest = (cell.strip().replace(r"\|", "|") for cell in cells)
            found.append(Quantity(name.strip("`"), Level(level), *rest))
    return found


QUANTITIES: Final = {quantity.name: quantity for quantity in _rows()}
"""Name -> quantity, in the order of the table."""
EVERYTHING: Final = "all"


def parse_quantities(text: str) -> tuple[str, ...]:
    """Parse "a,b,c" or "all" to names; ValueError names unknown ones."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if EVERYTHING in names:
        return tuple(QUANTITIES)
    unknown = [name for name in names if name not in QUANTITIES]
    if unknown or not names:
        raise ValueError(
            f"--monitor {text!r}: unknown {', '.join(unknown) or 'empty list'}; choose {EVERYTHING}"
            f" or some of {', '.join(QUANTITIES)}, separated by commas"
        )
    return names
