"""Medians, quartiles and Markdown."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Answers = Sequence[dict[str, Any]]
"""Updates of a system: seconds by either clock, and the round."""


def quartiles(values: Sequence[float], digits: int) -> str:
    """Return the lower and upper quartile as text."""
    if len(values) < 2:
        return ""
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return f"{lower:.{digits}f}-{upper:.{digits}f}"


def ratios(base: Answers, other: Answers, key: str) -> list[float]:
    """Return base[key] / other[key] for every round that both have."""
    seconds = {answer["round"]: answer[key] for answer in base}
    return [seconds[a["round"]] / a[key] for a in other if a["round"] in seconds]


def speed(base: Answers, other: Answers, key: str) -> float:
    """Return the median of `ratios`."""
    return statistics.median(ratios(base, other, key))


def line(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def head(cells: Sequence[str], words: int) -> list[str]:
    """Return the first two lines of a table, with the first `words` columns left-aligned."""
    return [line(cells), "|" + "---|" * words + "---:|" * (len(cells) - words)]


def machine() -> str:
    """Return the name of the processor."""
    for text in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if text.startswith("model name"):
            return text.partition(":")[2].strip()
    return platform.processor()
