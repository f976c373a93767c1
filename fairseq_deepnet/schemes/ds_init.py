"""DS-Init: Post-LN whose layers start smaller the higher they stand (Zhang et al., EMNLP 2019)."""

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from .base import NormPlacement, Place, ResidualScheme, Role, Sublayer


class DSInit(ResidualScheme):
    """LN(x + G(x)); every weight of layer l (from 1) is uniform with Xavier's bound over sqrt(l).

    The paper's formula is followed (its alpha at 1). The authors' code hands gain / sqrt(l) to an
    initialiser that reads it as a factor on the variance, so that its standard deviation falls with
    l^(-1/4) alone: that is the variant `code`. Both stacks count their own layers. q, k and v are
    three maps here; in the self-attention of the authors' code they are one of d x 3d, and smaller
    by sqrt(2). The same paper's merged attention is another matter and no part of it.
    """

    name: ClassVar[str] = "ds-init"
    summary: ClassVar[str] = "LN(x + G(x)), layer l's weights scaled by 1 / sqrt(l)"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    bounded: ClassVar[bool] = True
    variants: ClassVar[Mapping[str, str]] = {
        "paper": "standard deviation ~ l^(-1/2)",
        "code": "standard deviation ~ l^(-1/4)",
    }
    draw = staticmethod(nn.init.xavier_uniform_)

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        exponent = 1 / 2 if self.variant == "paper" else 1 / 4
        return float((place.layer + 1) ** -exponent)
