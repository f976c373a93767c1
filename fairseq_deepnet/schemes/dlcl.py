"""DLCL: each layer reads a learned combination of all outputs below it (Wang et al., ACL 2019)."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import NormPlacement, ResidualScheme, Side
from .residual import Combination, LayerNorm


class LinearCombination(Combination):
    """x_{l+1} = sum_{k <= l} W[l, k] LN_k(y_k) for layer outputs y_k; LN_0(y_0) is the embedding.

    Args:
        layers: number of layers in the stack.
        embed_dim: C.
    """

    def __init__(self, layers: int, embed_dim: int) -> None:
        super().__init__()
        rows = torch.ones(layers + 1, layers + 1).tril()
        self.weight = nn.Parameter(rows / rows.sum(dim=1, keepdim=True))  # each row is an average
        self.norms = nn.ModuleList(LayerNorm(embed_dim) for _ in range(layers))

    def keep(self, output: Tensor, layer: int) -> Tensor:
        return self.norms[layer - 1](output) if layer else output

    def forward(self, outputs: list[Tensor]) -> Tensor:
        weights = self.weight[len(outputs) - 1].unbind()
        # Outputs are added one by one, as autograd would store a stacked tensor for every layer.
        x = outputs[0] * weights[0]
        for output, weight in zip(outputs[1:], weights[1:], strict=False):
            x = torch.addcmul(x, output, weight)
        return x

    def learned(self) -> dict[str, Tensor]:
        return {"combination_newest": self.weight.diagonal()}


class DLCL(ResidualScheme):
    """Pre-LN in which each layer reads a learned sum of all lower layers' normalised outputs.

    This is the pre-norm form, as in the DeepNet paper's comparison, with the authors' defaults: one
    weight per pair of layers, initialised for averaging, no softmax, no window, and separate
    weights per stack. A last combination and the final LayerNorm follow the top layer.
    """

    name: ClassVar[str] = "dlcl"
    summary: ClassVar[str] = "Pre-LN, a layer reads a learned sum of all outputs below it"
    norm: ClassVar[NormPlacement] = NormPlacement.PRE
    combines: ClassVar[bool] = True
    layer_drop: ClassVar[bool] = False
    stock_initialisation: ClassVar[bool] = True

    def build_combination(self, side: Side, embed_dim: int) -> LinearCombination:
        return LinearCombination(self.depths.of(side), embed_dim)

    def why_not_stock(self) -> str:
        return "a layer reads a learned sum of all outputs below, but a stock layer only the last"
