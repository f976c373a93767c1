"""Events of the divergence watch, with likely causes and remedies.

An event is one line of divergence.jsonl and one warning in the log:

    {"kind": "vanished_gradients", "started": 2, "what": "...", "layers": {"decoder": [1, 13, 18]},
     "values": {...}, "update": 12, "cause": "...", "last_good": {...}, "policy": "warn",
     "attempt": 0, "ended": false}

A line with `"ended": true` reports that the loss or the gradients have recovered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ..monitoring import records
from ..optim.schedule import warmup_of

NAME: Final = "divergence.jsonl"
LONG_STACK: Final = 12
"""Number of layers per side from which warm-up is not enough for plain Post-LN. In the paper's
Table 1, 6 layers train and 18 diverge."""
EPSILON: Final = 1e-4
"""Adam's epsilon with which a 50L-50L model was stable at the learning rate of 6L-6L, with 1,024
tokens per update (docs/reports/depth.md). Initial gradients of deep stacks are far below this
value. With a smaller epsilon, Adam's steps are as long for small gradients as for large ones."""
LONG_ENOUGH_TO_FREEZE: Final = 50
"""Number of layers per side from which --freeze-norms both improves Post-LN
(docs/reports/depth.md)."""
LEARNT: Final = 0.1
"""Bits per token by which a learning model's loss falls, or lies below a unigram model's loss."""
Region = tuple[int, int, int]
"""First layer, last layer (both counted from 1), and number of layers in the stack."""


class Kind(StrEnum):
    """Kind of problem that an event reports."""

    NOT_FINITE = "not_finite"
    LOSS_SPIKE = "loss_spike"
    STALLED = "stalled"
    VANISHED = "vanished_gradients"
    RANK = "rank_collapse"
    LOSS_SCALE = "loss_scale"


@dataclass(frozen=True)
class Event:
    """Sign of divergence, with the numbers needed to judge it."""

    kind: Kind
    started: int  # first update after the last healthy one
    what: str = ""  # a sentence without its full stop
    layers: Mapping[str, Region] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    update: int = 0  # of the detection, or of the recovery
    cause: str = ""  # a sentence with the likely cause and remedies
    last_good: Mapping[str, Any] = field(default_factory=dict)  # numbers of a healthy update
    policy: str = "warn"  # --on-divergence
    attempt: int = 0  # number of earlier fallbacks
    ended: bool = False  # True for a recovery

    def __str__(self) -> str:
        text = f"divergence at update {self.update:,}: {self.what}"
        if self.started < self.update:
            text += f"; it began at update {self.started:,}"
        names = [name for name in ("loss", "nll_loss", "gnorm", "lr") if name in self.last_good]
        if names:
            good = ", ".join(f"{name} {self.last_good[name]:.3g}" for name in names)
            text += f". Last good, at update {self.last_good['update']:,}: {good}"
        return f"{text}. Likely cause: {self.cause}"


def read(file: Path) -> list[Event]:
    """Return a run's events in order; return an empty list if the file does not exist."""
    lines = list(records.read(file)) if file.is_file() else []
    for line in lines:
        line["kind"] = Kind(line["kind"])
        line["layers"] = {side: tuple(r) for side, r in line.get("layers", {}).items()}
    return [Event(**line) for line in lines]


def not_ended(events: Iterable[Event]) -> dict[Kind, Event]:
    """Return the last event of each kind from which the run has not recovered, in order."""
    current: dict[Kind, Event] = {}
    for event in events:
        current.pop(event.kind, None)
        if not event.ended:
            current[event.kind] = event
    return current


def region_text(layers: Mapping[str, Region]) -> str:
    """Return "decoder layers 1-14 of 18" for {"decoder": (1, 14, 18)}."""
    return " and ".join(
        f"{side} layers {first}-{last} of {depth}" for side, (first, last, depth) in layers.items()
    )


def likely_cause(event: Event, args: Any) -> str:
    """Return one sentence with an event's probable cause and remedies.

    Args:
        event: event to explain
        args: the run's options, as parsed by fairseq-train
    """
    from ..schemes import NormPlacement, scheme_class  # loads torch, which plots and reports avoid

    kind, scheme = event.kind, args.residual_scheme
    depth = max(getattr(args, f"{side}_layers", None) or 0 for side in ("encoder", "decoder"))
    warmup = warmup_of(args)
    is_post = scheme_class(scheme).norm is NormPlacement.POST
    is_plain = scheme in ("post-ln", "post-ln-init", "ds-init") and depth >= LONG_STACK
    has_overflow = kind is Kind.LOSS_SCALE or (kind is Kind.NOT_FINITE and args.fp16)
    when = f"with a learning rate of {max(args.lr):g} after {warmup:,} updates of warm-up"
    if warmup <= 1:
        when = f"without warm-up, at a learning rate of {max(args.lr):g}"
    causes = {
        Kind.LOSS_SPIKE: f"one or more updates were too large {when}",
        Kind.NOT_FINITE: f"one or more updates were too large {when}",
        Kind.LOSS_SCALE: f"gradients grow without limit {when}, and overflow fp16",
        Kind.STALLED: "the model predicts by frequency and ignores its input: updates were too"
        f" large {when}, or there were too few of them",
        Kind.VANISHED: f"updates were too large {when}: the output of {region_text(event.layers)}"
        " no longer changes the loss",
        Kind.RANK: f"updates were too large {when}: the decoder can hardly use its source",
    }
    text = causes[kind]
    if kind is Kind.VANISHED and is_post:
        text = (
            f"the model update exploded {when}: LayerNorm's inputs grew, and the gradient through"
            f" LayerNorm, about sqrt(d)/|x|, vanishes in {region_text(event.layers)}"
        )
        text += " (plain Post-LN; paper, Section 3)" if is_plain else ""
    elif kind is Kind.NOT_FINITE and has_overflow:
        text = "values left the range of fp16 (65,504)"
    elif kind is Kind.NOT_FINITE and not is_post:
        text = f"the residual stream, which no LayerNorm bounds with {scheme}, exploded {when}"
    has_vanished = kind in (Kind.VANISHED, Kind.RANK) and is_post and not is_plain
    has_small_eps = getattr(args, "adam_eps", EPSILON) < EPSILON  # absent with other optimisers
    can_freeze = depth >= LONG_ENOUGH_TO_FREEZE and args.freeze_norms != "both"
    remedies = {
        "train in --bf16 or fp32": has_overflow,
        "clip gradients (--clip-norm 1.0)": kind is Kind.LOSS_SPIKE and args.clip_norm <= 0,
        "lower --lr": True,
        "lengthen --warmup-updates": True,
        f"raise --adam-eps to {EPSILON:g}": has_vanished and has_small_eps,
        "start again with --freeze-norms both": has_vanished and can_freeze,
        "use --residual-scheme deepnorm": scheme != "deepnorm",
    }
    *others, last = [remedy for remedy, applies in remedies.items() if applies]
    return f"{text}; {', '.join(others)} or {last}."
