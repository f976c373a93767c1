"""`--checkpoint-memory`: as few layers checkpointed as the memory at hand allows."""

import dataclasses
import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

import torch

from ..errors import ConfigurationError
from ..footprint import Training, fit, micro_batch
from ..footprint.memory import GIB
from ..modules import ActivationCheckpointing
from ..schemes import Side
from .account import read_model, read_training
from .running_options import AUTO

FREE_SHARE = 0.9
"""Share of a GPU's free memory that `auto` plans with: batches differ in shape, which costs torch's
allocator memory, and fairseq leaves a batch out that memory does not suffice for."""

logger = logging.getLogger(__name__)


def add_memory_argument(parser: ArgumentParser) -> None:
    """The option of models whose memory is known beforehand."""
    parser.add_argument(
        "--checkpoint-memory",
        metavar="GIB",
        help="activation checkpointing of as few layers as fit with weights, gradients and the"
        " optimiser's state into so much memory of a device, with full batches (`deepnet plan`"
        f" shows the estimate); {AUTO}: {100 * FREE_SHARE:.0f} %% of what is free on the GPU, on a"
        f" CPU what --checkpoint-every {AUTO} does. --checkpoint-every says how long segments"
        " are",
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
    training_of(args)


def training_of(args: Namespace) -> Training:
    """The training that an estimate of memory is for; ConfigurationError where there is none."""
    if not getattr(args, "max_tokens", None):
        raise ConfigurationError(
            "--checkpoint-memory needs --max-tokens, which says how large a batch may be; add it,"
            f" or use --checkpoint-every {AUTO}"
        )
    try:
        training = read_training(args, devices_of(args))
    except ValueError as error:
        raise ConfigurationError(
            f"--checkpoint-memory cannot be kept: {error}; use --checkpoint-every {AUTO} instead"
        ) from error
    # --batch-size bounds sentences, whose length is not known
    return dataclasses.replace(training, max_tokens=args.max_tokens)


def devices_of(args: Namespace) -> int:
    """GPUs of a training in all; 0 on the CPU."""
    if getattr(args, "cpu", False) or not torch.cuda.is_available():
        return 0
    return int(getattr(args, "distributed_world_size", 1))


def memory_of(args: Namespace, free_gib: Callable[[], float] | None) -> float | None:
    """GiB that --checkpoint-memory lets a training take of a device; None where it is not known.

    Args:
        free_gib: what is free on the device; None on a CPU.
    """
    wanted = getattr(args, "checkpoint_memory", None)
    if wanted in (None, AUTO):
        return FREE_SHARE * free_gib() if wanted and free_gib else None
    return float(wanted)


def free_on_gpu() -> float:
    """GiB that the current GPU has free."""
    return float(torch.cuda.mem_get_info()[0] / GIB)


def settle_checkpointing(args: Namespace, stacks: dict[Side, Any]) -> None:
    """Choose what backward keeps of an encoder-decoder that is built, and tell the log."""
    memory = memory_of(args, free_on_gpu if devices_of(args) else None)
    if memory is None or next(stacks[Side.ENCODER].parameters()).is_meta:
        say_checkpointing(stacks)
        return
    training = training_of(args)
    words = tuple(len(stacks[side].dictionary) for side in Side)
    try:
        model = read_model(args, (words[0], words[1]))
    except ValueError as error:
        raise ConfigurationError(f"--checkpoint-memory: {error}") from error
    model, needed = fit(model, training, micro_batch(training), memory)
    for side, stack in stacks.items():
        stack.checkpointing = model.checkpointing[side]
    at = f"at {training.max_tokens:,} tokens"
    say_checkpointing(stacks, f" (needs about {needed:.1f} of {memory:.1f} GiB {at})")
    if needed > memory:
        logger.warning(
            "--checkpoint-memory %.1f is too little: with all layers checkpointed about %.1f GiB"
            " are needed %s; a smaller --max-tokens needs less, and `deepnet plan` finds what fits",
            memory,
            needed,
            at,
        )


def say_checkpointing(stacks: dict[Side, Any], needs: str = "") -> None:
    """Tell the log what is kept of each stack, if anything was asked for."""
    kept: dict[Side, ActivationCheckpointing] = {s: k.checkpointing for s, k in stacks.items()}
    if not needs and not any(checkpointing.every for checkpointing in kept.values()):
        return
    each = (
        f"{side.value}: {checkpointing.describe(len(stacks[side].layers))}"
        for side, checkpointing in kept.items()
    )
    logger.info("activation checkpointing: %s%s", "; ".join(each), needs)
