"""The contract of a residual scheme: how a sublayer joins the residual stream, how weights start.

A scheme answers six questions; the layers ask nothing else (they hold no `if scheme ==`):

1. Where does LayerNorm stand? `norm`: post, pre (with one more after the stack), or none;
   `embedding_norm`: and after the embeddings?
2. How does a branch join the residual? `build_residuals`: one module a sublayer, built a layer at
   a time, so that the sublayers of a layer may share a parameter, and hand each other more than x.
3. What else does a sublayer carry? `build_head_transform`, `build_ffn_transforms`, `bias`.
4. Is a layer's input more than the output of the layer below? `build_combination`. Does more than
   x go from layer to layer? `streams`. What follows the stack? `build_output_transform`.
5. How does every weight start? `gain` and `draw`; `initialise_ends` outside the layers; `prepare`
   for what only a batch or the training's options can tell. A residual that changes with the
   training has `set_num_updates`, which fairseq calls before each of its batches.
6. Can fairseq's stock layers compute a trained model? `why_not_stock`; `residual_weight`,
   `stock_layer` and `stock_options` say how, for export.

Where a paper and its authors' code differ, `variants` names both. docs/reference/schemes.md
describes each published method in these terms.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from torch import Tensor, nn

from ..errors import ConfigurationError
from .residual import Combination, PostNormResidual, PreNormResidual, Residual


class Side(StrEnum):
    """The stacks: both in an encoder-decoder, one of them in other models."""

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

    def sublayers(self, side: Side) -> int:
        """Count the residual branches: 2N; 3M in a decoder that has an encoder, else 2M."""
        crossed = side is Side.DECODER and self.encoder > 0
        return self.of(side) * (3 if crossed else 2)

    @property
    def all_sublayers(self) -> int:
        """Residual branches of the whole model: 2N + 3M with both sides."""
        return sum(self.sublayers(side) for side in Side)


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
        variant: which reading of the recipe; the first of `variants` where None.

    Raises:
        ConfigurationError: for a variant that the scheme does not have.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    norm: ClassVar[NormPlacement]
    embedding_norm: ClassVar[bool] = False  # does a LayerNorm follow the embeddings
    bounded: ClassVar[bool] = False  # are all sublayers LN(alpha x + G(x)), as the bounds ask
    combines: ClassVar[bool] = False  # do layers read more than the layer below (as in DLCL)
    streams: ClassVar[int] = 1  # tensors [B, T, C] that go from layer to layer, x the first
    variants: ClassVar[Mapping[str, str]] = {}  # name -> what it means
    bias: ClassVar[bool] = True  # do linear maps have biases (Fixup's do not)
    layer_drop: ClassVar[bool] = True  # may layers be left out, while training or when loading
    stock_initialisation: ClassVar[bool] = False  # may `--init stock` replace the scheme's own
    # How a weight is drawn, given its gain.
    draw: ClassVar[Callable[..., Tensor]] = staticmethod(nn.init.xavier_normal_)

    def __init__(
        self,
        depths: Depths,
        alphas: Mapping[Side, float] | None = None,
        variant: str | None = None,
    ) -> None:
        self.depths = depths
        self.variant = self.check_variant(variant)
        self.alphas: dict[Side, float] = {}
        for side in Side:
            alpha = (alphas or {}).get(side, self.default_alpha(side)) if depths.of(side) else None
            if alpha is not None:
                self.alphas[side] = alpha

    @classmethod
    def check_variant(cls, variant: str | None) -> str | None:
        """Return the variant, or the default one; None for a scheme that has none."""
        if variant is None:
            return next(iter(cls.variants), None)
        if variant not in cls.variants:
            known = f"choose one of {', '.join(cls.variants)}" if cls.variants else "leave it out"
            raise ConfigurationError(
                f"--scheme-variant {variant}: --residual-scheme {cls.name} has no such variant;"
                f" {known}"
            )
        return variant

    def default_alpha(self, side: Side) -> float | None:
        """Return what multiplies the residual before its LayerNorm; None where nothing does."""
        return 1.0 if self.norm is NormPlacement.POST else None

    # How a branch joins, and what it carries

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        """Return a residual for each sublayer at `place`; `embed_dim` sizes learned vectors."""
        if self.norm is NormPlacement.POST:
            return {sublayer: PostNormResidual(self.alphas[place.side]) for sublayer in sublayers}
        kind = PreNormResidual if self.norm is NormPlacement.PRE else Residual
        return {sublayer: kind() for sublayer in sublayers}

    def build_head_transform(
        self, place: Place, sublayer: Sublayer, num_heads: int, embed_dim: int
    ) -> nn.Module | None:
        """Return what acts on the heads [B, H, T, D] before out_proj (as in NormFormer)."""
        return None

    def build_ffn_transforms(
        self, place: Place, ffn_dim: int
    ) -> tuple[nn.Module | None, nn.Module | None]:
        """Return what acts on the FFN's hidden [B, T, F] before the activation, and before fc2."""
        return None, None

    def build_combination(self, side: Side, embed_dim: int) -> Combination | None:
        """Return what maps all layers' outputs so far to the next layer's input (as in DLCL)."""
        return None

    def build_output_transform(self, side: Side, embed_dim: int) -> nn.Module | None:
        """Return what acts on the stack's output (as in R-Fixup), and makes one of more `streams`.

        Pre-LN's norm is not it.
        """
        return None

    # What of it stock layers can compute, once its weights are folded (tools/export/folding.py)

    def why_not_stock(self) -> str | None:
        """Return why fairseq's layers cannot compute it, whatever the weights; None if they can."""
        if self.norm is NormPlacement.NONE:
            return "it has no LayerNorm, and a stock layer normalises in every sublayer"
        return None

    def residual_weight(self, place: Place, learned: Mapping[str, Tensor]) -> float | Tensor:
        """Return what multiplies a trained sublayer's residual, where LayerNorm stands after it.

        Args:
            place: of its layer.
            learned: what the sublayer's residual has saved, by name.

        Returns:
            one number, or a vector [C].
        """
        return self.alphas[place.side]

    def stock_layer(self, place: Place, layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a trained layer's parameters, by name, as those of a stock layer.

        The residuals' own are left out: `residual_weight` has told what they multiply.
        """
        return {name: weight for name, weight in layer.items() if not name.startswith("residuals.")}

    def stock_options(self) -> dict[str, bool]:
        """Return fairseq's model options that give a stock layer what `stock_layer` names."""
        return {}

    # How weights start

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        """Return a weight's standard deviation over Xavier's, sqrt(2 / (fan_in + fan_out))."""
        return 1.0

    def initialise(self, place: Place, sublayer: Sublayer, role: Role, linear: nn.Linear) -> None:
        """Draw a linear map's weight afresh and set its bias to zero."""
        self.draw(linear.weight, gain=self.gain(place, sublayer, role))
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)

    def initialise_ends(self, stacks: Mapping[Side, nn.Module]) -> None:
        """Change what lies outside the layers: embeddings, vocabulary projection.

        Called once, with fairseq's encoder and decoder (`embed_tokens`, `output_projection`), whose
        tables may be one. DeepNorm leaves them as fairseq makes them; T-Fixup and R-Fixup do not.
        """

    def prepare(self, model: nn.Module, warmup: int) -> None:
        """Arrange for what needs a batch, such as Admin's profiling, or the training's schedule.

        Called on the built model; `warmup` is the updates of the learning rate's warm-up, or 0.
        """

    def __repr__(self) -> str:
        parts = [f"{self.depths.encoder}L-{self.depths.decoder}L"]
        parts += [f"variant {self.variant}"] if self.variant else []
        parts += [f"{side.value} alpha {alpha:.4g}" for side, alpha in self.alphas.items()]
        return f"{self.name}({', '.join(parts)})"
