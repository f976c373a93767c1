"""Medians, spread and Markdown."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from side_by_side.parts import PARTS
from side_by_side.race import LIMITS
from side_by_side.systems import Shape

HEAD = ["model", "system", "s / update", "quartiles", "tokens / s", "speed", "quartiles"]
HEAD += [*PARTS, "products", "peak MiB"]

ADAM_BYTES = 28
"""Bytes in fp32: weight, gradient and two moments are read; all but the gradient are written."""


def quartiles(values: Sequence[float], digits: int) -> str:
    """Return the lower and upper quartile as text."""
    if len(values) < 2:
        return ""
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return f"{lower:.{digits}f}-{upper:.{digits}f}"


def ratios(base: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return base / other for each round."""
    return [one / two for one, two in zip(base, other, strict=False)]


Answers = Sequence[dict[str, Any]]
"""Updates of a system: seconds by either clock, and the round."""


def in_turn(base: Answers, other: Answers, first: str, second: str | None = None) -> list[float]:
    """Return base[first] / other[second] for the rounds of both."""
    rounds = {one["round"]: one[first] for one in base}
    key = second or first
    return [rounds[one["round"]] / one[key] for one in other if one["round"] in rounds]


def speed(base: Answers, other: Answers, first: str, second: str | None = None) -> float:
    """Return the median of `in_turn`."""
    return statistics.median(in_turn(base, other, first, second))


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def head(cells: Sequence[str], words: int) -> list[str]:
    """Return the first two lines of a table, with the first `words` columns left-aligned."""
    return [line(cells), "|" + "---|" * words + "---:|" * (len(cells) - words)]


def rows(shape: Shape, found: dict[str, list[dict[str, Any]]], clock: str, base: str) -> list[str]:
    """Return a row per system; speeds are empty if the base did not run."""
    names = [name for name in found if name != LIMITS]
    limits, yardstick = found.get(LIMITS, []), found.get(base, [])
    lines = []
    for name in names:
        answers = found[name]
        taken = [answer[clock] for answer in answers]
        parts = {
            part: statistics.median(
                one["parts"][part] / sum(one["parts"].values()) for one in answers
            )
            for part in PARTS
        }
        rate = [answer["tokens"] / answer[clock] for answer in answers]
        cells = [shape.name, name, f"{statistics.median(taken):.3f}", quartiles(taken, 3)]
        cells += [f"{statistics.median(rate):,.0f}"]
        cells += [f"{speed(yardstick, answers, clock):.2f}" if yardstick else ""]
        cells += [quartiles(in_turn(yardstick, answers, clock), 2)]
        cells += [f"{parts[part]:.0%}" for part in PARTS]
        same = answers[0]["precision"] == shape.precision  # as the limits were measured in
        cells += [f"{speed(limits, answers, 'seconds', clock):.0%}" if same else ""]
        cells += [f"{max(answer['peak'] for answer in answers) / 2**20:,.0f}"]
        lines.append(line(cells))
    return lines


def about_limits(shape: Shape, found: dict[str, list[dict[str, Any]]]) -> str:
    """Describe the limits in a sentence."""
    limits = found.get(LIMITS, [])
    if not limits:
        return ""
    rate = statistics.median(answer["operations"] / answer["seconds"] for answer in limits)
    share = statistics.median(answer["attention"] for answer in limits)
    copied = statistics.median(answer["copied"] for answer in limits)
    parameters = next(answers[0]["parameters"] for name, answers in found.items() if name != LIMITS)
    return (
        f"{shape.name}: the products of an update run at {rate / 1e9:,.0f} GFLOP/s, {share:.0%} of"
        f" their time is attention's; memory copies {copied / 1e9:.1f} GB/s (read + written), at"
        f" which Adam's {ADAM_BYTES} bytes per parameter take"
        f" {ADAM_BYTES * parameters / copied:.3f} s for {parameters:,} parameters"
    )


def machine() -> str:
    """Return the name of the processor."""
    for text in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if text.startswith("model name"):
            return text.partition(":")[2].strip()
    return platform.processor()
