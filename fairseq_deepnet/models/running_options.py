"""How a model is run: what backward keeps of its layers, whether they are compiled, in what type it
generates.
"""

from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.models import BaseFairseqModel

from ..errors import ConfigurationError
from ..footprint import auto_segment
from ..modules import ActivationCheckpointing, LayerShape
from ..schemes import ResidualScheme, Side

AUTO = "auto"


def add_running_arguments(parser: ArgumentParser) -> None:
    """Add the options that each of our models has."""
    parser.add_argument(
        "--checkpoint-activations-every",
        dest="checkpoint_every",  # as checkpoints hold it
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
    """Raise ConfigurationError for a --checkpoint-activations-every that means nothing."""
    every = getattr(args, "checkpoint_every", None)
    if every not in (None, AUTO) and not (str(every).isdigit() and int(every) > 0):
        raise ConfigurationError(
            f"--checkpoint-activations-every {every}: give a number of layers, or {AUTO}; leave it"
            " out to keep all activations"
        )
    if every in (None, AUTO) or int(every) == 1:
        return
    if getattr(args, "checkpoint_activations", False):
        raise ConfigurationError(
            f"--checkpoint-activations-every {every} contradicts --checkpoint-activations, which is"
            " --checkpoint-activations-every 1; leave one of them out"
        )
    if scheme.combines:
        raise ConfigurationError(
            f"--checkpoint-activations-every {every} contradicts --residual-scheme {scheme.name},"
            " which reads every layer's output, so that no segment can be longer than one; use"
            " --checkpoint-activations-every 1"
        )


def checkpointing_of(
    cfg: Any, side: Side, scheme: ResidualScheme, shape: LayerShape
) -> ActivationCheckpointing:
    """Return what backward keeps of a stack's activations, but for --checkpoint-memory."""
    every = segment_of(cfg) or 0
    if not every and any(getattr(cfg, f"checkpoint_{name}", None) for name in ("every", "memory")):
        every = auto_segment(side, scheme, shape, scheme.depths.of(side))
    return ActivationCheckpointing(every, offload=bool(cfg.offload_activations))


def segment_of(cfg: Any) -> int | None:
    """Return how many layers are to be checkpointed together; None where nothing says it."""
    every = getattr(cfg, "checkpoint_every", None)
    if every is None and (cfg.checkpoint_activations or cfg.offload_activations):
        return 1
    return None if every in (None, AUTO) else int(every)


class HonoursBf16(BaseFairseqModel):
    """Heeds --bf16 when it will only generate: fairseq's commands take the option and forget it."""

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare as fairseq asks after loading; cfg is the whole configuration of the command."""
        if cfg.common.bf16:
            self.to(dtype=torch.bfloat16)
        super().prepare_for_inference_(cfg)
