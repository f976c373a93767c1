"""How a model's layers are run: what backward keeps of them, and whether they are compiled."""

import logging
from argparse import ArgumentParser, Namespace
from typing import Any

from ..errors import ConfigurationError
from ..modules import ActivationCheckpointing, LayerShape, thriftiest_segment
from ..schemes import ResidualScheme, Side

AUTO = "auto"

logger = logging.getLogger(__name__)


def add_running_arguments(parser: ArgumentParser) -> None:
    """The options that each of our models has."""
    parser.add_argument(
        "--checkpoint-every",
        metavar="LAYERS",
        help="activation checkpointing by segments: keep the input of every so many layers, and"
        " compute the rest again in backward; auto: the number that needs the least memory."
        " --checkpoint-activations is 1",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="train with torch.compile, one compilation for all layers of a stack: half a minute or"
        " more before the first update; other dropout masks. Meant for GPUs; slower on a CPU",
    )


def check_running(args: Namespace, scheme: type[ResidualScheme]) -> None:
    """Raise ConfigurationError for a --checkpoint-every that means nothing."""
    every = getattr(args, "checkpoint_every", None)
    if every not in (None, AUTO) and not (str(every).isdigit() and int(every) > 0):
        raise ConfigurationError(
            f"--checkpoint-every {every}: give a number of layers, or {AUTO}; leave it out to keep"
            " all activations"
        )
    if every in (None, AUTO) or int(every) == 1:
        return
    if getattr(args, "checkpoint_activations", False):
        raise ConfigurationError(
            f"--checkpoint-every {every} contradicts --checkpoint-activations, which is"
            " --checkpoint-every 1; leave one of them out"
        )
    if combines(scheme):
        raise ConfigurationError(
            f"--checkpoint-every {every} contradicts --residual-scheme {scheme.name}, which reads"
            " every layer's output, so that no segment can be longer than one; use"
            " --checkpoint-every 1"
        )


def combines(scheme: type[ResidualScheme]) -> bool:
    """Whether layers read more than the output of the layer below (as in DLCL)."""
    return scheme.build_combination is not ResidualScheme.build_combination


def checkpointing_of(
    cfg: Any, side: Side, scheme: ResidualScheme, shape: LayerShape
) -> ActivationCheckpointing:
    """What backward keeps of a stack's activations."""
    offload = bool(cfg.offload_activations)
    every = getattr(cfg, "checkpoint_every", None)
    if every == AUTO:
        every = auto_segment(side, scheme, shape)
    if every is None:
        every = 1 if cfg.checkpoint_activations or offload else 0
    return ActivationCheckpointing(int(every), offload)


def say_segments(side: Side, checkpointing: ActivationCheckpointing) -> None:
    """Tell the log what is kept of a stack that is being built."""
    if checkpointing.every:
        layers = "layer" if checkpointing.every == 1 else f"{checkpointing.every} layers"
        logger.info("activation checkpointing: %s, the input of every %s", side.value, layers)


def auto_segment(side: Side, scheme: ResidualScheme, shape: LayerShape) -> int:
    """`--checkpoint-every auto`: from the tensors that a layer keeps, in multiples of its input.

    With fused attention, relu and LayerNorm an encoder layer keeps 8 + F / C of them, one more
    attention with keys and values of a source as long adds 6; dropout adds one a
    branch. (planning/activations.py counts bytes.)
    """
    if combines(type(scheme)):
        return 1
    crossed = side is Side.DECODER and scheme.depths.encoder > 0
    kept = shape.ffn_dim / shape.embed_dim + (17 if crossed else 10)
    return thriftiest_segment(scheme.depths.of(side), kept)
