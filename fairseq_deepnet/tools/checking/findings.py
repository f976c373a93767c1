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
    """A deviation from the claim: in a part of the model, `measured` instead of `expected`.

    `kind` is a category, such as `weights`.
    """

    kind: str
    where: str
    measured: str
    expected: str

    def sentence(self) -> str:
        """Return the whole in one sentence."""
        return f"{self.where}: {self.measured}, expected {self.expected}."


@dataclasses.dataclass(frozen=True)
class WeightRow:
    """Standard deviations around 0 of a kind of parameter, such as `self_attn.q_proj`.

    Args:
        expected, measured: a number per layer, or the smallest and largest of many.
        gain, measured_gain: ratios to Xavier's; empty for parameters without one.
        ratio: measured / expected, all layers pooled; None if 0 is expected.
        tolerance: largest allowed distance of `ratio` from 1.
        fine: None if nothing is expected.
    """

    name: str
    expected: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()
    gain: tuple[float, ...] = ()
    measured_gain: tuple[float, ...] = ()
    ratio: float | None = None
    tolerance: float = 0.0
    fine: bool | None = None
    note: str = ""

    def measured_only(self) -> WeightRow:
        """Return the row without expectations, for trained weights."""
        return dataclasses.replace(self, expected=(), gain=(), ratio=None, fine=None)


@dataclasses.dataclass(frozen=True)
class ResidualRow:
    """Formula of stream and branch of one sublayer of all layers of a stack."""

    name: str
    measured: str
    expected: str
    fine: bool


@dataclasses.dataclass
class StackFindings:
    """Claim and measurements of one stack."""

    side: Side
    scheme: str
    layers: int
    alpha: str = ""
    expected_alpha: str = ""
    beta: str = ""
    expected_beta: str = ""
    norm: str = ""
    expected_norm: str = ""
    residuals: list[ResidualRow] = dataclasses.field(default_factory=list)
    rows: list[WeightRow] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Findings:
    """A report. `judged`: initial weights were judged; `rows`: parameters outside the stacks."""

    subject: str
    claim: str
    parameters: int
    judged: bool
    sides: list[StackFindings]
    rows: list[WeightRow]
    notes: list[str]
    faults: list[Fault]

    @property
    def is_fine(self) -> bool:
        """True if all is as claimed."""
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        content: dict[str, Any] = strict(dataclasses.asdict(self))
        content["verdict"] = "fine" if self.is_fine else "off"
        for fault, plain in zip(self.faults, content["faults"], strict=True):
            plain["sentence"] = fault.sentence()
        return content

    def __str__(self) -> str:
        """Return the report: a section per side, then the faults in sentences."""
        parts = [f"{self.subject}: {self.parameters:,} parameters\njudged as {self.claim}"]
        parts += [_side(side) for side in self.sides]
        if self.rows:
            parts.append("\n".join(["Outside the layers", *_weights(self.rows)]))
        if self.notes:
            parts.append("\n".join(["Notes", *(f"  {note}" for note in self.notes)]))
        left_out = "" if self.judged else " (initial weights not judged)"
        verdict = [f"Verdict: as claimed{left_out}"]
        if self.faults:
            verdict = [f"Verdict: OFF, {counted(len(self.faults), 'fault')}"]
            verdict += [f"  {number}. {f.sentence()}" for number, f in enumerate(self.faults, 1)]
        return "\n\n".join([*parts, "\n".join(verdict)])


def counted(count: int, noun: str) -> str:
    """Return `1 tensor`, `2 tensors`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def layer_numbers(numbers: Sequence[int]) -> str:
    """Return `layer 3`, `layers 0, 2`, `layers 0 to 17`."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"layers {numbers[0]} to {numbers[-1]}"
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def inside(off: Sequence[int], layers: int) -> str:
    """Return ` in layer 3` if some layers are off, nothing if all are."""
    return f" in {layer_numbers(off)}" if 0 < len(off) < layers else ""


def _side(side: StackFindings) -> str:
    rows = [
        ("alpha", side.alpha, side.expected_alpha, ""),
        ("beta (gain of v_proj, out_proj, fc1, fc2)", side.beta, side.expected_beta, ""),
        ("LayerNorm", side.norm, side.expected_norm, ""),
        *((row.name, row.measured, row.expected, MARKS[row.fine]) for row in side.residuals),
    ]
    head = f"{side.side.value.capitalize()}: {side.layers} layers, {side.scheme}"
    return "\n".join(
        [head, *_grid([("", "measured", "expected", ""), *rows]), "", *_weights(side.rows)]
    )


def _weights(rows: Sequence[WeightRow]) -> list[str]:
    numbers = [f"{what} {of}" for of in ("std", "gain") for what in ("expected", "measured")]
    table = [("parameters", *numbers, "ratio", "")]
    for row in rows:
        spans = [_span(row.expected), _span(row.measured), _span(row.gain, 3)]
        spans.append(_span(row.measured_gain, 3))
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        table.append((row.name, *spans, ratio, row.note or MARKS[row.fine]))
    return _grid(table)


def _span(values: Sequence[float], digits: int = 4) -> str:
    """Return one number for all layers, or a range if they differ by more than a tenth."""
    if not values:
        return ""
    low, middle, high = min(values), sum(values) / len(values), max(values)
    if high - low <= 0.1 * abs(middle):
        return f"{middle:.{digits}g}"
    return f"{low:.{digits}g}..{high:.{digits}g}"


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned columns, indented."""
    table = tables.text([list(row) for row in rows], left=len(rows[0]))
    return [f"  {line}".rstrip() for line in table.splitlines()]
