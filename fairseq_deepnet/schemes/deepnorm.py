"""DeepNorm: LN(alpha x + G(x)) and weights scaled by beta (arXiv 2203.00555, "the paper")."""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from .base import VALUE_PATH, NormPlacement, Place, ResidualScheme, Role, Side, Sublayer


class Gains(NamedTuple):
    """DeepNorm's factors for one side: alpha for the residual, beta for initial weights."""

    alpha: float
    beta: float


def gains(encoder_layers: int, decoder_layers: int) -> dict[Side, Gains]:
    """Return alpha and beta per side for N encoder and M decoder layers (paper, Fig. 2(b)).

    A model with one stack has depth 0 on the other side. As in the paper (App. B), 27^(-1/16) is
    rounded to 0.81 and 2^(-1/2) 27^(1/16) to 0.87.
    """
    n, m = encoder_layers, decoder_layers
    if n and m:
        return {
            Side.ENCODER: Gains(0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)),
            Side.DECODER: Gains((3 * m) ** (1 / 4), (12 * m) ** (-1 / 4)),
        }
    depth, side = (n, Side.ENCODER) if n else (m, Side.DECODER)
    return {side: Gains((2 * depth) ** (1 / 4), (8 * depth) ** (-1 / 4))}


class DeepNorm(ResidualScheme):
    """Post-LN with residuals scaled up by alpha and initial weights scaled down by beta.

    beta is the gain of v_proj and out_proj (self- and cross-attention), fc1 and fc2; q_proj and
    k_proj keep gain 1 (paper, Fig. 2(a)). Biases, embeddings, LayerNorms and the vocabulary
    projection are not scaled. Each variant other than `paper` removes one of the two factors, to
    show the other's effect.
    """

    name: ClassVar[str] = "deepnorm"
    summary: ClassVar[str] = "LN(alpha x + G(x)), value path scaled by beta"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    bounded: ClassVar[bool] = True
    variants: ClassVar[Mapping[str, str]] = {
        "paper": "the residual times alpha, the value path's initial weights times beta",
        "alpha-only": "the residual times alpha; all weights start with gain 1",
        "beta-only": "the value path's initial weights times beta; LN(x + G(x))",
    }

    def default_alpha(self, side: Side) -> float:
        alpha = gains(self.depths.encoder, self.depths.decoder)[side].alpha
        return 1.0 if self.variant == "beta-only" else alpha

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        if role not in VALUE_PATH or self.variant == "alpha-only":
            return 1.0
        return gains(self.depths.encoder, self.depths.decoder)[place.side].beta
