"""How a branch joins the residual stream: `enter` gives it its input, `leave` takes its output.

Shapes: x and branch are [B, T, C] (B = batch, T = length, C = channels). LayerNorm and dropout
belong to the layer, under fairseq's names, and are handed in; a residual owns only what its scheme
adds.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]


class Residual(nn.Module):
    """x + dropout(G(x)): no LayerNorm; the base of the others."""

    def enter(self, x: Tensor, norm: Map | None) -> Tensor:
        """Input of the branch, [B, T, C] -> [B, T, C]."""
        return x

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        """The stream after the sublayer, from the stream before it and the branch's output."""
        return x + dropout(branch)


class PreNormResidual(Residual):
    """x + G(LN(x))."""

    def enter(self, x: Tensor, norm: Map | None) -> Tensor:
        assert norm is not None
        return norm(x)


class PostNormResidual(Residual):
    """LN(alpha x + G(x)); alpha is a constant, fixed when the model is built (paper, Fig. 2)."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def leave(self, x: Tensor, branch: Tensor, norm: Map | None, dropout: Map) -> Tensor:
        assert norm is not None
        return norm(torch.add(dropout(branch), x, alpha=self.alpha))

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:.6g}"
