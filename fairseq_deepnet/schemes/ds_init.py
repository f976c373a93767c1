"""DS-Init: Post-LN with smaller initial weights in higher layers (Zhang et al., EMNLP 2019)."""

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from .base import NormPlacement, Place, ResidualScheme, Role, Sublayer


class DSInit(ResidualScheme):
    """LN(x + G(x)); every weight of layer l (from 1) is uniform with Xavier's bound over sqrt(l).

    This follows the paper's formula with its alpha at 1. The authors' code passes gain / sqrt(l) to
    an initialiser that treats it as a factor on the variance, so that the standard deviation falls
    only with l^(-1/4): this is the variant `code`. Each stack counts its own layers. q, k and v are
    three maps here. In the self-attention of the authors' code they are one map of d x 3d, which
    makes them smaller by sqrt(2). The merged attention of the same paper is not included.
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
