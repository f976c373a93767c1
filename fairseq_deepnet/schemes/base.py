"""Interface of a residual scheme, which defines residual connections and initial weights.

Layers contain no code for particular schemes. A scheme defines:

1. Normalisation: `norm` is LayerNorm's placement in a sublayer (`pre` adds a final LayerNorm after
   the stack), and `embedding_norm` adds a LayerNorm after the embeddings.
2. Residuals: `build_residual` returns the module of a sublayer. A scheme whose sublayers share
   parameters overrides `build_residuals` instead, which is called once per layer.
3. Optional parts of a sublayer: `build_head_transform`, `build_ffn_transforms` and `bias`.
4. Connections across layers: `build_combination` returns a module that combines the outputs of all
   lower layers, `streams` is the number of tensors passed between layers, and
   `build_output_transform` returns a module that follows the stack.
5. Initial weights: `gain` and `draw` set a layer's weights, `initialise_ends` sets the embeddings
   and the vocabulary projection, and `prepare` handles values that depend on a batch or on the
   run's options. A residual that changes during training has a method `set_num_updates`, which
   fairseq calls before each batch.
6. Export to fairseq's layers: `why_not_stock`, `residual_weight`, `stock_layer` and
   `stock_options`.

If a paper and its authors' code differ, `variants` lists both. docs/reference/schemes.md describes
each published method in these terms.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from torch import Tensor, nn

from ..errors import ConfigurationError
from .residual import Combination, PostNormResidual, PreNormResidual, Residual


class Side(StrEnum):
    """Stack of a Transformer: the encoder or the decoder."""

    ENCODER = "encoder"
    DECODER = "decoder"


class NormPlacement(StrEnum):
    """Placement of LayerNorm: after the residual sum, at the start of the branch, or nowhere."""

    POST = "post"
    PRE = "pre"
    NONE = "none"


class Sublayer(StrEnum):
    """Residual branch of a layer; for attention, the value is fairseq's attribute name."""

    SELF_ATTN = "self_attn"
    ENCODER_ATTN = "encoder_attn"
    FFN = "ffn"


class Role(StrEnum):
    """Role of a linear map in its branch; values are fairseq's attribute names."""

    Q_PROJ = "q_proj"
    K_PROJ = "k_proj"
    V_PROJ = "v_proj"
    OUT_PROJ = "out_proj"
    FC1 = "fc1"
    FC2 = "fc2"


# By Lemma 4.1 of the paper, q and k do not affect the magnitude of a branch's output.
VALUE_PATH = frozenset({Role.V_PROJ, Role.OUT_PROJ, Role.FC1, Role.FC2})


@dataclass(frozen=True)
class Depths:
    """Number of layers per side: N in the encoder, M in the decoder, 0 for a missing side."""

    encoder: int
    decoder: int

    def of(self, side: Side) -> int:
        return self.encoder if side is Side.ENCODER else self.decoder

    def sublayers(self, side: Side) -> int:
        """Return a side's number of residual branches: 2N or 3M, or 2M if there is no encoder."""
        crossed = side is Side.DECODER and self.encoder > 0
        return self.of(side) * (3 if crossed else 2)


@dataclass(frozen=True)
class Place:
    """Position of a layer: its side, and its index, counted from 0 at the input."""

    side: Side
    layer: int


class ResidualScheme:
    """Base class of all schemes; by default, weights are Xavier-normal and biases are zero.

    Args:
        depths: number of layers per side during training.
        alphas: residual weight per side, as recorded in a checkpoint (default: `default_alpha`).
        variant: name from `variants` (default: the first).

    Raises:
        ConfigurationError: if the variant is unknown.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    norm: ClassVar[NormPlacement]
    embedding_norm: ClassVar[bool] = False  # a LayerNorm follows the embeddings
    bounded: ClassVar[bool] = False  # sublayers are LN(alpha x + G(x)), as update_bound needs
    combines: ClassVar[bool] = False  # layers read more than the layer below (as in DLCL)
    streams: ClassVar[int] = 1  # tensors [B, T, C] passed from layer to layer, x first
    variants: ClassVar[Mapping[str, str]] = {}  # name -> description
    bias: ClassVar[bool] = True  # linear maps have biases (not in Fixup)
    layer_drop: ClassVar[bool] = True  # layers may be dropped, in training or when loading
    stock_initialisation: ClassVar[bool] = False  # `--init stock` may replace the scheme's own
    # Initialises a weight, given its gain.
    draw: ClassVar[Callable[..., Tensor]] = staticmethod(nn.init.xavier_normal_)

    def __init__(
        self, depths: Depths, alphas: Mapping[Side, float] | None = None, variant: str | None = None
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
        """Return `variant` (default: the scheme's first), or None if the scheme has no variants."""
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
        """Return the residual weight alpha of a side; None if the scheme has no constant alpha."""
        return 1.0 if self.norm is NormPlacement.POST else None

    # Residuals and extra modules

    def build_residuals(
        self, place: Place, sublayers: tuple[Sublayer, ...], embed_dim: int
    ) -> dict[Sublayer, Residual]:
        """Return a residual for each sublayer of the layer at `place`.

        Learned vectors have the size C, which is `embed_dim`.
        """
        return {sublayer: self.build_residual(place, sublayer, embed_dim) for sublayer in sublayers}

    def build_residual(self, place: Place, sublayer: Sublayer, embed_dim: int) -> Residual:
        """Return the residual of one sublayer; `build_residuals` calls this method."""
        if self.norm is NormPlacement.POST:
            return PostNormResidual(self.alphas[place.side])
        return PreNormResidual() if self.norm is NormPlacement.PRE else Residual()

    def build_head_transform(
        self, sublayer: Sublayer, num_heads: int, embed_dim: int
    ) -> nn.Module | None:
        """Return a module applied to the heads [B, H, T, D] before out_proj (as in NormFormer)."""
        return None

    def build_ffn_transforms(self, ffn_dim: int) -> tuple[nn.Module | None, nn.Module | None]:
        """Return modules applied to hidden units [B, T, F] before the activation and before fc2."""
        return None, None

    def build_combination(self, side: Side, embed_dim: int) -> Combination | None:
        """Return a module that combines all outputs below a layer into its input (as in DLCL)."""
        return None

    def build_output_transform(self, side: Side, embed_dim: int) -> nn.Module | None:
        """Return a module applied to the stack's output (as in R-Fixup).

        If there are several streams, the module joins them. Pre-LN's final LayerNorm is separate.
        """
        return None

    # Export to stock layers (tools/export/folding.py)

    def why_not_stock(self) -> str | None:
        """Return the reason why fairseq's layers cannot compute the scheme; None if they can."""
        if self.norm is NormPlacement.NONE:
            return "it has no LayerNorm, whereas a stock layer normalises in every sublayer"
        return None

    def residual_weight(self, place: Place, learned: Mapping[str, Tensor]) -> float | Tensor:
        """Return a trained Post-LN sublayer's residual weight, a number or a vector [C].

        `learned` contains the saved tensors of the sublayer's residual, by name.
        """
        return self.alphas[place.side]

    def stock_layer(self, place: Place, layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert a trained layer's named parameters to those of a fairseq layer.

        Parameters of residuals are left out, because `residual_weight` accounts for them.
        """
        return {name: weight for name, weight in layer.items() if not name.startswith("residuals.")}

    def stock_options(self) -> dict[str, bool]:
        """Return the fairseq options for a model whose layers `stock_layer` has converted."""
        return {}

    # Initialisation

    def gain(self, place: Place, sublayer: Sublayer, role: Role) -> float:
        """Return the ratio of a weight's initial standard deviation to Xavier's.

        Xavier's standard deviation is sqrt(2 / (fan_in + fan_out)).
        """
        return 1.0

    def initialise(self, place: Place, sublayer: Sublayer, role: Role, linear: nn.Linear) -> None:
        """Initialise a linear map's weight and set its bias to zero."""
        self.draw(linear.weight, gain=self.gain(place, sublayer, role))
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)

    def initialise_ends(self, stacks: Mapping[Side, nn.Module]) -> None:
        """Initialise the embeddings and the vocabulary projection, which may share a table.

        T-Fixup and R-Fixup override this; other schemes keep fairseq's values.

        Args:
            stacks: the model's encoder and decoder, with `embed_tokens` and `output_projection`.
        """

    def prepare(self, model: nn.Module, warmup: int) -> None:
        """Prepare values that depend on a batch (as in Admin) or on the learning-rate schedule.

        `model` is complete, and `warmup` is the number of warm-up updates (0 without warm-up).
        """

    def __repr__(self) -> str:
        parts = [f"{self.depths.encoder}L-{self.depths.decoder}L"]
        parts += [f"variant {self.variant}"] if self.variant else []
        parts += [f"{side.value} alpha {alpha:.4g}" for side, alpha in self.alphas.items()]
        return f"{self.name}({', '.join(parts)})"
