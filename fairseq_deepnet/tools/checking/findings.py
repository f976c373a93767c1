"""Findings of a check, and their report as text or JSON."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from tabulate import tabulate

from fairseq_deepnet.records import strict
from fairseq_deepnet.schemes import Side

MARKS: Final = {True: "ok", False: "OFF", None: ""}
WEIGHT_COLUMNS: Final = (
    *("parameters", "expected std", "measured std", "expected gain", "measured gain", "ratio", ""),
)
LEGEND: Final = """\
std: standard deviation around 0. The expected values are those of the scheme's initialisation, with
biases of 0, or those of fairseq's for "stock initialisation".
gain: std / Xavier's std, which is sqrt(2 / (fan_in + fan_out)).
ratio: measured std / expected std, pooled over layers."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """Deviation of a part of the model from the claimed scheme.

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
    """Standard deviations around 0 of one kind of parameter, such as `self_attn.q_proj`.

    Args:
        expected, measured: one value per layer; for biases, the smallest and the largest value.
        gain, measured_gain: `expected` and `measured`, divided by Xavier's standard deviation;
            empty for biases.
        ratio: measured / expected, pooled over layers; None if all expected values are 0.
        tolerance: maximum distance of `ratio` from 1.
        fine: True if no deviation was found; None if the weights are not judged.
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
    """A property of a stack, such as alpha or the formula of a sublayer.

    `fine` is None if the property is not judged.
    """

    name: str
    measured: str
    expected: str
    fine: bool | None


@dataclasses.dataclass
class StackFindings:
    """Claimed scheme and measured properties of one stack."""

    side: Side
    scheme: str
    layers: int
    facts: list[Fact]
    rows: list[WeightRow]


@dataclasses.dataclass
class Findings:
    """Report on a model; `judged` is False if trained weights were not compared with the claim."""

    subject: str
    claim: str
    parameters: int
    judged: bool
    sides: list[StackFindings]
    faults: list[Fault]

    @property
    def is_fine(self) -> bool:
        """True if the model matches the claimed scheme."""
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        """Return the report as values that JSON can store."""
        content: dict[str, Any] = strict(dataclasses.asdict(self))
        return content | {"verdict": "fine" if self.is_fine else "off"}

    def __str__(self) -> str:
        """Return the report: a section for each side, a legend, and the verdict with all faults."""
        parts = [f"{self.subject}: {self.parameters:,} parameters\njudged by {self.claim}"]
        for side in self.sides:
            facts = [("", "measured", "expected", "")]
            facts += [(f.name, f.measured, f.expected, MARKS[f.fine]) for f in side.facts]
            weights = [WEIGHT_COLUMNS]
            for row in side.rows:
                stds = _span(row.expected, 4), _span(row.measured, 4)
                gains = _span(row.gain, 3), _span(row.measured_gain, 3)
                ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
                weights.append((row.name, *stds, *gains, ratio, MARKS[row.fine]))
            head = f"{side.side.value.capitalize()}: {side.layers} layers, {side.scheme}"
            parts += [f"{head}\n{_grid(facts)}", _grid(weights)]
        verdict = ["Verdict: as claimed" + ("" if self.judged else " (initial weights not judged)")]
        if self.faults:
            verdict = [f"Verdict: OFF, faults: {len(self.faults)}"]
            verdict += [f"  {number}. {f.sentence()}" for number, f in enumerate(self.faults, 1)]
        return "\n\n".join([*parts, LEGEND, "\n".join(verdict)])


def inside(off: Sequence[int], layers: int) -> str:
    """Return text such as ` in layers 3, 4`, or "" if no layer or every layer deviates."""
    words = f" in layer{'s' * (len(off) > 1)} {', '.join(map(str, off))}"
    return words if 0 < len(off) < layers else ""


def _span(values: Sequence[float], digits: int) -> str:
    """Return the mean, or a range if the values differ by more than 10% of the mean."""
    if not values:
        return ""
    low, middle, high = min(values), sum(values) / len(values), max(values)
    if high - low <= 0.1 * abs(middle):
        return f"{middle:.{digits}g}"
    return f"{low:.{digits}g}..{high:.{digits}g}"


def _grid(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned, indented columns."""
    lines = tabulate(rows, "firstrow", disable_numparse=True).splitlines()
    return "\n".join(f"  {line}".rstrip() for line in lines)
