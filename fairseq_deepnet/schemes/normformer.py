"""NormFormer: Pre-LN with three more normalisations per layer (Shleifer et al., 2021)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import NormPlacement, Place, ResidualScheme, Sublayer
from .residual import Map, NormalisedBranchResidual, PreNormResidual, Residual


class HeadScale(nn.Module):
    """Learned factor per head, initially 1, applied to heads [B, H, T, D] before out_proj."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(heads))

    def forward(self, heads: Tensor) -> Tensor:
        return heads * self.scale[:, None, None]


class ScaledPreNormResidual(PreNormResidual):
    """w * x + G(LN(x)) with a learned w [C], initially 1 (the paper's ResScale)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(embed_dim))

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        return torch.addcmul(dropout(branch), x, self.weight)

    def learned(self) -> dict[str, Tensor]:
        return {"residual_weight": self.weight}


class NormFormer(ResidualScheme):
    """Pre-LN with a LayerNorm after each attention and before fc2, and a factor per head.

    As in the paper's formula, head factors precede out_proj. fairseq's flags apply the factors
    after out_proj, to a reshaped output, and only in the decoder's self-attention. The DeepNet
    paper does not say whether the encoder and the cross-attention have them; here all attention
    layers do. The LayerNorm before fc2 follows the activation's dropout, as in fairseq. The variant
    `resscale` adds the paper's optional factor for the residual of the feed-forward sublayer.
    """

    name: ClassVar[str] = "normformer"
    summary: ClassVar[str] = "Pre-LN, LN after attention and before fc2, a factor per head"
    norm: ClassVar[NormPlacement] = NormPlacement.PRE
    variants: ClassVar[Mapping[str, str]] = {
        "plain": "no factor on the feed-forward's residual",
        "resscale": "a learned vector on the feed-forward's residual",
    }
    stock_initialisation: ClassVar[bool] = True

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        residuals: dict[Sublayer, Residual] = {
            sublayer: NormalisedBranchResidual(embed_dim) for sublayer in sublayers
        }
        scaled = self.variant == "resscale"
        residuals[Sublayer.FFN] = ScaledPreNormResidual(embed_dim) if scaled else PreNormResidual()
        return residuals

    def build_head_transform(
        self, place: Place, sublayer: Sublayer, num_heads: int, embed_dim: int
    ) -> nn.Module:
        return HeadScale(num_heads)

    def build_ffn_transforms(self, place: Place, ffn_dim: int) -> tuple[None, nn.Module]:
        return None, nn.LayerNorm(ffn_dim)

    def why_not_stock(self) -> str | None:
        if not self.depths.encoder:
            return None
        return (
            "fairseq's --scale-attn, --scale-heads and --scale-fc affect only the decoder and its"
            " self-attention; here they affect all attention layers"
        )

    def stock_layer(self, place: Place, layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename parameters as in fairseq's decoder, and multiply out_proj by the head factors."""
        renamed = {
            "residuals.self_attn.branch_norm.": "attn_ln.",
            "post_activation_transform.": "ffn_layernorm.",
            "residuals.ffn.weight": "w_resid",
        }
        renamed_layer = {}
        for name, weight in layer.items():
            old = next((old for old in renamed if name.startswith(old)), "")
            renamed_layer[renamed.get(old, "") + name.removeprefix(old)] = weight
        scale = renamed_layer.pop("self_attn.head_transform.scale").float()
        out = renamed_layer["self_attn.out_proj.weight"].float()  # [C, H D]
        renamed_layer["self_attn.out_proj.weight"] = out * scale.repeat_interleave(
            out.size(1) // scale.numel()
        )
        return renamed_layer

    def stock_options(self) -> dict[str, bool]:
        return {
            "scale_attn": True,
            "scale_fc": True,
            "scale_resids": self.variant == "resscale",
        }
