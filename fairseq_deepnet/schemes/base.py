"""The contract of a residual scheme: how a sublayer joins the residual stream, how weights start.

A scheme answers five questions; the layers ask nothing else (they hold no `if scheme ==`):

1. Where does LayerNorm stand? `norm`: post, pre (with one more after the stack), or none.
2. How does a branch join the residual? `build_residuals`: one module a sublayer, built a layer at
   a time, so that the sublayers of a layer may share a parameter.
3. What else does a sublayer carry? `build_head_transform`, `build_ffn_transforms`, `bias`.
4. Is a layer's input more than the output of the layer below? `build_combination`.
5. How does every weight start? `gain` and `initialise`; `initialise_ends` outside the layers.

docs/schemes.md walks through each published method in these terms.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from torch import nn

from .residual import PostNormResidual, PreNormResidual, Residual


class Side(StrEnum):
    """The two stacks of an encoder-decoder."""

    ENCODER = "encoder"
    DECODER = "decoder"


class NormPlacement(StrEnum):
    """Where LayerNorm stands: after the residual sum, at the start of the branch, or nowhere."""

    POST = "post"
    PRE = "pre"
    NONE = "none"


class Sublayer(StrEnum):
    """The residual branches of a layer; the values are fairseq's attribute names."""

    SELF_ATTN = "self_attn"
    ENCODER_ATTN = "encoder_attn"
    FFN = "ffn"


class Role(StrEnum):
    """What a linear map does in its branch; the values are fairseq's attribute names."""

    Q_PROJ = "q_proj"
    K_PROJ = "k_proj"
    V_PROJ = "v_proj"
    OUT_PROJ = "out_proj"
    FC1 = "fc1"
    FC2 = "fc2"


# Attn =Theta v w X whatever W_Q and W_K are (paper, Lemma 4.1): q and k do not set the size of a
# branch's output.
VALUE_PATH = frozenset({Role.V_PROJ, Role.OUT_PROJ, Role.FC1, Role.FC2})


@dataclass(frozen=True)
class Depths:
    """Layers a side: N in the encoder, M in the decoder; 0 where a model lacks that side."""

    encoder: int
    decoder: int

    def __post_init__(self) -> None:
        if min(self.encoder, self.decoder) < 0 or self.encoder + self.decoder == 0:
            raise ValueError(f"depths must be positive, got {self.encoder} and {self.decoder}")

    def of(self, side: Side) -> int:
        return self.encoder if side is Side.ENCODER else self.decoder


@dataclass(frozen=True)
class Place:
    """A layer's place: its side, and its index counted from 0 at the input."""

    side: Side
    layer: int


class ResidualScheme:
    """Base of all schemes: plain residuals, Xavier-normal weights, zero biases.

    Args:
        depths: the depths that the model is trained with.
        alphas: the residual weight of each side, where a checkpoint recorded it; `default_alpha`
            where not.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    norm: ClassVar[NormPlacement]
    bias: ClassVar[bool] = True  # do linear maps have biases (Fixup's do not)
    stock_initialisation: ClassVar[bool] = False  # may `--init stock` replace the scheme's own

    def __init__(self, depths: Depths, alphas: dict[Side, float] | None = None) -> None:
        self.depths = depths
        present = [side for side in Side if depths.of(side) and self.norm is NormPlacement.POST]
        self.alphas = {side: (alphas or {}).get(side, self.default_alpha(side)) for side in present}

    def default_alpha(self, side: Side) -> float:
        """Constant that multiplies the residual on this side, where LayerNorm follows the sum."""
        return 1.0

    # How a branch joins, and what it carries

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        """One residual a sublayer of the layer at `place`; `embed_dim` sizes learned vectors."""
        if self.norm is NormPlacement.POST:
            return {sublayer: PostNormResidual(self.alphas[place.side]) for sublayer in sublayers}
        kind = PreNormResidual if self.norm is NormPlacement.PRE else Residual
        return {sublayer: kind() for sublayer in sublayers}

    def build_head_transform(
        self, place: Place, sublayer: Sublayer, num_heads: int
    ) -> nn.Module | None:
        """What acts on the heads' outputs [B, H, T, D] before out_proj (as in NormFormer)."""
        return None

    def build_ffn_transforms(
        self, place: Place, ffn_dim: int
    ) -> tuple[nn.Module | None, nn.Module | None]:
        """What acts on the FFN's hidden [B, T, F] before the activation, and before fc2."""
        return None, None

    def build_combination(self, side: Side, embed_dim: int) -> nn.Module | None:
        """What maps the list of all layers' outputs to the next layer's input (as in DLCL)."""
        return None

    # How weights start

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        """Factor on the Xavier standard deviation sqrt(2 / (fan_in + fan_out)) of a weight."""
        return 1.0

    def initialise(self, place: Place, sublayer: Sublayer, role: Role, linear: nn.Linear) -> None:
        """Draw a linear map's weight afresh and set its bias to zero."""
        nn.init.xavier_normal_(linear.weight, gain=self.gain(place, sublayer, role))
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)

    def initialise_ends(self, model: nn.Module) -> None:
        """Change what lies outside the layers: embeddings, vocabulary projection.

        Called once, on the whole model, whose embeddings may be shared. DeepNorm leaves them as
        fairseq makes them; T-Fixup and R-Fixup do not.
        """

    def __repr__(self) -> str:
        parts = [f"{self.depths.encoder}L-{self.depths.decoder}L"]
        parts += [f"{side.value} alpha {alpha:.4g}" for side, alpha in self.alphas.items()]
        return f"{self.name}({', '.join(parts)})"
