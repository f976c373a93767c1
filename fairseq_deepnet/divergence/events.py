"""Events of the divergence watch: findings of its detectors, with likely cause and remedies.

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

    finding: Finding
    update: int  # of the detection
    cause: str  # a sentence on the likely cause, with remedies
    last_good: Mapping[str, Any]  # statistics of the last healthy look, if there was one
    policy: str  # --on-divergence
    attempt: int  # fallbacks taken before
    is_end: bool = False  # of the trouble, and no event of its own

    def record(self) -> dict[str, Any]:
        """Return the line of divergence.jsonl."""
        finding = self.finding
        line = {"update": self.update, "kind": finding.kind.value, "started": finding.started}
        if self.is_end:
            return {**line, "ended": True, "attempt": self.attempt}
        return {
            **line,
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
        names = [name for name in ("loss", "nll_loss", "gnorm", "lr") if name in self.last_good]
        if names:
            good = ", ".join(f"{name} {self.last_good[name]:.3g}" for name in names)
            text += f". Last good, at update {self.last_good['update']:,}: {good}"
        return f"{text}. Likely cause: {self.cause}"


def read(file: Path) -> list[Event]:
    """Return the events of a run in order; an empty list without a file."""
    events = []
    for line in records.read(file) if file.is_file() else ():
        layers = {side: tuple(region) for side, region in line.get("layers", {}).items()}
        what, values = line.get("what", ""), line.get("values", {})
        event = Event(
            Finding(Kind(line["kind"]), line["started"], what, layers, values),
            update=line["update"],
            cause=line.get("cause", ""),
            last_good=line.get("last_good", {}),
            policy=line.get("policy", ""),
            attempt=line.get("attempt", 0),
            is_end=line.get("ended", False),
        )
        events.append(event)
    return events


def region_text(layers: Mapping[str, Region]) -> str:
    """Return "decoder layers 1-14 of 18" for {"decoder": (1, 14, 18)}."""
    return " and ".join(
        f"{side} layers {first}-{last} of {depth}"
        if first < last
        else f"{side} layer {first} of {depth}"
        for side, (first, last, depth) in layers.items()
    )


@dataclass(frozen=True)
class Circumstances:
    """Facts about a run that help to explain its divergence."""

    scheme: str  # of the residuals
    depths: dict[str, int]  # layers of each side that the model has
    lr: float  # the peak of the learning rate
    warmup: int  # updates until it is reached
    precision: str  # fp32, bf16 or fp16
    clip: float  # --clip-norm
    adam_eps: float | None  # --adam-eps; None with another optimiser
    frozen: str  # --freeze-norms

    @classmethod
    def of(cls, args: Any) -> Circumstances:
        """Return the facts that parsed training options contain."""
        depths = {side: getattr(args, f"{side}_layers", None) for side in ("encoder", "decoder")}
        rates = getattr(args, "lr", None) or [0.0]
        is_adam = getattr(args, "optimizer", None) in ("adam", "fused_adam")
        halves = (name for name in ("fp16", "bf16") if getattr(args, name, False))
        return cls(
            scheme=args.residual_scheme,
            depths={side: n for side, n in depths.items() if isinstance(n, int)} or {"decoder": 0},
            lr=max(map(float, rates)) if isinstance(rates, list | tuple) else float(rates),
            warmup=int(getattr(args, "warmup_updates", 0) or 0),
            precision=next(halves, "fp32"),
            clip=float(getattr(args, "clip_norm", 0.0) or 0.0),
            adam_eps=float(args.adam_eps) if is_adam else None,
            frozen=getattr(args, "freeze_norms", "none"),
        )

    def when(self, update: int) -> str:
        """Describe the state of the learning rate at an update."""
        if self.warmup <= 1:
            return f"without warm-up, at a learning rate of {self.lr:g} from the first update"
        rise = f"a warm-up of {self.warmup:,}"
        if update <= self.warmup:
            return f"at update {update:,} of {rise} to a learning rate of {self.lr:g}"
        return f"after {rise} updates to a learning rate of {self.lr:g}"


def likely_cause(finding: Finding, run: Circumstances) -> str:
    """Return one or two sentences with the probable cause and remedies."""
    kind, when, deepest = finding.kind, run.when(finding.started), max(run.depths.values())
    from ..schemes import NormPlacement, scheme_class  # loads torch, which plots and reports avoid

    is_post = scheme_class(run.scheme).norm is NormPlacement.POST
    is_plain = run.scheme in ("post-ln", "post-ln-init", "ds-init") and deepest >= LONG_STACK
    plain = f"plain Post-LN of {'-'.join(map(str, run.depths.values()))} layers"
    is_half = kind is Kind.LOSS_SCALE or (kind is Kind.NOT_FINITE and run.precision == "fp16")
    if kind is Kind.VANISHED and is_post:
        above = " and ".join(
            f"{side} layer {top + 1}" for side, (_, top, _) in finding.layers.items()
        )
        text = (
            f"the model update exploded {when}: LayerNorm's inputs grew, and the gradient through"
            f" LayerNorm, about sqrt(d)/|x|, vanishes below {above}"
        )
        text += f" ({plain}; paper, Section 3)" if is_plain else ""
    elif kind is Kind.VANISHED:
        where = region_text(finding.layers)
        text = f"updates were too large {when}: what leaves {where} no longer changes the loss"
    elif kind is Kind.LOSS_SCALE:
        text = f"gradients overflow fp16 at ever smaller scales: they grow without limit {when}"
    elif is_half:
        text = "values left the range of fp16 (65,504)"
        if run.scheme == "rezero":
            text += ", which ReZero is known for at any depth (paper, footnote 3)"
    elif kind is Kind.STALLED:
        text = f"the model predicts by frequency and ignores its input: {run.when(10**9)}"
        text += (
            f" {plain} loses its gradients below the top layers"
            if is_plain
            else " updates were too large, or there were too few of them"
        )
    elif kind is Kind.NOT_FINITE and not is_post:
        text = f"the residual stream, which no LayerNorm bounds with {run.scheme}, exploded {when}"
    else:
        text = f"one or more updates were too large {when}"
    vanished = kind is Kind.VANISHED and is_post and not is_plain
    has_small_eps = run.adam_eps is not None and run.adam_eps < EPSILON
    can_freeze = deepest >= LONG_ENOUGH_TO_FREEZE and run.frozen != "both"
    remedies = {
        "train in --bf16 or fp32": is_half,
        "clip gradients (--clip-norm 1.0)": kind is Kind.LOSS_SPIKE and run.clip <= 0,
        "lower --lr": True,
        "lengthen --warmup-updates": True,
        f"raise --adam-eps to {EPSILON:g}": vanished and has_small_eps,
        "start again with --freeze-norms both": vanished and can_freeze,
        "use --residual-scheme deepnorm": run.scheme != "deepnorm",
    }
    *others, last = [remedy for remedy, applies in remedies.items() if applies]
    return f"{text}; {', '.join(others)} or {last}."
