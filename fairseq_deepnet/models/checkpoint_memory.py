"""`--checkpoint-memory`: as few layers checkpointed as the memory at hand allows."""

import logging
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import ConfigurationError
from ..footprint import Training, fit, micro_batch
from ..footprint.memory import GIB
from ..modules import ActivationCheckpointing
from ..schemes import Side
from .account import read_model, read_training
from .running_options import AUTO

FREE_SHARE = 0.9
"""Share of a GPU's free memory that `auto` plans with, and `deepnet plan` with a device's: batches
differ in shape, which costs torch's allocator memory, and fairseq leaves a batch out that memory
does not suffice for."""

logger = logging.getLogger(__name__)


def add_memory_argument(parser: ArgumentParser) -> None:
    """Add the option of models whose memory is known beforehand."""
    parser.add_argument(
        "--checkpoint-memory",
        metavar="GIB",
        help="activation checkpointing of as few layers as fit with weights, gradients and the"
        " optimiser's state into so much memory of a device, on a CPU of one process, with full"
        f" batches (`deepnet plan` shows the estimate); {AUTO}: {100 * FREE_SHARE:.0f} %% of what a"
        f" GPU has free as training begins, on a CPU what"
        f" --checkpoint-activations-every {AUTO} does; --checkpoint-activations-every says how long"
        " segments are",
    )


def check_memory(args: Namespace) -> None:
    """Raise ConfigurationError for a --checkpoint-memory that means nothing or cannot be kept."""
    wanted = getattr(args, "checkpoint_memory", None)
    if wanted is None:
        return
    if wanted != AUTO:
        try:
            known = 0 < float(wanted) < float("inf")
        except ValueError:
            known = False
        if not known:
            raise ConfigurationError(
                f"--checkpoint-memory {wanted}: give GiB of a device's memory, or {AUTO}"
            )
    training_of(args, on_gpu=False)


def training_of(args: Namespace, on_gpu: bool) -> Training:
    """Return the training to estimate the memory of; ConfigurationError where there is none."""
    try:
        training = read_training(args, int(args.distributed_world_size) if on_gpu else 0)
    except ValueError as error:
        raise ConfigurationError(
            f"--checkpoint-memory cannot be kept: {error}; use --checkpoint-activations-every"
            f" {AUTO} instead"
        ) from error
    if not training.bounded:
        raise ConfigurationError(
            "--checkpoint-memory needs --max-tokens, which says how large a batch may be; add it,"
            f" or use --checkpoint-activations-every {AUTO}"
        )
    return training


def memory_of(args: Namespace, free_gib: Callable[[], float] | None) -> float | None:
    """Return the GiB that --checkpoint-memory lets a training take; None where it is not known.

    Args:
        free_gib: what is free on the device; None on a CPU.
    """
    wanted = getattr(args, "checkpoint_memory", None)
    if wanted in (None, AUTO):
        return FREE_SHARE * free_gib() if wanted and free_gib else None
    return float(wanted)


def free_on_gpu() -> float:
    """Return the GiB of the current GPU for a training: what is free, and what torch holds."""
    return float((torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()) / GIB)


def settle_checkpointing(model: nn.Module, args: Namespace, stacks: dict[Side, Any]) -> None:
    """See to it that the model chooses what backward keeps of its stacks, once it is trained."""
    asked = any(stack.checkpointing.every for stack in stacks.values())
    if asked or getattr(args, "checkpoint_memory", None) is not None:
        model.register_forward_pre_hook(FirstTrainingPass(args, stacks))


class FirstTrainingPass:
    """A forward pre-hook: settles checkpointing before the first pass that gradients are wanted of.

    Not when the model is built, which is also done to generate, export or average: there memory
    for training is nothing to warn of, and no GPU may be asked.
    """

    def __init__(self, args: Namespace, stacks: dict[Side, Any]) -> None:
        self.args, self.stacks, self.is_done = args, stacks, False

    def __call__(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.is_done or not (model.training and torch.is_grad_enabled()):
            return
        self.is_done = True
        on_gpu = next(model.parameters()).is_cuda
        memory = memory_of(self.args, free_on_gpu if on_gpu else None)
        if memory is None:
            log_checkpointing(self.stacks)
        else:
            choose(self.args, self.stacks, on_gpu, memory)


def choose(args: Namespace, stacks: dict[Side, Any], on_gpu: bool, memory: float) -> None:
    """Recompute as few layers of an encoder-decoder as fit into so many GiB, and log it."""
    training = training_of(args, on_gpu)
    source, target = (len(stacks[side].dictionary) for side in Side)
    try:
        model = read_model(args, (source, target))
    except ValueError as error:
        raise ConfigurationError(f"--checkpoint-memory: {error}") from error
    model, needed = fit(model, training, micro_batch(training), memory)
    for side, stack in stacks.items():
        stack.checkpointing = model.checkpointing[side]
    at = f"at {training.max_tokens:,} tokens"
    # rounded away from what is allowed, so that no line contradicts the next
    about = (math.ceil if needed > memory else math.floor)(100 * needed) / 100
    log_checkpointing(stacks, f" (needs about {about:.2f} of {memory:.5g} GiB {at})")
    if needed > memory:
        logger.warning(
            "--checkpoint-memory %s is too little: with all layers checkpointed about %.2f GiB"
            " are needed %s; a smaller --max-tokens needs less, and `deepnet plan` finds what fits",
            args.checkpoint_memory,
            about,
            at,
        )


def log_checkpointing(stacks: dict[Side, Any], needs: str = "") -> None:
    """Log what is kept of each stack, if anything was asked for."""
    kept: dict[Side, ActivationCheckpointing] = {s: k.checkpointing for s, k in stacks.items()}
    if not needs and not any(checkpointing.every for checkpointing in kept.values()):
        return
    each = (
        f"{side.value}: {checkpointing.describe(len(stacks[side].layers))}"
        for side, checkpointing in kept.items()
    )
    logger.info("activation checkpointing: %s%s", "; ".join(each), needs)
