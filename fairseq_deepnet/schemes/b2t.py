"""B2T: Post-LN that adds each layer's input before its last LayerNorm (Takase et al., 2022)."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from .base import NormPlacement, Place, ResidualScheme, Role, Sublayer
from .residual import Map, Residual, Stream


class BottomToTopResidual(Residual):
    """LN(x + G(x)), but LN(b + x + G(x)) in a layer's last sublayer, where b is the layer's input.

    Within a layer the stream is the pair (x, b).
    """

    def __init__(self, is_last: bool) -> None:
        super().__init__()
        self.is_last = is_last

    def enter(self, x: Stream, norm: Map | None) -> Tensor:
        return pair(x)[0]

    def leave(self, x: Stream, branch: Tensor, norm: Map | None, dropout: Map) -> Stream:
        assert norm is not None
        x, bottom = pair(x)
        total = x + dropout(branch)
        return norm(bottom + total) if self.is_last else (norm(total), bottom)


def pair(x: Stream) -> tuple[Tensor, Tensor]:
    """Return x and the layer's input, which are the same tensor in the first sublayer."""
    return (x, x) if isinstance(x, Tensor) else x


class B2T(ResidualScheme):
    """Post-LN whose last sublayer in each layer also adds the layer's input b: LN(b + x + G(x)).

    The authors' code multiplies all of fairseq's initial weights by N^(-1/2), where N is the
    stack's depth. Here, weights are Xavier-normal and this factor is their gain. The variant
    `plain` implements only the formula and does not scale the weights.
    """

    name: ClassVar[str] = "b2t"
    summary: ClassVar[str] = "LN(x + G(x)), a layer's last sublayer adds the layer's input"
    norm: ClassVar[NormPlacement] = NormPlacement.POST
    variants: ClassVar[Mapping[str, str]] = {
        "code": "all weights times 1 / sqrt(N)",
        "plain": "all weights with gain 1",
    }

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        return {sublayer: BottomToTopResidual(sublayer is sublayers[-1]) for sublayer in sublayers}

    def why_not_stock(self) -> str:
        return "a layer's last sublayer adds the layer's input, and a stock sublayer only its own"

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        return 1.0 if self.variant == "plain" else float(self.depths.of(place.side) ** -0.5)
