"""DS-Init: Post-LN with smaller initial weights in higher layers (Zhang et al., EMNLP 2019)."""

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from .base import NormPlacement, Place, ResidualScheme, Role, Sublayer


class DSInit(ResidualScheme):
    """Post-LN with Xavier-uniform weights divided by sqrt(l) in layer l = 1, 2, ... of each stack.

    The divisor follows the paper's formula with the paper's alpha set to 1. The authors' code
    passes gain / sqrt(l) to an initialiser that multiplies the variance by this value, so the
    standard deviation decreases only as l^(-1/4); the variant `code` reproduces this behaviour.
    q, k and v are separate maps here; the authors' self-attention uses one map [d, 3d], whose
    larger fan-out makes its weights smaller by a factor of sqrt(2). The paper's merged attention is
    not implemented.
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
