"""Likely cause of a divergence and remedies, derived from facts about the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..schemes import NormPlacement, scheme_class
from .events import Finding, Kind, region_text

LONG_STACK: Final = 12
"""Layers per side from which plain Post-LN needs more than a warm-up (paper, Table 1)."""
EPSILON: Final = 1e-4
"""Adam's epsilon with which 50L-50L is stable at the learning rate of 6L-6L, measured at 1,024
tokens per update (docs/reports/depth.md). The first gradients of deep layers are far below it. With
a smaller epsilon, Adam's step is as long for them as for any other gradient."""
LONG_ENOUGH_TO_FREEZE: Final = 50
"""Layers per side from which Post-LN stacks improve with --freeze-norms both
(docs/reports/depth.md)."""


@dataclass(frozen=True)
class Circumstances:
    """Facts about a run that help to explain its divergence."""

    scheme: str  # of the residuals
    depths: dict[str, int]  # layers of each side that the model has
    lr: float  # the peak of the learning rate
    warmup: int  # updates until it is reached
    precision: str  # fp32, bf16, fp16 or amp
    clip: float  # --clip-norm
    adam_eps: float | None  # --adam-eps; None with another optimiser
    frozen: str  # --freeze-norms

    @classmethod
    def of(cls, args: Any) -> Circumstances:
        """Return the facts that parsed training options contain."""
        depths = {side: getattr(args, f"{side}_layers", None) for side in ("encoder", "decoder")}
        rates = getattr(args, "lr", None) or [0.0]
        is_adam = getattr(args, "optimizer", None) in ("adam", "fused_adam")
        halves = (name for name in ("fp16", "amp", "bf16") if getattr(args, name, False))
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

    def deep_post_ln(self) -> str:
        """Return the layers of a long stack whose residual weight does not grow with depth."""
        plain = self.scheme in ("post-ln", "post-ln-init", "ds-init")
        deep = plain and max(self.depths.values()) >= LONG_STACK
        return "-".join(map(str, self.depths.values())) if deep else ""


def likely_cause(finding: Finding, known: Circumstances) -> str:
    """Return one or two sentences with the probable cause and remedies."""
    post = scheme_class(known.scheme).norm is NormPlacement.POST
    when, layers = _when(finding.started, known), known.deep_post_ln()
    remedies = []
    if finding.kind is Kind.VANISHED and post:
        above = " and ".join(
            f"{side} layer {top + 1}" for side, (_, top, _) in finding.layers.items()
        )
        text = (
            f"the model update exploded {when}: LayerNorm's inputs grew, and the gradient through"
            f" LayerNorm, about sqrt(d)/|x|, vanishes below {above}"
        )
        text += f" (plain Post-LN of {layers} layers; paper, Section 3)" if layers else ""
    elif finding.kind is Kind.VANISHED:
        where = region_text(finding.layers)
        text = f"updates were too large {when}: what leaves {where} no longer changes the loss"
    elif finding.kind is Kind.NOT_FINITE and known.precision in ("fp16", "amp"):
        text = "values left the range of fp16 (65,504)"
        if known.scheme == "rezero":
            text += ", which ReZero is known for at any depth (paper, footnote 3)"
        remedies = ["train in --bf16 or fp32"]
    elif finding.kind is Kind.NOT_FINITE and post:
        text = f"updates were far too large {when}"
    elif finding.kind is Kind.NOT_FINITE:
        text = (
            f"the residual stream, which no LayerNorm bounds with {known.scheme}, grew without"
            f" limit {when}"
        )
    elif finding.kind is Kind.LOSS_SPIKE:
        text = f"one or a few updates were too large {when}"
        remedies = [] if known.clip > 0 else ["clip gradients (--clip-norm 1.0)"]
    elif finding.kind is Kind.STALLED:
        when = _when(10**9, known)
        text = f"the model predicts by frequency and ignores its input: {when}"
        if layers:
            text += f" plain Post-LN of {layers} layers loses its gradients below the top layers"
        else:
            text += " updates were too large, or there were too few of them"
    else:
        text = (
            "gradients overflow fp16 at ever smaller scales, so they are growing without limit"
            f" {when}"
        )
        remedies = ["train in --bf16 or fp32"]
    remedies += ["lower --lr", "lengthen --warmup-updates"]
    if finding.kind is Kind.VANISHED and post and not layers:
        if known.adam_eps is not None and known.adam_eps < EPSILON:
            remedies.append(f"raise --adam-eps to {EPSILON:g}")
        if max(known.depths.values()) >= LONG_ENOUGH_TO_FREEZE and known.frozen != "both":
            remedies.append("start again with --freeze-norms both")
    if known.scheme != "deepnorm":
        remedies.append("use --residual-scheme deepnorm")
    return f"{text}; {', '.join(remedies[:-1])} or {remedies[-1]}."


def _when(update: int, known: Circumstances) -> str:
    """Describe the state of the learning rate."""
    if known.warmup <= 1:
        return f"without warm-up, at a learning rate of {known.lr:g} from the first update"
    rise = f"a warm-up of {known.warmup:,}"
    if update <= known.warmup:
        return f"at update {update:,} of {rise} to a learning rate of {known.lr:g}"
    return f"after {rise} updates to a learning rate of {known.lr:g}"
