"""Post-LN, Pre-LN, and Post-LN with smaller initial weights in lower layers."""

from typing import ClassVar

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
