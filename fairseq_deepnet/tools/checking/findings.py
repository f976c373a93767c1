"""Findings of a check: records, and the report as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from fairseq_deepnet.records import strict
from fairseq_deepnet.schemes import Side
from fairseq_deepnet.tools import tables

MARKS: Final = {True: "ok", False: "OFF", None: ""}


@dataclasses.dataclass(frozen=True)
class Fault:
    """A deviation from the claim in a part of the model: `measured` differs from `expected`.

    `kind` is a category, such as `weights`.
    """

    kind: str
    where: str
    measured: str
    expected: str

    def sentence(self) -> str:
        """Return the deviation as one sentence."""
        return f"{self.where}: {self.measured}, expected {self.expected}."


@dataclasses.dataclass(frozen=True)
class WeightRow:
    """Standard deviations around 0 of a kind of parameter, such as `self_attn.q_proj`.

    Args:
        expected, measured: one number per layer, or the smallest and the largest if there are many.
        gain, measured_gain: ratios to Xavier's; empty for biases.
        ratio: measured / expected, all layers pooled; None if 0 is expected.
        tolerance: maximum distance of `ratio` from 1.
        fine: None if nothing is expected.
    """

    name: str
    expected: tuple[float, ...]
    measured: tuple[float, ...]
    gain: tuple[float, ...]
    measured_gain: tuple[float, ...]
    ratio: float | None
    tolerance: float
    fine: bool | None


@dataclasses.dataclass(frozen=True)
class Fact:
    """A property of a stack, such as alpha or the formula of a sublayer."""

    name: str
    measured: str
    expected: str
    fine: bool | None = None


@dataclasses.dataclass
class StackFindings:
    """Claim and measurements of one stack."""

    side: Side
    scheme: str
    layers: int
    facts: list[Fact]
    rows: list[WeightRow]


@dataclasses.dataclass
class Findings:
    """A report; `judged` is False for trained weights, whose deviations are only shown."""

    subject: str
    claim: str
    parameters: int
    judged: bool
    sides: list[StackFindings]
    faults: list[Fault]

    @property
    def is_fine(self) -> bool:
        """True if the model matches its claim."""
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        content: dict[str, Any] = strict(dataclasses.asdict(self))
        return content | {"verdict": "fine" if self.is_fine else "off"}

    def __str__(self) -> str:
        """Return the report: a section per side, then the faults in sentences."""
        parts = [f"{self.subject}: {self.parameters:,} parameters\njudged as {self.claim}"]
        for side in self.sides:
            facts = [("", "measured", "expected", "")]
            facts += [(f.name, f.measured, f.expected, MARKS[f.fine]) for f in side.facts]
            head = f"{side.side.value.capitalize()}: {side.layers} layers, {side.scheme}"
            parts += [f"{head}\n{_grid(facts)}", _grid(_weights(side.rows))]
        verdict = ["Verdict: as claimed" + ("" if self.judged else " (initial weights not judged)")]
        if self.faults:
            verdict = [f"Verdict: OFF, faults: {len(self.faults)}"]
            verdict += [f"  {number}. {f.sentence()}" for number, f in enumerate(self.faults, 1)]
        return "\n\n".join([*parts, "\n".join(verdict)])


def inside(off: Sequence[int], layers: int) -> str:
    """Return ` in layers 3, 4` if only some layers deviate, otherwise ""."""
    words = f" in layer{'s' * (len(off) > 1)} {', '.join(map(str, off))}"
    return words if 0 < len(off) < layers else ""


def _weights(rows: Sequence[WeightRow]) -> list[tuple[str, ...]]:
    numbers = [f"{what} {of}" for of in ("std", "gain") for what in ("expected", "measured")]
    table: list[tuple[str, ...]] = [("parameters", *numbers, "ratio", "")]
    for row in rows:
        spans = [_span(row.expected), _span(row.measured), _span(row.gain, 3)]
        spans.append(_span(row.measured_gain, 3))
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        table.append((row.name, *spans, ratio, MARKS[row.fine]))
    return table


def _span(values: Sequence[float], digits: int = 4) -> str:
    """Return one number for all layers, or a range if they differ by more than a tenth."""
    if not values:
        return ""
    low, middle, high = min(values), sum(values) / len(values), max(values)
    if high - low <= 0.1 * abs(middle):
        return f"{middle:.{digits}g}"
    return f"{low:.{digits}g}..{high:.{digits}g}"


def _grid(rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns, indented."""
    table = tables.text([list(row) for row in rows], left=len(rows[0]))
    return "\n".join(f"  {line}".rstrip() for line in table.splitlines())
