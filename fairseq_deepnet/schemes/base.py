"""The contract of a residual scheme: how a sublayer joins the residual stream, how weights start.

A scheme answers six questions. The layers need nothing else (they contain no `if scheme ==`):

1. Where is LayerNorm? `norm`: post, pre (with another one after the stack), or none.
   `embedding_norm`: is there one after the embeddings?
2. How does a branch join the residual? `build_residuals` returns one module per sublayer. It is
   called once per layer, so that the sublayers of a layer can share parameters and pass on more
   than x.
3. What else does a sublayer contain? `build_head_transform`, `build_ffn_transforms`, `bias`.
4. Does a layer read more than the output of the layer below? `build_combination`. Does more than x
   pass from layer to layer? `streams`. What follows the stack? `build_output_transform`.
5. How are weights initialised? `gain` and `draw`; `initialise_ends` outside the layers; `prepare`
   for values that depend on a batch or on the options of the run. A residual that changes during
   training has `set_num_updates`, which fairseq calls before each batch.
6. Can fairseq's stock layers compute a trained model? `why_not_stock`; `residual_weight`,
   `stock_layer` and `stock_options` define the export.

Where a paper and its authors' code differ, `variants` lists both. docs/reference/schemes.md
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
    """The two stacks; models other than the encoder-decoder have one of them."""

    ENCODER = "encoder"
    DECODER = "decoder"


class NormPlacement(StrEnum):
    """Placement of LayerNorm: after the residual sum, at the start of the branch, or nowhere."""

    POST = "post"
    PRE = "pre"
    NONE = "none"


class Sublayer(StrEnum):
    """The residual branches of a layer; the values are fairseq's attribute names."""

    SELF_ATTN = "self_attn"
    ENCODER_ATTN = "encoder_attn"
    FFN = "ffn"


class Role(StrEnum):
    """Role of a linear map in its branch; the values are fairseq's attribute names."""

    Q_PROJ = "q_proj"
    K_PROJ = "k_proj"
    V_PROJ = "v_proj"
    OUT_PROJ = "out_proj"
    FC1 = "fc1"
    FC2 = "fc2"


# Attn =Theta v w X for any W_Q and W_K (paper, Lemma 4.1): q and k do not affect the magnitude of
# a branch's output.
VALUE_PATH = frozenset({Role.V_PROJ, Role.OUT_PROJ, Role.FC1, Role.FC2})


@dataclass(frozen=True)
class Depths:
    """Layers per side: N in the encoder, M in the decoder; 0 for a side that the model lacks."""

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
    """Position of a layer: its side, and its index, counted from 0 at the input."""

    side: Side
    layer: int


class ResidualScheme:
    """Base of all schemes: plain residuals, Xavier-normal weights, zero biases.

    Args:
        depths: the depths that the model is trained with.
        alphas: the residual weight of each side as a checkpoint recorded it; by default
            `default_alpha`.
        variant: reading of the recipe; by default the first of `variants`.

    Raises:
        ConfigurationError: for a variant that the scheme does not have.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    norm: ClassVar[NormPlacement]
    embedding_norm: ClassVar[bool] = False  # a LayerNorm follows the embeddings
    bounded: ClassVar[bool] = False  # all sublayers are LN(alpha x + G(x)), as the bounds require
    combines: ClassVar[bool] = False  # layers read more than the layer below (as in DLCL)
    streams: ClassVar[int] = 1  # tensors [B, T, C] passed from layer to layer, x first
    variants: ClassVar[Mapping[str, str]] = {}  # name -> description
    bias: ClassVar[bool] = True  # linear maps have biases (not in Fixup)
    layer_drop: ClassVar[bool] = True  # layers may be dropped, in training or when loading
    stock_initialisation: ClassVar[bool] = False  # `--init stock` may replace the scheme's own
    # Initialises a weight, given its gain.
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
            advice = f"choose one of {', '.join(cls.variants)}" if cls.variants else "leave it out"
            raise ConfigurationError(
                f"--scheme-variant {variant}: --residual-scheme {cls.name} has no such variant;"
                f" {advice}"
            )
        return variant

    def default_alpha(self, side: Side) -> float | None:
        """Return the residual weight alpha of a side; None if the scheme has none."""
        return 1.0 if self.norm is NormPlacement.POST else None

    # Residuals and extra modules

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
        """Return a module applied to the heads [B, H, T, D] before out_proj (as in NormFormer)."""
        return None

    def build_ffn_transforms(
        self, place: Place, ffn_dim: int
    ) -> tuple[nn.Module | None, nn.Module | None]:
        """Return modules applied to the FFN's hidden [B, T, F] before activation and before fc2."""
        return None, None

    def build_combination(self, side: Side, embed_dim: int) -> Combination | None:
        """Return a module that maps all outputs so far to the next layer's input (as in DLCL)."""
        return None

    def build_output_transform(self, side: Side, embed_dim: int) -> nn.Module | None:
        """Return a module applied to the stack's output (as in R-Fixup), which joins `streams`.

        The final norm of Pre-LN is separate.
        """
        return None

    # Export to stock layers (tools/export/folding.py)

    def why_not_stock(self) -> str | None:
        """Return the reason why fairseq's layers cannot compute the scheme; None if they can."""
        if self.norm is NormPlacement.NONE:
            return "it has no LayerNorm, and a stock layer normalises in every sublayer"
        return None

    def residual_weight(self, place: Place, learned: Mapping[str, Tensor]) -> float | Tensor:
        """Return the residual weight of a trained Post-LN sublayer: a number or a vector [C].

        Args:
            place: place of its layer.
            learned: saved tensors of the sublayer's residual, by name.
        """
        return self.alphas[place.side]

    def stock_layer(self, place: Place, layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a trained layer's parameters, by name, as those of a stock layer.

        Parameters of the residuals are left out: `residual_weight` covers them.
        """
        return {name: weight for name, weight in layer.items() if not name.startswith("residuals.")}

    def stock_options(self) -> dict[str, bool]:
        """Return fairseq's model options for a stock layer with the parameters of `stock_layer`."""
        return {}

    # Initialisation

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        """Return a weight's standard deviation over Xavier's, sqrt(2 / (fan_in + fan_out))."""
        return 1.0

    def initialise(self, place: Place, sublayer: Sublayer, role: Role, linear: nn.Linear) -> None:
        """Initialise a linear map's weight and set its bias to zero."""
        self.draw(linear.weight, gain=self.gain(place, sublayer, role))
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)

    def initialise_ends(self, stacks: Mapping[Side, nn.Module]) -> None:
        """Initialise the embeddings and the vocabulary projection.

        Called once with fairseq's encoder and decoder (`embed_tokens`, `output_projection`), whose
        tables may be shared. T-Fixup and R-Fixup override it; other schemes keep fairseq's values.
        """

    def prepare(self, model: nn.Module, warmup: int) -> None:
        """Prepare whatever depends on a batch (Admin's profiling) or on the schedule.

        Called with the built model; `warmup` is the number of warm-up updates, or 0.
        """

    def __repr__(self) -> str:
        parts = [f"{self.depths.encoder}L-{self.depths.decoder}L"]
        parts += [f"variant {self.variant}"] if self.variant else []
        parts += [f"{side.value} alpha {alpha:.4g}" for side, alpha in self.alphas.items()]
        return f"{self.name}({', '.join(parts)})"
