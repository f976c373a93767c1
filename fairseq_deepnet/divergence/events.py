"""Events of the divergence watch: trouble, its likely cause, and remedies.

An event is one line of divergence.jsonl and one warning in the log:

    {"kind": "vanished_gradients", "started": 2, "what": "...", "layers": {"decoder": [1, 13, 18]},
     "values": {...}, "update": 12, "cause": "...", "last_good": {...}, "policy": "warn",
     "attempt": 0, "ended": false}

A line with `"ended": true` reports that the loss or the gradients have recovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ..monitoring import records

NAME: Final = "divergence.jsonl"
LONG_STACK: Final = 12
"""Layers per side from which plain Post-LN needs more than a warm-up (paper, Table 1)."""
EPSILON: Final = 1e-4
"""Adam's epsilon with which 50L-50L is stable at the learning rate of 6L-6L, measured at 1,024
tokens per update (docs/reports/depth.md). The first gradients of deep layers are far below it. With
a smaller epsilon, Adam's step is as long for them as for any other gradient."""
LONG_ENOUGH_TO_FREEZE: Final = 50
"""Layers per side from which Post-LN stacks improve with --freeze-norms both
(docs/reports/depth.md)."""
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
class Event:
    """Trouble as a detector reports it, with the facts that a person needs to judge it."""

    kind: Kind
    started: int  # first update after the last healthy one
    what: str = ""  # a sentence without its full stop
    layers: Mapping[str, Region] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    update: int = 0  # of the detection, or of the recovery
    cause: str = ""  # a sentence on the likely cause, with remedies
    last_good: Mapping[str, Any] = field(default_factory=dict)  # of the last healthy look
    policy: str = "warn"  # --on-divergence
    attempt: int = 0  # fallbacks taken before
    ended: bool = False  # the trouble has passed

    def record(self) -> dict[str, Any]:
        """Return the line of divergence.jsonl."""
        return asdict(self)

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
    """Return the events of a run in order; an empty list without a file."""
    lines = list(records.read(file)) if file.is_file() else []
    for line in lines:
        line["kind"] = Kind(line["kind"])
        line["layers"] = {side: tuple(r) for side, r in line.get("layers", {}).items()}
    return [Event(**line) for line in lines]


def region_text(layers: Mapping[str, Region]) -> str:
    """Return "decoder layers 1-14 of 18" for {"decoder": (1, 14, 18)}."""
    return " and ".join(
        f"{side} layers {first}-{last} of {depth}" for side, (first, last, depth) in layers.items()
    )


@dataclass(frozen=True)
class Circumstances:
    """Facts about a run that help to explain its divergence."""

    scheme: str  # of the residuals
    depth: int  # layers of the deeper side
    lr: float  # the peak of the learning rate
    warmup: int  # updates until it is reached
    precision: str  # fp32, bf16 or fp16
    clip: float  # --clip-norm
    adam_eps: float | None  # --adam-eps; None with another optimiser
    frozen: str  # --freeze-norms

    @classmethod
    def of(cls, args: Any) -> Circumstances:
        """Return the facts that parsed training options contain."""
        depths = (getattr(args, f"{side}_layers", None) for side in ("encoder", "decoder"))
        rates = getattr(args, "lr", None) or [0.0]
        is_adam = getattr(args, "optimizer", None) in ("adam", "fused_adam")
        halves = (name for name in ("fp16", "bf16") if getattr(args, name, False))
        return cls(
            scheme=args.residual_scheme,
            depth=max((n for n in depths if isinstance(n, int)), default=0),
            lr=max(map(float, rates)) if isinstance(rates, list | tuple) else float(rates),
            warmup=int(getattr(args, "warmup_updates", 0) or 0),
            precision=next(halves, "fp32"),
            clip=float(getattr(args, "clip_norm", 0.0) or 0.0),
            adam_eps=float(args.adam_eps) if is_adam else None,
            frozen=getattr(args, "freeze_norms", "none"),
        )


def likely_cause(event: Event, run: Circumstances) -> str:
    """Return one sentence with the probable cause and remedies."""
    from ..schemes import NormPlacement, scheme_class  # loads torch, which plots and reports avoid

    kind = event.kind
    is_post = scheme_class(run.scheme).norm is NormPlacement.POST
    is_plain = run.scheme in ("post-ln", "post-ln-init", "ds-init") and run.depth >= LONG_STACK
    has_overflow = kind is Kind.LOSS_SCALE or (kind is Kind.NOT_FINITE and run.precision == "fp16")
    when = f"with a learning rate of {run.lr:g} after {run.warmup:,} updates of warm-up"
    if run.warmup <= 1:
        when = f"without warm-up, at a learning rate of {run.lr:g}"
    causes = {
        Kind.LOSS_SPIKE: f"one or more updates were too large {when}",
        Kind.NOT_FINITE: f"one or more updates were too large {when}",
        Kind.LOSS_SCALE: f"gradients grow without limit {when}, and overflow fp16",
        Kind.STALLED: "the model predicts by frequency and ignores its input: updates were too"
        f" large {when}, or there were too few of them",
        Kind.VANISHED: f"updates were too large {when}: the output of {region_text(event.layers)}"
        " no longer changes the loss",
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
        text = f"the residual stream, which no LayerNorm bounds with {run.scheme}, exploded {when}"
    has_vanished = kind is Kind.VANISHED and is_post and not is_plain
    has_small_eps = run.adam_eps is not None and run.adam_eps < EPSILON
    can_freeze = run.depth >= LONG_ENOUGH_TO_FREEZE and run.frozen != "both"
    remedies = {
        "train in --bf16 or fp32": has_overflow,
        "clip gradients (--clip-norm 1.0)": kind is Kind.LOSS_SPIKE and run.clip <= 0,
        "lower --lr": True,
        "lengthen --warmup-updates": True,
        f"raise --adam-eps to {EPSILON:g}": has_vanished and has_small_eps,
        "start again with --freeze-norms both": has_vanished and can_freeze,
        "use --residual-scheme deepnorm": run.scheme != "deepnorm",
    }
    *others, last = [remedy for remedy, applies in remedies.items() if applies]
    return f"{text}; {', '.join(others)} or {last}."
