"""A sentence on why a training diverged, and what to change: from what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..schemes import NormPlacement, scheme_class
from .events import Finding, Kind, region_text

LONG_STACK: Final = 12
"""Layers a side from which plain Post-LN is known to need more than a warm-up (paper, Table 1)."""
SMALL_BATCH: Final = 8000
"""Tokens an update below which learning rates that suit the paper's batches are known to hurt."""


@dataclass(frozen=True)
class Circumstances:
    """What of a training bears on how it diverges.

    Arguments:
        scheme: of the residuals
        depths: layers of each side that the model has
        lr: the peak of the learning rate
        warmup: updates until it is reached
        precision: fp32, bf16, fp16 or amp
        tokens: of an update, as far as the options tell
        clip: --clip-norm
    """

    scheme: str
    depths: dict[str, int]
    lr: float
    warmup: int
    precision: str
    tokens: int | None
    clip: float

    @property
    def norm(self) -> NormPlacement:
        """Where LayerNorm stands."""
        return scheme_class(self.scheme).norm

    @property
    def plain_post_ln(self) -> bool:
        """True if the residual has no weight that grows with depth."""
        return self.scheme in ("post-ln", "post-ln-init", "ds-init")


def likely_cause(finding: Finding, known: Circumstances) -> str:
    """Return a sentence or two: what probably happened, and what to try."""
    explain = {
        Kind.VANISHED: _vanished,
        Kind.NOT_FINITE: _not_finite,
        Kind.LOSS_SPIKE: _spiked,
        Kind.STALLED: _stalled,
        Kind.LOSS_SCALE: _scale_collapsed,
    }[finding.kind]
    return f"{explain(finding, known)}."


def _when(update: int, known: Circumstances) -> str:
    """Say how the learning rate stood."""
    if known.warmup <= 1:
        return f"without warm-up, at a learning rate of {known.lr:g} from the first update"
    if update <= known.warmup:
        return (
            f"at update {update:,} of a warm-up of {known.warmup:,} to a learning rate of"
            f" {known.lr:g}"
        )
    return f"after a warm-up of {known.warmup:,} updates to a learning rate of {known.lr:g}"


def _remedies(known: Circumstances, *first: str) -> str:
    found = [*first, "lower --lr", "lengthen --warmup-updates"]
    if known.tokens is not None and known.tokens < SMALL_BATCH:
        found.append(f"enlarge the batch of {known.tokens:,} tokens (--update-freq)")
    if known.scheme != "deepnorm":
        found.append("use --residual-scheme deepnorm")
    return f"{', '.join(found[:-1])} or {found[-1]}"


def _vanished(finding: Finding, known: Circumstances) -> str:
    highest = {side: last for side, (_, last, _) in finding.layers.items()}
    above = " and ".join(f"{side} layer {last + 1}" for side, last in highest.items())
    if known.norm is NormPlacement.POST:
        text = (
            f"the model update exploded {_when(finding.started, known)}: LayerNorm's inputs grew,"
            f" and the gradient through LayerNorm, about sqrt(d)/|x|, vanishes below {above}"
        )
        if known.plain_post_ln and max(known.depths.values()) >= LONG_STACK:
            text += f" (plain Post-LN of {_depth(known)} layers; paper, Section 3)"
    else:
        text = (
            f"updates were too large {_when(finding.started, known)}: what leaves"
            f" {region_text(finding.layers)} no longer changes the loss"
        )
    return f"{text}; {_remedies(known)}"


def _not_finite(finding: Finding, known: Circumstances) -> str:
    if known.precision in ("fp16", "amp"):
        text = "values left the range of fp16 (65,504)"
        if known.scheme == "rezero":
            text += ", which ReZero is known for at any depth (paper, footnote 3)"
        return f"{text}; {_remedies(known, 'train in --bf16 or fp32')}"
    if known.norm is not NormPlacement.POST:
        text = (
            f"the residual stream, which no LayerNorm bounds with {known.scheme}, grew without"
            f" limit {_when(finding.started, known)}"
        )
    else:
        text = f"updates were far too large {_when(finding.started, known)}"
    return f"{text}; {_remedies(known)}"


def _spiked(finding: Finding, known: Circumstances) -> str:
    clip = () if known.clip > 0 else ("clip gradients (--clip-norm 1.0)",)
    return (
        f"one or a few updates were too large {_when(finding.started, known)};"
        f" {_remedies(known, *clip)}"
    )


def _stalled(finding: Finding, known: Circumstances) -> str:
    text = f"the model predicts by frequency and ignores its input: {_when(10**9, known)}"
    if known.plain_post_ln and max(known.depths.values()) >= LONG_STACK:
        text += f" plain Post-LN of {_depth(known)} layers loses its gradients below the top layers"
    else:
        text += " updates were too large for a batch of this size, or still too few"
    return f"{text}; {_remedies(known)}"


def _scale_collapsed(finding: Finding, known: Circumstances) -> str:
    return (
        f"gradients overflow fp16 at ever smaller scales, so they are growing without limit"
        f" {_when(finding.started, known)}; {_remedies(known, 'train in --bf16 or fp32')}"
    )


def _depth(known: Circumstances) -> str:
    return "-".join(str(layers) for layers in known.depths.values())
