"""Model options: architecture defaults, checks, and the layers built from the options."""

from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from fairseq.models import ARCH_MODEL_NAME_REGISTRY

from ..divergence.watch import policy_of
from ..errors import ConfigurationError
from ..modules.layers import LayerShape, TransformerLayer, compile_layers
from ..monitoring.monitor import monitored_quantities
from ..schemes import SCHEMES, NormPlacement, Place, ResidualScheme, Side, scheme_class
from .running_options import check_running

Layer = TypeVar("Layer", bound=TransformerLayer)
BOTH = tuple(Side)


@dataclass(frozen=True)
class ModelKind:
    """Kind of model, defined by its stacks.

    Args:
        arch: our base architecture.
        stock: fairseq's architecture with the same structure.
        sides: stacks of the model.
    """

    arch: str
    stock: str
    sides: tuple[Side, ...]


ENCODER_DECODER = ModelKind("deepnet_transformer", "transformer", (Side.ENCODER, Side.DECODER))
DECODER_ONLY = ModelKind("deepnet_transformer_lm", "transformer_lm", (Side.DECODER,))
ENCODER_ONLY = ModelKind("deepnet_masked_lm", "roberta", (Side.ENCODER,))
KIND_OF = {
    name: kind
    for kind in (ENCODER_DECODER, DECODER_ONLY, ENCODER_ONLY)
    for name in (kind.arch, kind.stock)
}
"""Kinds of our models, and of fairseq's models with the same structure, by registered name."""


def model_name(args: Any) -> str | None:
    """Return the registered model name for `args`; None if unknown."""
    for name in (getattr(args, "arch", None), getattr(args, "_name", None)):
        if name in KIND_OF or name in ARCH_MODEL_NAME_REGISTRY:
            return str(ARCH_MODEL_NAME_REGISTRY.get(name, name))
    return None


_NUMBERS = "quant_noise_pq quant_noise_scalar base_layers mha_reg_scale_factor ffn_reg_scale_factor"
_FLAGS = (
    "adaptive_input tie_adaptive_weights character_embeddings cross_self_attention"
    " no_cross_attention char_inputs export scale_attn scale_heads scale_fc scale_resids"
)
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_NUMBERS.split(), (0,)),
    **dict.fromkeys(_FLAGS.split(), (False, None)),
    **dict.fromkeys(("encoder_xformers_att_config", "decoder_xformers_att_config"), (None, "")),
    **dict.fromkeys(("mha_heads_to_keep", "ffn_blocks_to_remove"), (-1,)),
}
"""fairseq options that our layers do not implement, as attribute names, with neutral values."""
FROZEN_NORMS = ("none", "inner", "both")
"""Values of --freeze-norms; each freezes more parameters than the one before."""


def default(args: Namespace, **values: Any) -> None:
    """Set options to the given values, unless the user or a derived architecture has set them."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def default_shape(
    args: Namespace, width: int, ffn: int, heads: int, sides: Iterable[Side] = BOTH
) -> None:
    """Set the width, feed-forward width and number of heads of `sides`, unless already set."""
    shape = {"embed_dim": width, "ffn_embed_dim": ffn, "attention_heads": heads}
    for side in sides:
        default(args, **{f"{side.value}_{name}": size for name, size in shape.items()})


def default_depth(args: Namespace, layers: int, sides: Iterable[Side] = BOTH) -> None:
    """Set the number of layers of each side in `sides`, unless already set."""
    default(args, **{f"{side.value}_layers": layers for side in sides})


def check_options(args: Namespace, kind: ModelKind = ENCODER_DECODER) -> None:
    """Check the model's options.

    Raises:
        ConfigurationError: if options contradict each other or are not supported.
    """
    scheme = scheme_class(args.residual_scheme, "--residual-scheme")
    for attribute, neutral in UNSUPPORTED.items():
        value = getattr(args, attribute, neutral[0])
        if value not in neutral:
            option = attribute.replace("_", "-")
            raise ConfigurationError(
                f"--{option} {value} is not supported by {kind.arch}; leave it out,"
                f" or train fairseq's own --arch {kind.stock}"
            )
    scheme.check_variant(getattr(args, "scheme_variant", None))
    monitored_quantities(args)
    policy_of(args)
    check_running(args, scheme)
    for side in kind.sides:
        check_shape(args, side)
        for option in (f"{side.value}-layerdrop", f"{side.value}-layers-to-keep"):
            value = getattr(args, option.replace("-", "_"), None)
            if value and not scheme.layer_drop:
                raise ConfigurationError(
                    f"--{option} {value} contradicts --residual-scheme {scheme.name}, which needs"
                    f" every layer; leave out --{option}"
                )
        option = f"--{side.value}-normalize-before"
        if getattr(args, f"{side.value}_normalize_before", False) and (
            scheme.norm is not NormPlacement.PRE
        ):
            raise ConfigurationError(
                f"{option} contradicts --residual-scheme {scheme.name};"
                f" leave out {option}, or choose"
                f" {names(lambda other: other.norm is NormPlacement.PRE)}"
            )
    if getattr(args, "no_decoder_final_norm", False) and scheme.norm is not NormPlacement.PRE:
        raise ConfigurationError(
            f"--no-decoder-final-norm has no effect with --residual-scheme {scheme.name}, which is"
            " not Pre-LN; leave it out"
        )
    frozen = getattr(args, "freeze_norms", "none")
    if frozen not in FROZEN_NORMS:
        raise ConfigurationError(f"--freeze-norms {frozen} is unknown; choose none, inner or both")
    if frozen != "none" and scheme.norm is NormPlacement.NONE:
        raise ConfigurationError(
            f"--freeze-norms has no effect with --residual-scheme {scheme.name}, which has no"
            " LayerNorm; leave it out"
        )
    if args.init not in ("scheme", "stock"):
        raise ConfigurationError(f"--init {args.init} is unknown; choose scheme or stock")
    if args.init == "stock" and not scheme.stock_initialisation:
        raise ConfigurationError(
            f"--init stock contradicts --residual-scheme {scheme.name}, which is defined by its own"
            " initial weights; leave out --init, or choose"
            f" {names(lambda other: other.stock_initialisation)}"
        )


def names(fit: Callable[[type[ResidualScheme]], bool]) -> str:
    """Return a --residual-scheme option that lists the schemes for which `fit` is true."""
    return f"--residual-scheme {{{','.join(name for name, kind in SCHEMES.items() if fit(kind))}}}"


def check_shape(args: Namespace, side: Side) -> None:
    """Raise ConfigurationError if a side's depth, widths or number of heads are invalid."""
    name = side.value
    for part in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
        if (size := getattr(args, f"{name}_{part}")) < 1:
            option = f"--{name}-{part.replace('_', '-')}"
            raise ConfigurationError(f"{option} {size}: must be at least 1")
    heads, width = getattr(args, f"{name}_attention_heads"), getattr(args, f"{name}_embed_dim")
    if width % heads:
        raise ConfigurationError(
            f"--{name}-attention-heads {heads} does not divide --{name}-embed-dim {width};"
            " choose a number of heads that does"
        )


def build_layer(layer_class: type[Layer], cfg: Any, scheme: ResidualScheme, place: Place) -> Layer:
    """Build the layer at `place`, with fairseq's initial weights if --init is stock."""
    layer = layer_class(layer_shape(cfg, place.side), scheme, place)
    if cfg.init == "scheme":
        layer.initialise(scheme)
    if getattr(cfg, "compile", False):
        layer.compiled = compile_layers()
    return layer


def layer_shape(cfg: Any, side: Side) -> LayerShape:
    """Return the sizes and dropout probabilities of a side's layers from a TransformerConfig."""
    part = cfg.encoder if side is Side.ENCODER else cfg.decoder
    return LayerShape(
        embed_dim=part.embed_dim,
        ffn_dim=part.ffn_embed_dim,
        heads=part.attention_heads,
        source_dim=cfg.encoder.embed_dim,
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        # in old configurations, relu_dropout is the name of activation_dropout
        activation_dropout=cfg.activation_dropout or cfg.relu_dropout or 0.0,
        activation=cfg.activation_fn,
    )
