"""Post-LN, Pre-LN, and Post-LN with smaller initial weights in lower or in higher layers."""

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from .base import NormPlacement, Place, ResidualScheme, Role, Sublayer


class PostLN(ResidualScheme):
    """LN(x + G(x)), as in Vaswani et al. (2017): DeepNorm with alpha = beta = 1."""

    name: ClassVar[str] = "post-ln"
    summary: ClassVar[str] = "LN(x + G(x))"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    bounded: ClassVar[bool] = True
    stock_initialisation: ClassVar[bool] = True


class PreLN(ResidualScheme):
    """x + G(LN(x)), with a LayerNorm after each stack."""

    name: ClassVar[str] = "pre-ln"
    summary: ClassVar[str] = "x + G(LN(x)), a final LayerNorm after each stack"
    norm: ClassVar[NormPlacement] = NormPlacement.PRE
    stock_initialisation: ClassVar[bool] = True


class PostLNInit(ResidualScheme):
    """Post-LN with the initial weights of layer l = 1, ..., N scaled by 1 / (N - l + 1).

    Lower layers have smaller weights, unlike in DS-Init. The paper (Section 3) does not say which
    weights are scaled; here all linear weights are. In the decoder, N is the decoder's depth.
    """

    name: ClassVar[str] = "post-ln-init"
    summary: ClassVar[str] = "LN(x + G(x)), layer l's weights scaled by 1 / (N - l + 1)"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    bounded: ClassVar[bool] = True

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        return 1.0 / (self.depths.of(place.side) - place.layer)


class DSInit(ResidualScheme):
    """Post-LN with Xavier-uniform weights divided by sqrt(l) in layer l = 1, 2, ... of each stack.

    The divisor follows the paper's formula (DS-Init, Zhang et al., EMNLP 2019) with alpha = 1. The
    authors' code passes gain / sqrt(l) to an initialiser that multiplies the variance by this
    value, so the standard deviation decreases only as l^(-1/4); the variant `code` reproduces this
    behaviour. q, k and v are separate maps here; the authors' self-attention uses one map [d, 3d],
    whose larger fan-out makes its weights smaller by a factor of sqrt(2). The paper's merged
    attention is not implemented.
    """

    name: ClassVar[str] = "ds-init"
    summary: ClassVar[str] = "LN(x + G(x)), layer l's weights scaled by 1 / sqrt(l)"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    bounded: ClassVar[bool] = True
    variants: ClassVar[Mapping[str, str]] = {
        "paper": "standard deviation ~ l^(-1/2)",
        "code": "standard deviation ~ l^(-1/4)",
    }
    draw = staticmethod(nn.init.xavier_uniform_)

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        exponent = 1 / 2 if self.variant == "paper" else 1 / 4
        return float((place.layer + 1) ** -exponent)
