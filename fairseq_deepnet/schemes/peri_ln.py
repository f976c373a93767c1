"""Peri-LN: LayerNorm on both sides of each branch (Kim et al., ICML 2025)."""

from typing import ClassVar

from .base import NormPlacement, Place, ResidualScheme, Sublayer
from .residual import NormalisedBranchResidual, Residual


class PeriLN(ResidualScheme):
    """x + LN(G(LN(x))), with a LayerNorm after the embeddings and one after each stack.

    The formula comes from summaries of the paper. The paper covers only decoders and calls the
    LayerNorm after the embeddings optional. There is no public code. Initial weights are
    Xavier-normal, as in most schemes here.
    """

    name: ClassVar[str] = "peri-ln"
    summary: ClassVar[str] = "x + LN(G(LN(x))), LN after the embeddings and after each stack"
    norm: ClassVar[NormPlacement] = NormPlacement.PRE
    embedding_norm: ClassVar[bool] = True
    stock_initialisation: ClassVar[bool] = True

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        return {sublayer: NormalisedBranchResidual(embed_dim) for sublayer in sublayers}

    def why_not_stock(self) -> str:
        return "a LayerNorm follows each branch, and a stock layer has none before the sum"
