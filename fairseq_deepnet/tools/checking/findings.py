"""What a check finds: faults, rows of tables, and the whole as text and JSON see it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fairseq_deepnet.schemes import Side


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that is not as claimed.

    Arguments:
        kind: a word to count faults by, such as `weights`
        where: the part of the model
        found: what was measured, a phrase
        expected: what was to be measured, a phrase; "" where that goes without saying
        cause: what it likely comes from; "" where nothing is known
        source: what says how it should be, "name: what it says"; "" where that goes without saying
    """

    kind: str
    where: str
    found: str
    expected: str = ""
    cause: str = ""
    source: str = ""

    def sentence(self) -> str:
        """The whole in one or two sentences; of the source only its name."""
        expected = f", expected {self.expected}" if self.expected else ""
        source = f" ({self.source.partition(':')[0]})" if self.source else ""
        cause = f" Likely cause: {self.cause}." if self.cause else ""
        return f"{self.where}: {self.found}{expected}{source}.{cause}"


@dataclasses.dataclass(frozen=True)
class Row:
    """A kind of parameter: its expected and its measured standard deviation.

    Arguments:
        name: such as `self_attn.q_proj`, or of a table outside the layers
        expected, measured: a number of each layer; the largest |x| where 0 is expected
        gain: the expected number over Xavier's, of each layer; empty for what has none
        measured_gain: the same for the measured one
        ratio: measured over expected, all layers pooled; None where 0 is expected
        tolerance: how far `ratio` may be from 1; the JSON has it, the printed table only `fine`
        fine: None where nothing is expected
        note: such as `tied`
    """

    name: str
    expected: tuple[float, ...]
    measured: tuple[float, ...]
    gain: tuple[float, ...] = ()
    measured_gain: tuple[float, ...] = ()
    ratio: float | None = None
    tolerance: float = 0.0
    fine: bool | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class JoinRow:
    """How one sublayer of all layers of a side joins the residual stream."""

    name: str
    found: str
    expected: str
    fine: bool | None


@dataclasses.dataclass
class SideFindings:
    """One stack: what it claims and what was measured."""

    side: Side
    scheme: str
    layers: int
    alpha: str = ""
    expected_alpha: str = ""
    beta: str = ""
    expected_beta: str = ""
    norm: str = ""
    expected_norm: str = ""
    growth: tuple[float, float] | None = None
    joins: list[JoinRow] = dataclasses.field(default_factory=list)
    rows: list[Row] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Findings:
    """All of it.

    Arguments:
        subject: what was checked, in words
        claim: what makes the claim, to follow "judged as"
        judged: whether initial weights could be judged
        sides: one entry a stack
        rows: parameters outside the stacks
        notes: what is not a fault, one sentence each
        faults: in the order in which they were found
    """

    subject: str
    claim: str
    parameters: int
    judged: bool
    sides: list[SideFindings]
    rows: list[Row]
    notes: list[str]
    faults: list[Fault]

    @property
    def is_fine(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        content: dict[str, Any] = _finite(dataclasses.asdict(self))
        content["verdict"] = "fine" if self.is_fine else "off"
        for fault, plain in zip(self.faults, content["faults"], strict=True):
            plain["sentence"] = fault.sentence()
        return content


def _finite(value: Any) -> Any:
    """The same with text for NaN and infinity, which JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
