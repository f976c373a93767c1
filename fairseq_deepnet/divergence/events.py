"""Events of the divergence watch, made from findings of its detectors.

An event is one line of divergence.jsonl and one warning in the log:

    {"update": 12, "kind": "vanished_gradients", "started": 2, "what": "...", "cause": "...",
     "layers": {"decoder": [1, 13, 18]}, "values": {...}, "last_good": {...},
     "policy": "warn", "attempt": 0}

`update` is the update of the detection, `started` the first update after the last healthy one.
`layers` gives the first and last affected layer, counted from 1 at the bottom, and the depth of
their stack. `attempt` is the number of fallbacks before. A line with `"ended": true` reports that
the loss or the gradients have recovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ..monitoring import records

NAME: Final = "divergence.jsonl"
LEARNT: Final = 0.1
"""Bits per token below a unigram model that count as learning."""
Region = tuple[int, int, int]
"""First layer, last layer (both from 1), layers in the stack."""


class Kind(StrEnum):
    """Kind of trouble that a detector looks for."""

    NOT_FINITE = "not_finite"
    LOSS_SPIKE = "loss_spike"
    STALLED = "stalled"
    VANISHED = "vanished_gradients"
    LOSS_SCALE = "loss_scale"

    @property
    def label(self) -> str:
        """Name in figures."""
        return self.value.replace("_", " ")


@dataclass(frozen=True)
class Finding:
    """Finding of a detector: `what` is a sentence without its full stop, `values` its numbers."""

    kind: Kind
    started: int
    what: str
    layers: Mapping[str, Region] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """A finding with the facts that a person needs to judge it."""

    finding: Finding  # of a detector
    update: int  # at which it was found
    cause: str  # a sentence on the likely cause, with remedies
    # statistics of the last look at which all was well; empty where there was none
    last_good: Mapping[str, Any]
    policy: str  # what is to be done
    attempt: int  # fallbacks taken before
    is_end: bool = False  # of the trouble, and no event of its own

    def record(self) -> dict[str, Any]:
        """Return the line of divergence.jsonl."""
        finding = self.finding
        return {
            "update": self.update,
            "kind": finding.kind.value,
            "started": finding.started,
            "what": finding.what,
            "cause": self.cause,
            "layers": {side: list(region) for side, region in finding.layers.items()},
            "values": dict(finding.values),
            "last_good": dict(self.last_good),
            "policy": self.policy,
            "attempt": self.attempt,
        }

    def __str__(self) -> str:
        text = f"divergence at update {self.update:,}: {self.finding.what}"
        if self.finding.started < self.update:
            text += f"; it began at update {self.finding.started:,}"
        good = [
            f"{name} {self.last_good[name]:.3g}"
            for name in ("loss", "nll_loss", "gnorm", "lr")
            if isinstance(self.last_good.get(name), float)
        ]
        if good:
            text += f". Last good, at update {self.last_good['update']:,}: {', '.join(good)}"
        return f"{text}. Likely cause: {self.cause}"


def ended(finding: Finding, update: int, attempt: int) -> dict[str, Any]:
    """Return the line that reports a recovery."""
    kind, started = finding.kind.value, finding.started
    return {"update": update, "kind": kind, "started": started, "ended": True, "attempt": attempt}


def read(file: Path) -> list[Event]:
    """Return the events of a run in order; an empty list without a file.

    Lines of another format, perhaps of another version, are skipped.
    """
    found = []
    for line in records.read(file) if file.is_file() else ():
        try:
            found.append(_event(line))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return found


def _event(line: Mapping[str, Any]) -> Event:
    layers = {}
    for side, region in line.get("layers", {}).items():
        first, last, depth = map(int, region)
        layers[side] = first, last, depth
    what, values = str(line.get("what", "")), line.get("values", {})
    return Event(
        Finding(Kind(line["kind"]), int(line["started"]), what, layers, values),
        update=int(line["update"]),
        cause=str(line.get("cause", "")),
        last_good=line.get("last_good", {}),
        policy=str(line.get("policy", "")),
        attempt=int(line.get("attempt", 0)),
        is_end=line.get("ended") is True,
    )


def region_text(layers: Mapping[str, Region]) -> str:
    """Return "decoder layers 1-14 of 18" for {"decoder": (1, 14, 18)}."""
    return " and ".join(
        f"{side} layers {first}-{last} of {depth}"
        if first < last
        else f"{side} layer {first} of {depth}"
        for side, (first, last, depth) in layers.items()
    )
