"""How a branch joins the residual stream: `enter` gives it its input, `leave` takes its output.

Shapes: x and branch are [B, T, C] (B = batch, T = length, C = channels). LayerNorm and dropout
belong to the layer, under fairseq's names, and are handed in; a residual owns only what its scheme
adds.

What goes from one residual to the next, the stream, is x in most schemes. Inside a layer it may be
a pair, x and another tensor [B, T, C] that the scheme needs. From layer to layer it is one tensor,
with x in its first C channels, and whatever else the scheme carries (`streams`) behind.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]
Stream = Any  # a tensor or a pair of tensors, as above


class Residual(nn.Module):
    """x + dropout(G(x)): no LayerNorm; the base of the others."""

    saved: ClassVar[int] = 0  # tensors [B, T, C] for backward, beyond LayerNorm's and the branch's

    def learned(self) -> dict[str, Tensor]:
        """Return what training changes of the residual itself, by name: logs show its mean."""
        return {}

    def enter(self, x: Stream, norm: Map | None) -> Tensor:
        """Return the branch's input [B, T, C], from the stream."""
        entry: Tensor = x
        return entry

    def leave(self, x: Stream, branch: Tensor, norm: Map | None, dropout: Map) -> Stream:
        """Return the stream after the sublayer, from that before it and the branch's output."""
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
        self.branch_norm = nn.LayerNorm(embed_dim)

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        return x + dropout(self.branch_norm(branch))


class PostNormResidual(Residual):
    """LN(alpha x + G(x)); alpha is a constant, fixed when the model is built (paper, Fig. 2)."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        assert norm is not None
        branch = dropout(branch)
        if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
            # torch's CPU kernel rounds alpha to half precision in the forward pass, but not in the
            # backward pass: gradients would grow or shrink by the ratio in every sublayer
            return norm(torch.add(branch.float(), x.float(), alpha=self.alpha).to(x.dtype))
        return norm(torch.add(branch, x, alpha=self.alpha))

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:.6g}"


class WeightedPostNormResidual(Residual):
    """LN(w * x + G(x)); w [C] is learned and starts at `start` in every channel."""

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
    """x + w dropout(G(x)); w [1] is learned, perhaps with other sublayers'; no LayerNorm."""

    saved: ClassVar[int] = 1

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        return torch.addcmul(x, dropout(branch), self.weight)

    def learned(self) -> dict[str, Tensor]:
        return {"branch_weight": self.weight}


class Combination(nn.Module):
    """What a layer reads instead of the output of the layer below: a function of all outputs."""

    def keep(self, output: Tensor, layer: int) -> Tensor:
        """Return what is kept of an output [B, T, C]; `layer` counts from 0, the embeddings."""
        return output

    def forward(self, kept: list[Tensor]) -> Tensor:
        """Return the next layer's input [B, T, C] from what is kept of all outputs so far."""
        raise NotImplementedError

    def learned(self) -> dict[str, Tensor]:
        """Return what training changes of it, by name: logs show its mean."""
        return {}
