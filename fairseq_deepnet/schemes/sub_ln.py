"""Sub-LN: Pre-LN with a second LayerNorm inside each branch (Magneto, Wang et al., ICML 2023)."""

import math
from typing import ClassVar

from torch import Tensor, nn

from .base import VALUE_PATH, NormPlacement, Place, ResidualScheme, Role, Side, Sublayer


class HeadsNorm(nn.Module):
    """LayerNorm over the concatenated channels of all heads [B, H, T, D], before out_proj."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, heads: Tensor) -> Tensor:
        joined: Tensor = self.norm(heads.transpose(1, 2).flatten(2))
        return joined.unflatten(2, (heads.size(1), heads.size(3))).transpose(1, 2)


class SubLN(ResidualScheme):
    """x + W LN(F(LN(x))), where W is a branch's last map (out_proj or fc2) and F is the rest.

    v_proj, out_proj, fc1 and fc2 have gain sqrt(ln 3M ln 2N / 3) in the encoder, sqrt(ln 3M) in the
    decoder, and sqrt(ln 2L) in a model with one stack of L layers. As in the paper (end of
    Section 2) and in torchscale, the cross-attention has neither the second LayerNorm nor the gain.
    torchscale scales nn.Linear's initial weights and biases; here weights are Xavier-normal and
    biases are 0. As in torchscale, the LN before fc2 follows the activation's dropout.
    """

    name: ClassVar[str] = "sub-ln"
    summary: ClassVar[str] = "Pre-LN, LN before out_proj and before fc2, value path scaled"
    norm: ClassVar[NormPlacement] = NormPlacement.PRE

    def build_head_transform(
        self, place: Place, sublayer: Sublayer, num_heads: int, embed_dim: int
    ) -> nn.Module | None:
        return None if sublayer is Sublayer.ENCODER_ATTN else HeadsNorm(embed_dim)

    def build_ffn_transforms(self, place: Place, ffn_dim: int) -> tuple[None, nn.Module]:
        return None, nn.LayerNorm(ffn_dim)

    def why_not_stock(self) -> str:
        return "a LayerNorm precedes out_proj and fc2, and a stock layer has none there"

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        if role not in VALUE_PATH or sublayer is Sublayer.ENCODER_ATTN:
            return 1.0
        n, m = self.depths.encoder, self.depths.decoder
        if not (n and m):
            return math.sqrt(math.log(2 * self.depths.of(place.side)))
        encoder = math.log(2 * n) / 3 if place.side is Side.ENCODER else 1.0
        return math.sqrt(math.log(3 * m) * encoder)
