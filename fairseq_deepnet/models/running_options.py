"""Options for activation checkpointing, compilation and precision."""

from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.models import BaseFairseqModel

from ..errors import ConfigurationError
from ..footprint.activations import auto_segment
from ..modules.layers import LayerShape
from ..modules.stack import ActivationCheckpointing
from ..schemes import ResidualScheme, Side

AUTO = "auto"
FP32_FROM = 18
"""Smallest depth of the deeper stack at which --residual-dtype auto selects float32."""
RESIDUAL_DTYPES = (AUTO, "float32", "model")


def add_running_arguments(parser: ArgumentParser) -> None:
    """Add this module's options."""
    parser.add_argument(
        "--checkpoint-activations-every",
        dest="checkpoint_every",  # its name in checkpoints
        metavar="LAYERS",
        help="activation checkpointing in segments of LAYERS layers: store each segment's input and"
        " recompute the other activations in the backward pass. auto selects the length that"
        " needs the least memory; --checkpoint-activations is the same as 1",
    )
    parser.add_argument(
        "--residual-dtype",
        metavar="{auto,float32,model}",
        help="dtype of the residual stream in half precision: the model's, or float32, so that"
        " rounding errors do not accumulate in deep stacks. auto (default) selects float32 if a"
        f" stack has {FP32_FROM} or more layers (docs/reports/half-precision.md)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="train with torch.compile, with one compilation for all layers of a stack. This takes"
        " half a minute or more before the first update, changes dropout masks, and is slower on a"
        " CPU",
    )
    parser.add_argument(
        "--varlen-attention",
        action="store_true",
        help="train without padding, with torch's varlen_attn. This needs a GPU (Ampere or later),"
        " --bf16 or --fp16, and no --attention-dropout, and is slower while the GPU waits for"
        " Python (docs/reports/speed.md)",
    )


def check_running(args: Namespace, scheme: type[ResidualScheme]) -> None:
    """Raise ConfigurationError if an option of this module is invalid."""
    dtype = getattr(args, "residual_dtype", None)
    if dtype not in (None, *RESIDUAL_DTYPES):
        raise ConfigurationError(
            f"--residual-dtype {dtype} is unknown; choose {', '.join(RESIDUAL_DTYPES)}"
        )
    if getattr(args, "varlen_attention", False):
        for name in ("attention_dropout", "compile", "cpu"):
            if getattr(args, name, False):
                option = f"--{name.replace('_', '-')}"
                raise ConfigurationError(f"--varlen-attention contradicts {option}; leave one out")
    every = getattr(args, "checkpoint_every", None)
    if every not in (None, AUTO) and not (str(every).isdigit() and int(every) > 0):
        raise ConfigurationError(
            f"--checkpoint-activations-every {every}: give a number of layers or {AUTO}; leave it"
            " out to keep all activations"
        )
    if every in (None, AUTO) or int(every) == 1:
        return
    # fairseq sets checkpoint_activations if offload_activations is set
    if getattr(args, "checkpoint_activations", False) and not args.offload_activations:
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
    """Return a stack's activation-checkpointing settings, as defined by the options."""
    every = getattr(cfg, "checkpoint_every", None)
    if every == AUTO:
        length = auto_segment(side, scheme, shape, scheme.depths.of(side))
    elif every is None:
        length = int(bool(cfg.checkpoint_activations or cfg.offload_activations))
    else:
        length = int(every)
    return ActivationCheckpointing(length, offload=bool(cfg.offload_activations))


def streams_in_fp32(cfg: Any, scheme: ResidualScheme) -> bool:
    """Return True if the residual stream of a half-precision model is in fp32."""
    dtype = getattr(cfg, "residual_dtype", None) or AUTO
    depth = max(scheme.depths.encoder, scheme.depths.decoder)
    return dtype == "float32" or (dtype == AUTO and depth >= FP32_FROM)


class HonoursBf16(BaseFairseqModel):
    """Mixin that applies --bf16 in generation, where fairseq's commands ignore the option."""

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare a loaded model for inference; `cfg` is the command's configuration."""
        if cfg.common.bf16:
            self.to(dtype=torch.bfloat16)
        super().prepare_for_inference_(cfg)
