"""Options of the residual scheme, its record in checkpoints, and logging of its learned values."""

import logging
from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..anatomy import find_stacks
from ..divergence.watch import add_watch_arguments
from ..errors import ConfigurationError
from ..monitoring.monitor import add_monitor_arguments
from ..optim.schedule import warmup_of
from ..schemes import (
    DEFAULT_SCHEME,
    SCHEMES,
    Combination,
    Depths,
    NormPlacement,
    PostLN,
    PreLN,
    Residual,
    ResidualScheme,
    Side,
    scheme_class,
)
from .options import BOTH, KIND_OF, default, model_name

logger = logging.getLogger(__name__)


def add_scheme_arguments(parser: ArgumentParser) -> None:
    """Add the options of the residual scheme, the monitor and the divergence watch."""
    schemes = "; ".join(f"{name}: {scheme.summary}" for name, scheme in SCHEMES.items())
    parser.add_argument(
        "--residual-scheme",
        metavar="NAME",
        help=f"residual scheme, default {DEFAULT_SCHEME} ({schemes})",
    )
    variants = "; ".join(
        f"{name}: {', '.join(scheme.variants)}"
        for name, scheme in SCHEMES.items()
        if scheme.variants
    )
    parser.add_argument(
        "--scheme-variant",
        metavar="NAME",
        help="variant of the scheme, if a paper and its code differ or leave a choice; the first"
        f" variant is the default ({variants})",
    )
    stock = ", ".join(name for name, scheme in SCHEMES.items() if scheme.stock_initialisation)
    parser.add_argument(
        "--init",
        metavar="{scheme,stock}",
        help=f"initial weights: the scheme's (default) or fairseq's (for {stock})",
    )
    parser.add_argument(
        "--freeze-norms",
        metavar="{none,inner,both}",
        help="freeze the gains and biases of the layers' LayerNorms at 1 and 0 (or at the values of"
        " a loaded checkpoint). both freezes all of them, inner all except those of a Post-LN"
        " stack's last LayerNorm. After a short warm-up, deep Post-LN stacks collapse if these"
        " parameters drift (docs/reports/collapse.md). Default: none",
    )
    parser.add_argument(
        "--allow-other-scheme",
        action="store_true",
        help="continue training from a --restore-file or --finetune-from-model with another scheme,"
        " variant or alpha (which depends on depth), or with other attention heads, activation,"
        " language tokens or shared embeddings. Never allowed for a checkpoint in --save-dir",
    )
    add_monitor_arguments(parser)
    add_watch_arguments(parser)


def default_scheme(args: Namespace) -> None:
    """Set the default scheme and initialisation, and the options that the scheme implies."""
    default(args, residual_scheme=DEFAULT_SCHEME, init="scheme", freeze_norms="none")
    if scheme_class(args.residual_scheme, "--residual-scheme").embedding_norm:
        args.layernorm_embedding = True


def record_scheme(args: Namespace, sides: tuple[Side, ...] = BOTH) -> ResidualScheme:
    """Return the scheme of the model to build, and record it in `args`.

    Every checkpoint contains `args` and thus alpha. --encoder-layers-to-keep shortens a trained
    stack at loading, but alpha must keep its value from training.

    Raises:
        ConfigurationError: if `args` come from a checkpoint that was trained with another scheme.
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
    """Initialise a new model's embeddings, freeze LayerNorms if requested, and register hooks.

    `stacks` are the model's encoder, decoder or both.
    """
    if args.init == "scheme":
        scheme.initialise_ends(stacks)
    freeze_norms(model, getattr(args, "freeze_norms", "none"), scheme.norm)
    scheme.prepare(model, warmup_of(args))


def freeze_norms(model: nn.Module, frozen: str, placement: NormPlacement) -> None:
    """Apply --freeze-norms."""
    for stack in find_stacks(model) if frozen != "none" else ():
        keeps_last = frozen == "inner" and placement is NormPlacement.POST
        last = stack.layers[-1].branches[-1].norm if keeps_last else None
        for layer in stack.layers:
            for module in layer.module.modules():
                if isinstance(module, nn.LayerNorm) and module is not last:
                    module.requires_grad_(False)


def stock_scheme(args: Any, side: Side) -> type[ResidualScheme]:
    """Return the scheme of one side of fairseq's Transformer, given by --SIDE-normalize-before."""
    return PreLN if getattr(args, f"{side.value}_normalize_before", False) else PostLN


def _depths(args: Any, sides: tuple[Side, ...]) -> Depths:
    """Return the depths that the options set; a side that this kind of model lacks has 0 layers."""
    return Depths(*(getattr(args, f"{side.value}_layers") if side in sides else 0 for side in Side))


def scheme_of(args: Any, sides: tuple[Side, ...] = BOTH) -> ResidualScheme:
    """Return a model's scheme as recorded in its checkpoint, or from its options if unrecorded.

    `sides` are the stacks of this kind of model.
    """
    chosen = scheme_class(args.residual_scheme, "--residual-scheme")
    variant = getattr(args, "scheme_variant", None)
    if not hasattr(args, "residual_record"):
        return chosen(_depths(args, sides), variant=variant)
    record = args.residual_record or {}
    if record.get("scheme") != chosen.name:
        raise ConfigurationError(
            f"--residual-scheme {chosen.name} contradicts the checkpoint's residual_record, which"
            f" contains {record.get('scheme')}; leave both out of the overrides"
        )
    # Checkpoints from before the scheme had variants were trained with the first variant.
    trained = chosen.check_variant(record.get("variant"))
    if variant not in (None, trained):
        raise ConfigurationError(
            f"--scheme-variant {variant} contradicts the checkpoint, which was trained with"
            f" {trained}; leave it out of the overrides"
        )
    alphas = {Side(side): alpha for side, alpha in record["alphas"].items()}
    return chosen(Depths(*record["depths"]), alphas, trained)


def scheme_in(args: Any) -> ResidualScheme | None:
    """Return the scheme of the model, ours or fairseq's, that these arguments define.

    The result is None for other models, and if the sides of fairseq's model have different schemes.
    """
    kind = KIND_OF.get(model_name(args) or "")
    if kind is None:
        return None
    if getattr(args, "residual_scheme", None):
        return scheme_of(args, kind.sides)
    kinds = {stock_scheme(args, side) for side in kind.sides}
    return kinds.pop()(_depths(args, kind.sides)) if len(kinds) == 1 else None


def log_learned(stack: Any, update: int) -> None:
    """Log the mean of each learned value over a stack, e.g. as encoder_residual_weight.

    Values are logged in the last update before each line of fairseq's log, but not for sharded
    stacks.

    Args:
        stack: our encoder or decoder; if its `log_interval` is 0, nothing is logged.
        update: number of completed updates, as passed to set_num_updates.
    """
    if not stack.log_interval or (update + 1) % stack.log_interval:
        return
    if any(isinstance(p, DTensor) for p in stack.parameters()):
        return
    # not `stack.layers`, because iteration over LayerDrop's list skips layers
    modules = [part for part in stack.modules() if isinstance(part, Residual | Combination)]
    means: dict[str, list[Tensor]] = {}
    for module in modules:
        for name, tensor in module.learned().items():
            means.setdefault(name, []).append(tensor.detach().float().mean())
    for name, values in means.items():
        mean = torch.stack(values).mean().item()
        metrics.log_scalar(f"{stack.side.value}_{name}", mean, priority=900, round=4)
