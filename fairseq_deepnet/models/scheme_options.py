"""The residual scheme of a model: its options, the record that every checkpoint carries, and what
training does to it (omega, ReZero's factor, DLCL's weights), in the logs.
"""

import logging
from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..anatomy import find_stacks
from ..divergence.options import add_watch_arguments
from ..errors import ConfigurationError
from ..monitoring.options import add_monitor_arguments
from ..schemes import (
    DEFAULT_SCHEME,
    SCHEMES,
    Depths,
    PostLN,
    PreLN,
    ResidualScheme,
    Side,
    scheme_class,
)
from .options import BOTH, FROZEN_NORMS, KIND_OF, default, model_name

logger = logging.getLogger(__name__)


def add_scheme_arguments(parser: ArgumentParser) -> None:
    """Add the options that each of our models has besides fairseq's."""
    schemes = "; ".join(f"{name}: {scheme.summary}" for name, scheme in SCHEMES.items())
    parser.add_argument(
        "--residual-scheme",
        metavar="NAME",
        help=f"how a sublayer joins the residual stream, default {DEFAULT_SCHEME} ({schemes})",
    )
    variants = "; ".join(
        f"{name}: {', '.join(scheme.variants)}"
        for name, scheme in SCHEMES.items()
        if scheme.variants
    )
    parser.add_argument(
        "--scheme-variant",
        metavar="NAME",
        help="which reading of the scheme's recipe, where a paper and its code differ or leave a"
        f" choice; the first is the default ({variants})",
    )
    stock = ", ".join(name for name, scheme in SCHEMES.items() if scheme.stock_initialisation)
    parser.add_argument(
        "--init",
        metavar="{scheme,stock}",
        help=f"initial weights: the scheme's (default) or fairseq's (for {stock})",
    )
    parser.add_argument(
        "--freeze-norms",
        metavar="{none,gain,both}",
        help="what of the LayerNorms in the layers is not trained, so that it stays as it starts:"
        " nothing (the default), gains at 1, or both gains at 1 and biases at 0, or as a"
        " checkpoint has them. alpha does not damp them in Post-LN: Adam moves those of all layers"
        " alike, and the stack multiplies and adds them up (docs/reports/collapse.md)",
    )
    parser.add_argument(
        "--allow-other-scheme",
        action="store_true",
        help="train weights on that come from a --restore-file or --finetune-from-model of another"
        " scheme, variant or alpha (which follows from the depth); refused otherwise, and always"
        " for what --save-dir holds",
    )
    add_monitor_arguments(parser)
    add_watch_arguments(parser)


def default_scheme(args: Namespace) -> None:
    """Set scheme and initial weights where the user left them open, and what the scheme implies."""
    default(args, residual_scheme=DEFAULT_SCHEME, init="scheme", freeze_norms="none")
    if scheme_class(args.residual_scheme, "--residual-scheme").embedding_norm:
        args.layernorm_embedding = True


def record_scheme(args: Namespace, sides: tuple[Side, ...] = BOTH) -> ResidualScheme:
    """Fix the scheme of a model that is being built, and write it into `args`.

    alpha goes into `args`, hence into every checkpoint: --encoder-layers-to-keep shortens a trained
    stack when it is loaded, and its alpha must stay that of the depth it was trained with.

    Raises:
        ConfigurationError: where `args` come from a checkpoint of another scheme.
    """
    scheme = scheme_of(args, sides)
    args.residual_record = {
        "scheme": scheme.name,
        "depths": [scheme.depths.encoder, scheme.depths.decoder],
        "alphas": {side.value: alpha for side, alpha in scheme.alphas.items()},
        "variant": scheme.variant,
    }
    logger.info("residual scheme: %s, init: %s", scheme, args.init)
    return scheme


def finish_model(
    model: nn.Module, args: Namespace, scheme: ResidualScheme, stacks: dict[Side, nn.Module]
) -> None:
    """Let a scheme work on a model that is built: ends of its stacks, hooks.

    Args:
        model: the whole of it.
        args: its arguments.
        scheme: its scheme.
        stacks: fairseq's encoder and decoder, as far as there are such.
    """
    if args.init == "scheme":
        scheme.initialise_ends(stacks)
    for parameter in frozen_norms(model, getattr(args, "freeze_norms", "none")).values():
        parameter.requires_grad_(False)
    scheme.prepare(model, int(getattr(args, "warmup_updates", 0) or 0))


def frozen_norms(model: nn.Module, frozen: str) -> dict[str, nn.Parameter]:
    """Return what --freeze-norms keeps of the LayerNorms in a model's layers, by name."""
    kept = FROZEN_NORMS[frozen]
    if not kept:
        return {}
    layers = [layer.module for stack in find_stacks(model) for layer in stack.layers]
    modules = {module for layer in layers for module in layer.modules()}
    norms = {module for module in modules if isinstance(module, nn.LayerNorm)}
    found = {getattr(norm, kind) for norm in norms for kind in kept}
    return {name: parameter for name, parameter in model.named_parameters() if parameter in found}


def stock_scheme(args: Any, side: Side) -> type[ResidualScheme]:
    """Return the scheme of a side of fairseq's own Transformer, by its --SIDE-normalize-before."""
    return PreLN if getattr(args, f"{side.value}_normalize_before", False) else PostLN


def scheme_of(args: Any, sides: tuple[Side, ...] = BOTH) -> ResidualScheme:
    """Return the scheme of a model: as its checkpoint recorded it, else from the depths asked for.

    Args:
        args: the model's arguments.
        sides: the stacks that this kind of model has.
    """
    chosen = scheme_class(args.residual_scheme, "--residual-scheme")
    variant = getattr(args, "scheme_variant", None)
    record = getattr(args, "residual_record", None)
    if record is None:
        layers = {side: getattr(args, f"{side.value}_layers") for side in sides}
        depths = Depths(layers.get(Side.ENCODER, 0), layers.get(Side.DECODER, 0))
        return chosen(depths, variant=variant)
    if record["scheme"] != chosen.name:
        raise ConfigurationError(
            f"--residual-scheme {chosen.name} contradicts the checkpoint, which was trained with"
            f" {record['scheme']}; leave it out of the overrides"
        )
    # a scheme may have got its variants after the checkpoint was made: it was the first of them
    trained = chosen.check_variant(record.get("variant"))
    if variant not in (None, trained):
        raise ConfigurationError(
            f"--scheme-variant {variant} contradicts the checkpoint, which was trained with"
            f" {trained}; leave it out of the overrides"
        )
    alphas = {Side(side): alpha for side, alpha in record["alphas"].items()}
    return chosen(Depths(*record["depths"]), alphas, trained)


def scheme_in(args: Any) -> ResidualScheme | None:
    """Return the scheme of the model that arguments describe, of ours or of fairseq's own.

    None for any other model, and for one of fairseq's whose sides differ in it.
    """
    kind = KIND_OF.get(model_name(args) or "")
    if kind is None:
        return None
    if getattr(args, "residual_scheme", None):
        return scheme_of(args, kind.sides)
    found = {stock_scheme(args, side) for side in kind.sides}
    layers = {side: getattr(args, f"{side.value}_layers") for side in kind.sides}
    depths = Depths(*(layers.get(side, 0) for side in Side))
    return found.pop()(depths) if len(found) == 1 else None


def learned_means(stack: Any) -> dict[str, Tensor]:
    """Return the mean over a stack's sublayers of everything learned in its residuals, by name."""
    residuals = [residual for layer in stack.layers for residual in layer.residuals.values()]
    found: dict[str, list[Tensor]] = {}
    for module in (*residuals, *filter(None, [stack.combination])):
        for name, tensor in module.learned().items():
            found.setdefault(name, []).append(tensor.detach().float().mean())
    return {name: torch.stack(means).mean() for name, means in found.items()}


def log_learned(stack: Any, side: Side, update: int, interval: int) -> None:
    """Give the means to fairseq's log, as SIDE_NAME, in the last update before each of its lines.

    Not while the stack's parameters are split over processes.

    Args:
        stack: our encoder or decoder.
        side: which of the two it is.
        update: updates that are finished, as in set_num_updates.
        interval: fairseq's --log-interval; 0 logs nothing.
    """
    if not interval or (update + 1) % interval:
        return
    if not any(isinstance(p, DTensor) for p in stack.parameters()):
        for name, mean in learned_means(stack).items():
            metrics.log_scalar(f"{side.value}_{name}", mean.item(), priority=900, round=4)
