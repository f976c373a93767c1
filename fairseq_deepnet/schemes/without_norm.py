"""Schemes without LayerNorm: Fixup, T-Fixup and ReZero."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .base import VALUE_PATH, NormPlacement, Place, ResidualScheme, Role, Side, Sublayer
from .residual import Map, Residual, WeightedBranchResidual


class Shift(nn.Module):
    """x + b for x of any shape, with a learned scalar b, initially 0."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class Scale(nn.Module):
    """w x for x of any shape, with a learned scalar w, initially 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class FixupResidual(WeightedBranchResidual):
    """x + w dropout(G(x + b)) with learned scalars, initially w = 1 and b = 0."""

    def __init__(self) -> None:
        super().__init__(nn.Parameter(torch.ones(1)))
        self.before = Shift()

    def enter(self, x: Tensor, norm: Map | None) -> Tensor:
        return self.before(x)


class RFixup(ResidualScheme):
    """Fixup (Zhang, Dauphin and Ma, ICLR 2019), called R-Fixup in the DeepNet paper.

    L = 2N + 3M is the number of residual branches in the model. A branch's last map (out_proj, fc2)
    is initially 0. If a branch has m maps, the others are Xavier-uniform, scaled by L^(-1/(2m-2)),
    i.e. by L^(-1/6) for q, k and v, and by L^(-1/2) for fc1. No map has a bias. Learned shifts
    precede each branch and surround the activation, and a learned scale ends each branch. A shift
    and a scale follow the encoder, and a shift follows the decoder. The vocabulary projection is
    initially 0, as in the authors' code, unless it shares the embedding table.

    In the authors' code, q, k and v are one 3d x d matrix, whose larger fan-out makes its weights
    smaller by a factor of sqrt(2); our gain includes this factor. That code does not pass L to the
    cross-attention, which then uses L = 12; the variant `code` reproduces this bug.
    """

    name: ClassVar[str] = "r-fixup"
    summary: ClassVar[str] = "x + w G(x + b), no LayerNorm, branches 0 at the start"
    norm: ClassVar[NormPlacement] = NormPlacement.NONE
    bias: ClassVar[bool] = False
    variants: ClassVar[Mapping[str, str]] = {
        "rule": "L^(-1/6) in the cross-attention too",
        "code": "12^(-1/6) in the cross-attention",
    }
    draw = staticmethod(nn.init.xavier_uniform_)

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        return FixupResidual()

    def build_ffn_transforms(self, ffn_dim: int) -> tuple[nn.Module, nn.Module]:
        return Shift(), Shift()

    def build_output_transform(self, side: Side, embed_dim: int) -> nn.Module:
        return nn.Sequential(Shift(), Scale()) if side is Side.ENCODER else Shift()

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        if role in (Role.OUT_PROJ, Role.FC2):
            return 0.0
        branches = float(sum(map(self.depths.sublayers, Side)))
        if role is Role.FC1:
            return branches ** (-1 / 2)
        if self.variant == "code" and sublayer is Sublayer.ENCODER_ATTN:
            branches = 12.0
        return branches ** (-1 / 6) / 2**0.5

    def initialise_ends(self, stacks: Mapping[Side, nn.Module]) -> None:
        tables = {id(table.weight) for _, table in embedding_tables(stacks)}
        for stack in stacks.values():
            projection = getattr(stack, "output_projection", None)
            if projection is not None and id(projection.weight) not in tables:
                nn.init.zeros_(projection.weight)


class TFixup(ResidualScheme):
    """T-Fixup (Huang et al., ICML 2020): x + G(x) with scaled initial weights and embeddings.

    The layers' weights are Xavier-uniform; v_proj, out_proj, fc1 and fc2 are multiplied by
    0.67 N^(-1/4) in the encoder and by (9M)^(-1/4) in the decoder, the embedding table by
    (9N)^(-1/4), and a separate decoder table by (9M)^(-1/4). The paper writes N for both depths. In
    the variant `code`, the weights of q and k are smaller by a factor of sqrt(2), as in fairseq and
    the authors' code. The vocabulary projection is scaled only if it shares an embedding table. The
    authors train without warm-up; the DeepNet paper's comparison uses warm-up for every method.
    """

    name: ClassVar[str] = "t-fixup"
    summary: ClassVar[str] = "x + G(x), no LayerNorm, value path and embeddings scaled"
    norm: ClassVar[NormPlacement] = NormPlacement.NONE
    variants: ClassVar[Mapping[str, str]] = {
        "paper": "q and k with Xavier's gain 1",
        "code": "q and k with fairseq's gain 1 / sqrt(2)",
    }
    draw = staticmethod(nn.init.xavier_uniform_)

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        if role not in VALUE_PATH:
            return 1.0 if self.variant == "paper" else 2**-0.5
        depth = float(self.depths.of(place.side))
        return 0.67 * depth ** (-1 / 4) if place.side is Side.ENCODER else (9 * depth) ** (-1 / 4)

    def initialise_ends(self, stacks: Mapping[Side, nn.Module]) -> None:
        with torch.no_grad():
            for side, table in embedding_tables(stacks):
                # fairseq draws embeddings from N(0, 1 / C)
                table.weight.mul_((9 * self.depths.of(side)) ** (-1 / 4))


def embedding_tables(stacks: Mapping[Side, Any]) -> Iterator[tuple[Side, nn.Embedding]]:
    """Yield each embedding table once, with the first side that uses it."""
    seen = set()
    for side, stack in stacks.items():
        if id(stack.embed_tokens.weight) not in seen:
            seen.add(id(stack.embed_tokens.weight))
            yield side, stack.embed_tokens


class ReZero(ResidualScheme):
    """x + a G(x) with a = 0 initially, so a new stack is the identity.

    The source is Bachlechner et al. (UAI 2021). As in their code, a layer's sublayers share one
    factor. In the variant `sublayer` each sublayer has its own, as in the paper's formula. The
    authors' encoder applies the factor before dropout and their decoder after it, which is
    equivalent. The authors initialise weights as torch does (`--init stock` is close to that); here
    they are Xavier-normal. Training in fp16 fails (DeepNet paper, footnote 3), so use fp32 or bf16.
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
