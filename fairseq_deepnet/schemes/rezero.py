"""ReZero: no LayerNorm, and a learned factor on every branch, initially 0 (UAI 2021)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from .base import NormPlacement, Place, ResidualScheme, Sublayer
from .residual import Residual, WeightedBranchResidual


class ReZero(ResidualScheme):
    """x + a G(x) with a = 0 initially, so a new stack is the identity (Bachlechner et al., 2021).

    As in the authors' code, a layer's sublayers share one factor. In the variant `sublayer` each
    sublayer has its own, as in the paper's formula. The authors' encoder applies the factor before
    dropout and their decoder after it, which is equivalent. The authors initialise weights as
    torch does (`--init stock` is close to that); here they are Xavier-normal. Training in fp16
    fails (DeepNet paper, footnote 3), so use fp32 or bf16.
    """

    name: ClassVar[str] = "rezero"
    summary: ClassVar[str] = "x + a G(x), a learned and initially 0, no LayerNorm"
    norm: ClassVar[NormPlacement] = NormPlacement.NONE
    variants: ClassVar[Mapping[str, str]] = {
        "layer": "one factor per layer",
        "sublayer": "one factor per sublayer",
    }
    stock_initialisation: ClassVar[bool] = True

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        shared = nn.Parameter(torch.zeros(1))
        return {
            sublayer: WeightedBranchResidual(
                shared if self.variant == "layer" else nn.Parameter(torch.zeros(1))
            )
            for sublayer in sublayers
        }
