"""ReZero: no LayerNorm, every branch behind a learned factor that starts at 0 (UAI 2021)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from .base import NormPlacement, Place, ResidualScheme, Sublayer
from .residual import Residual, WeightedBranchResidual


class ReZero(ResidualScheme):
    """x + a G(x), a = 0 at the start: the stack is the identity (Bachlechner et al., UAI 2021).

    The authors' code has one a for all sublayers of a layer, and so has this; the variant
    `sublayer` gives each its own, as their formula reads. Their encoder multiplies before dropout
    and their decoder after it, which is the same. Their weights start as torch's attention and
    linear maps do, to which `--init stock` comes near; here Xavier-normal. fp16 is known to break
    it (DeepNet paper, footnote 3): train in fp32 or bf16.
    """

    name: ClassVar[str] = "rezero"
    summary: ClassVar[str] = "x + a G(x), a learned and 0 at the start, no LayerNorm"
    norm: ClassVar[NormPlacement] = NormPlacement.NONE
    variants: ClassVar[Mapping[str, str]] = {
        "layer": "one factor a layer",
        "sublayer": "one factor a sublayer",
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
