"""Post-LN that passes a second tensor besides x: B2T and ResiDual."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import NormPlacement, Place, ResidualScheme, Role, Side, Sublayer
from .residual import LayerNorm, Map, Residual, Stream


class BottomToTopResidual(Residual):
    """LN(x + G(x)), but LN(b + x + G(x)) in a layer's last sublayer, where b is the layer's input.

    Within a layer the stream is the pair (x, b).
    """

    def __init__(self, is_last: bool) -> None:
        super().__init__()
        self.is_last = is_last

    def enter(self, x: Stream, norm: Map | None) -> Tensor:
        return pair(x)[0]

    def leave(self, x: Stream, branch: Tensor, norm: Map | None, dropout: Map) -> Stream:
        assert norm is not None
        x, bottom = pair(x)
        total = x + dropout(branch)
        return norm(bottom + total) if self.is_last else (norm(total), bottom)


def pair(x: Stream) -> tuple[Tensor, Tensor]:
    """Return x and the layer's input, which are the same tensor in the first sublayer."""
    return (x, x) if isinstance(x, Tensor) else x


class B2T(ResidualScheme):
    """Post-LN whose last sublayer in each layer also adds the layer's input b: LN(b + x + G(x)).

    The code of the authors (Takase et al., 2022) multiplies all of fairseq's initial weights by
    N^(-1/2), where N is the stack's depth. Here, weights are Xavier-normal and this factor is their
    gain. The variant `plain` implements only the formula and does not scale the weights.
    """

    name: ClassVar[str] = "b2t"
    summary: ClassVar[str] = "LN(x + G(x)), a layer's last sublayer adds the layer's input"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    variants: ClassVar[Mapping[str, str]] = {
        "code": "all weights times 1 / sqrt(N)",
        "plain": "all weights with gain 1",
    }

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        return BottomToTopResidual(is_last=sublayer is Sublayer.FFN)

    def why_not_stock(self) -> str:
        return "a layer's last sublayer adds the layer's input, but a stock sublayer only its own"

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        return 1.0 if self.variant == "plain" else float(self.depths.of(place.side) ** -0.5)


class DualResidual(Residual):
    """x' = LN(x + G(x)) and r' = r + s G(x), with a constant s.

    Inside a layer the stream is the pair (x, r); between layers it is one tensor [B, T, 2C].
    """

    def __init__(self, embed_dim: int, scale: float, is_last: bool) -> None:
        super().__init__()
        self.embed_dim, self.scale, self.is_last = embed_dim, scale, is_last

    def pair(self, x: Stream) -> tuple[Tensor, Tensor]:
        """Return x and r; if `x` is only the embeddings [B, T, C], r is s times x."""
        if not isinstance(x, Tensor):
            return x
        if x.size(-1) == self.embed_dim:
            return x, self.scale * x
        return x[..., : self.embed_dim], x[..., self.embed_dim :]

    def enter(self, x: Stream, norm: Map | None) -> Tensor:
        return self.pair(x)[0].contiguous()  # copied once, not in each of q, k and v

    def leave(self, x: Stream, branch: Tensor, norm: Map | None, dropout: Map) -> Stream:
        assert norm is not None
        x, r = self.pair(x)
        branch = dropout(branch)
        # torch 2.13 cannot compile torch.add(..., alpha=s) together with dropout's product.
        streams = norm(x + branch), r + self.scale * branch
        return torch.cat(streams, dim=-1) if self.is_last else streams

    def extra_repr(self) -> str:
        return f"scale={self.scale:.6g}"


class JoinStreams(nn.Module):
    """x + LN(r), [B, T, 2C] -> [B, T, C]. If the input is the embeddings [B, T, C], r = x."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.norm = LayerNorm(embed_dim, eps=1e-7)  # the authors' eps

    def forward(self, x: Tensor) -> Tensor:
        is_embedding = x.size(-1) == self.norm.normalized_shape[0]  # LayerDrop may leave no layer
        x, r = (x, x) if is_embedding else x.chunk(2, dim=-1)
        return x + self.norm(r)


class ResiDual(ResidualScheme):
    """Two streams, x' = LN(x + G(x)) and r' = r + G(x), which both start as the embeddings.

    The stack's output is x + LN(r) (Xie et al., 2023). Initial weights are Xavier-normal, as in
    most schemes here; the authors use fairseq's initialisation, to which `--init stock` is close.
    LayerNorm is invariant to the scale of r except for eps, so the variant `scaled` can keep r
    small for fp16. In the authors' code the scale is an option with default 1.
    """

    name: ClassVar[str] = "resi-dual"
    summary: ClassVar[str] = "LN(x + G(x)) beside r + G(x); the stack's output is x + LN(r)"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    streams: ClassVar[int] = 2
    variants: ClassVar[Mapping[str, str]] = {
        "plain": "r unscaled",
        "scaled": "r times 1/64, for fp16",
    }
    stock_initialisation: ClassVar[bool] = True

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        scale = 1 / 64 if self.variant == "scaled" else 1.0
        return DualResidual(embed_dim, scale, is_last=sublayer is Sublayer.FFN)

    def build_output_transform(self, side: Side, embed_dim: int) -> nn.Module:
        return JoinStreams(embed_dim)

    def why_not_stock(self) -> str:
        return "its layers pass on two streams, but stock layers only one"
