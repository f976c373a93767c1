"""Residual connections: `enter` returns a branch's input, and `leave` adds its output.

Shapes: x and branch are [B, T, C] (B = batch, T = length, C = channels). A residual owns only the
parameters that its scheme adds; LayerNorm and dropout belong to the layer, under fairseq's names,
and are passed as arguments.

The stream passes from each residual to the next. In most schemes it is x. Within a layer it may be
a pair of x and another tensor [B, T, C]. Between layers it is one tensor with x in its first C
channels, followed by the scheme's other streams.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]
Stream = Any  # a tensor or a pair of tensors, as above


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, computed in the dtype of its input (fp32 for fp32 streams)."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Residual(nn.Module):
    """x + dropout(G(x)) without LayerNorm; base class of all residuals."""

    saved: ClassVar[int] = 0  # further tensors [B, T, C] that autograd keeps for backward

    def learned(self) -> dict[str, Tensor]:
        """Return the learned values by name; the log shows their means."""
        return {}

    def enter(self, x: Stream, norm: Map | None) -> Tensor:
        """Return the branch's input [B, T, C], computed from the stream."""
        return x

    def leave(self, x: Stream, branch: Tensor, norm: Map | None, dropout: Map) -> Stream:
        """Return the stream after the sublayer; x is the stream before it."""
        return x + dropout(branch)


class PreNormResidual(Residual):
    """x + G(LN(x))."""

    def enter(self, x: Tensor, norm: Map | None) -> Tensor:
        assert norm is not None
        return norm(x)


class NormalisedBranchResidual(PreNormResidual):
    """x + LN(G(LN(x)))."""

    saved: ClassVar[int] = 1

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.branch_norm = LayerNorm(embed_dim)

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        return x + dropout(self.branch_norm(branch))


class PostNormResidual(Residual):
    """LN(alpha x + G(x)) with a constant alpha (paper, Fig. 2)."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        assert norm is not None
        branch = dropout(branch)
        if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
            # torch's CPU kernel rounds alpha to half precision in the forward pass, but not in the
            # backward pass, so gradients would grow or shrink by the ratio in every sublayer.
            return norm(torch.add(branch.float(), x.float(), alpha=self.alpha).to(x.dtype))
        return norm(torch.add(branch, x, alpha=self.alpha))

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:.6g}"


class WeightedPostNormResidual(Residual):
    """LN(w * x + G(x)) with a learned w [C], initially `start` in every channel."""

    def __init__(self, embed_dim: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.full((embed_dim,), start))

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        assert norm is not None
        return norm(torch.addcmul(dropout(branch), x, self.weight))

    def learned(self) -> dict[str, Tensor]:
        return {"residual_weight": self.weight}

    def extra_repr(self) -> str:
        return f"start={self.start:.6g}"


class WeightedBranchResidual(Residual):
    """x + w dropout(G(x)) without LayerNorm; sublayers may share the learned w [1]."""

    saved: ClassVar[int] = 1

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        return torch.addcmul(x, dropout(branch), self.weight)

    def learned(self) -> dict[str, Tensor]:
        return {"branch_weight": self.weight}


class Combination(nn.Module):
    """Module that computes a layer's input from all lower layers' outputs."""

    def keep(self, output: Tensor, layer: int) -> Tensor:
        """Return the tensor to store for the output [B, T, C] of a layer (0: the embeddings)."""
        return output

    def forward(self, outputs: list[Tensor]) -> Tensor:
        """Return the next layer's input [B, T, C], computed from all stored outputs."""
        raise NotImplementedError

    def learned(self) -> dict[str, Tensor]:
        """Return the learned values by name; the log shows their means."""
        return {}
