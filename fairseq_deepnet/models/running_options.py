"""Options that do not change a model's function: checkpointing, compilation, precision."""

from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.models import BaseFairseqModel

from ..errors import ConfigurationError
from ..footprint.activations import auto_segment
from ..modules import ActivationCheckpointing, LayerShape
from ..schemes import ResidualScheme, Side

AUTO = "auto"
FP32_FROM = 18
"""Layers of the deeper stack from which --residual-dtype auto means float32."""
RESIDUAL_DTYPES = (AUTO, "float32", "model")


def add_running_arguments(parser: ArgumentParser) -> None:
    """Add the options that all our models share."""
    parser.add_argument(
        "--checkpoint-activations-every",
        dest="checkpoint_every",  # as checkpoints hold it
        metavar="LAYERS",
        help="activation checkpointing in segments of LAYERS layers: keep the input of each segment"
        " and recompute the rest in backward; auto: the length that needs the least memory."
        " --checkpoint-activations is the same as 1",
    )
    parser.add_argument(
        "--residual-dtype",
        metavar="{auto,float32,model}",
        help="dtype of the residual stream between sublayers in half precision: that of the model,"
        " or float32, in which the rounding errors of deep stacks do not add up; auto (default):"
        f" float32 from {FP32_FROM} layers in a stack (docs/reports/half-precision.md)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="train with torch.compile, one compilation for all layers of a stack. Takes half a"
        " minute or more before the first update and changes dropout masks; slower on a CPU",
    )


def check_running(args: Namespace, scheme: type[ResidualScheme]) -> None:
    """Raise ConfigurationError for invalid options of this module."""
    dtype = getattr(args, "residual_dtype", None)
    if dtype not in (None, *RESIDUAL_DTYPES):
        raise ConfigurationError(
            f"--residual-dtype {dtype} is unknown; choose {', '.join(RESIDUAL_DTYPES)}"
        )
    every = getattr(args, "checkpoint_every", None)
    if every not in (None, AUTO) and not (str(every).isdigit() and int(every) > 0):
        raise ConfigurationError(
            f"--checkpoint-activations-every {every}: give a number of layers or {AUTO}; leave it"
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
            " which reads every layer's output and allows only segments of one layer; use"
            " --checkpoint-activations-every 1"
        )


def checkpointing_of(
    cfg: Any, side: Side, scheme: ResidualScheme, shape: LayerShape
) -> ActivationCheckpointing:
    """Return the activation checkpointing that the options ask for in a stack."""
    every = getattr(cfg, "checkpoint_every", None)
    if every == AUTO:
        length = auto_segment(side, scheme, shape, scheme.depths.of(side))
    elif every is None:
        length = int(bool(cfg.checkpoint_activations or cfg.offload_activations))
    else:
        length = int(every)
    return ActivationCheckpointing(length, offload=bool(cfg.offload_activations))


def streams_in_fp32(cfg: Any, scheme: ResidualScheme) -> bool:
    """Return True if the residual stream of a model in half precision is in fp32."""
    dtype = getattr(cfg, "residual_dtype", None) or AUTO
    depth = max(scheme.depths.encoder, scheme.depths.decoder)
    return dtype == "float32" or (dtype == AUTO and depth >= FP32_FROM)


class HonoursBf16(BaseFairseqModel):
    """Applies --bf16 in generation, where fairseq's commands accept the option and ignore it."""

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare a loaded model for inference; cfg is the configuration of the whole command."""
        if cfg.common.bf16:
            self.to(dtype=torch.bfloat16)
        super().prepare_for_inference_(cfg)
