"""Medians, quartiles and Markdown."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

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


def line(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def head(cells: Sequence[str], words: int) -> list[str]:
    """Return the first two lines of a table, with the first `words` columns left-aligned."""
    return [line(cells), "|" + "---|" * words + "---:|" * (len(cells) - words)]


def limits(device: str = "cpu") -> str:
    """Measure the rates of fp32 matrix products and of copies in memory: medians."""
    side = 8192 if device == "cuda" else 1024
    tensors = {"x": torch.rand(side, side, device=device), "y": torch.rand(2**26, device=device)}
    product, copy = (
        Timer(code, globals=tensors, num_threads=torch.get_num_threads()).blocked_autorange().median
        for code in ("x @ x", "y.clone()")
    )
    products, copies = 2 * side**3 / product / 1e9, 2 * tensors["y"].nbytes / copy / 1e9
    return f"limits: {products:,.0f} GFLOP/s in fp32 products, {copies:,.0f} GB/s in copies"


def machine() -> str:
    """Return the name of the processor."""
    for text in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if text.startswith("model name"):
            return text.partition(":")[2].strip()
    return platform.processor()
