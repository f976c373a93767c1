"""Medians, quartiles and Markdown."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

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
    """Measure the rates of fp32 matrix products and of copies in memory: medians of five calls."""
    side = 8192 if device == "cuda" else 1024
    matrix, block = torch.rand(side, side, device=device), torch.rand(2**26, device=device)

    def seconds(compute: Callable[[], Any]) -> float:
        measured = []
        for _ in range(6):
            start = time.perf_counter()
            compute()
            if device == "cuda":
                torch.cuda.synchronize()
            measured.append(time.perf_counter() - start)
        return statistics.median(measured[1:])

    products = 2 * side**3 / seconds(lambda: matrix @ matrix) / 1e9
    copies = 2 * block.nbytes / seconds(block.clone) / 1e9
    return f"limits: {products:,.0f} GFLOP/s in fp32 products, {copies:,.0f} GB/s in copies"


def machine() -> str:
    """Return the name of the processor."""
    for text in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if text.startswith("model name"):
            return text.partition(":")[2].strip()
    return platform.processor()
