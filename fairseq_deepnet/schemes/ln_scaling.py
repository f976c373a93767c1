"""LayerNorm Scaling: Pre-LN with smaller LayerNorm outputs in higher layers (Sun et al., 2025)."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from .base import NormPlacement, Place, ResidualScheme, Sublayer
from .residual import Map, PreNormResidual, Residual


class ScaledNormResidual(PreNormResidual):
    """x + G(s LN(x)) with a constant s."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def enter(self, x: Tensor, norm: Map | None) -> Tensor:
        return self.scale * super().enter(x, norm)

    def extra_repr(self) -> str:
        return f"scale={self.scale:.6g}"


class LNScaling(ResidualScheme):
    """x + G(LN(x) / sqrt(l)) in layer l = 1, 2, ... of each stack.

    The paper and its code agree, and both cover only decoder-only models. The authors initialise
    weights as LLaMA does; here they are Xavier-normal, as in most schemes. The final LayerNorm is
    not scaled, nor is the encoder's output for cross-attention.
    """

    name: ClassVar[str] = "ln-scaling"
    summary: ClassVar[str] = "x + G(LN(x) / sqrt(l)) in layer l"
    norm: ClassVar[NormPlacement] = NormPlacement.PRE
    layer_drop: ClassVar[bool] = False  # dropping a lower layer would change l
    stock_initialisation: ClassVar[bool] = True

    @staticmethod
    def scale(place: Place) -> float:
        """Return the factor for the outputs of a layer's LayerNorms."""
        return float((place.layer + 1) ** -0.5)

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        return {sublayer: ScaledNormResidual(self.scale(place)) for sublayer in sublayers}

    def stock_layer(self, place: Place, layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Multiply the LayerNorms' weights and biases by the scale."""
        return {
            name: weight.float() * self.scale(place) if "_layer_norm." in name else weight
            for name, weight in layer.items()
        }
