"""Pre-LN with further or scaled normalisations: NormFormer, Sub-LN, Peri-LN, LayerNorm Scaling."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import VALUE_PATH, NormPlacement, Place, ResidualScheme, Role, Side, Sublayer
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

    As in the paper's formula (Shleifer et al., 2021), head factors precede out_proj. fairseq's
    flags apply the factors after out_proj, to a reshaped output, and only in the decoder's
    self-attention. The DeepNet paper does not say whether the encoder and the cross-attention have
    them; here all attention layers do. The LayerNorm before fc2 follows the activation's dropout,
    as in fairseq. The variant `resscale` adds the paper's optional factor for the residual of the
    feed-forward sublayer.
    """

    name: ClassVar[str] = "normformer"
    summary: ClassVar[str] = "Pre-LN, LN after attention and before fc2, a factor per head"
    norm: ClassVar[NormPlacement] = NormPlacement.PRE
    variants: ClassVar[Mapping[str, str]] = {
        "plain": "no factor on the feed-forward's residual",
        "resscale": "a learned vector on the feed-forward's residual",
    }
    stock_initialisation: ClassVar[bool] = True

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        if sublayer is not Sublayer.FFN:
            return NormalisedBranchResidual(embed_dim)
        scaled = self.variant == "resscale"
        return ScaledPreNormResidual(embed_dim) if scaled else PreNormResidual()

    def build_head_transform(self, sublayer: Sublayer, num_heads: int, embed_dim: int) -> nn.Module:
        return HeadScale(num_heads)

    def build_ffn_transforms(self, ffn_dim: int) -> tuple[None, nn.Module]:
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
        return {"scale_attn": True, "scale_fc": True, "scale_resids": self.variant == "resscale"}


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

    The paper is Magneto (Wang et al., ICML 2023), which adds a second LayerNorm to each branch.
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
        self, sublayer: Sublayer, num_heads: int, embed_dim: int
    ) -> nn.Module | None:
        return None if sublayer is Sublayer.ENCODER_ATTN else HeadsNorm(embed_dim)

    def build_ffn_transforms(self, ffn_dim: int) -> tuple[None, nn.Module]:
        return None, nn.LayerNorm(ffn_dim)

    def why_not_stock(self) -> str:
        return "a LayerNorm precedes out_proj and fc2, but a stock layer has none there"

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        if role not in VALUE_PATH or sublayer is Sublayer.ENCODER_ATTN:
            return 1.0
        n, m = self.depths.encoder, self.depths.decoder
        if not (n and m):
            return math.sqrt(math.log(2 * self.depths.of(place.side)))
        encoder = math.log(2 * n) / 3 if place.side is Side.ENCODER else 1.0
        return math.sqrt(math.log(3 * m) * encoder)


class PeriLN(ResidualScheme):
    """x + LN(G(LN(x))), with a LayerNorm after the embeddings and one after each stack.

    The formula comes from summaries of the paper (Kim et al., ICML 2025). The paper covers only
    decoders and calls the LayerNorm after the embeddings optional. There is no public code. Initial
    weights are Xavier-normal, as in most schemes here.
    """

    name: ClassVar[str] = "peri-ln"
    summary: ClassVar[str] = "x + LN(G(LN(x))), LN after the embeddings and after each stack"
    norm: ClassVar[NormPlacement] = NormPlacement.PRE
    embedding_norm: ClassVar[bool] = True
    stock_initialisation: ClassVar[bool] = True

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        return NormalisedBranchResidual(embed_dim)

    def why_not_stock(self) -> str:
        return "a LayerNorm follows each branch, and a stock layer has none before the sum"


class ScaledNormResidual(PreNormResidual):
    """x + G(s LN(x)) with a constant s."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def enter(self, x: Tensor, norm: Map | None) -> Tensor:
        return self.scale * super().enter(x, norm)

    def extra_repr(self) -> str:
        return f"scale={self.scale:.6g}"


class LNScaling(ResidualScheme):
    """x + G(LN(x) / sqrt(l)) in layer l = 1, 2, ... of each stack.

    The paper (LayerNorm Scaling, Sun et al., 2025) and its code agree, and both cover only
    decoder-only models. The authors initialise weights as LLaMA does; here they are Xavier-normal,
    as in most schemes. The final LayerNorm is not scaled, nor is the encoder's output for
    cross-attention.
    """

    name: ClassVar[str] = "ln-scaling"
    summary: ClassVar[str] = "x + G(LN(x) / sqrt(l)) in layer l"
    norm: ClassVar[NormPlacement] = NormPlacement.PRE
    layer_drop: ClassVar[bool] = False  # dropping a lower layer would change l
    stock_initialisation: ClassVar[bool] = True

    @staticmethod
    def scale(place: Place) -> float:
        """Return the factor for the outputs of a layer's LayerNorms."""
        return float((place.layer + 1) ** -0.5)

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        return ScaledNormResidual(self.scale(place))

    def stock_layer(self, place: Place, layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Multiply the LayerNorms' weights and biases by the scale."""
        return {
            name: weight.float() * self.scale(place) if "_layer_norm." in name else weight
            for name, weight in layer.items()
        }
