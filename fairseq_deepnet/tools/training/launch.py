"""What a machine adds to a config: devices, their share of the global batch, precision."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Final

PRECISIONS: Final = ("auto", "bf16", "fp16", "fp32")
SMALL_SHARE: Final = 512
"""Tokens; sentences are rarely longer."""


@dataclasses.dataclass(frozen=True)
class Devices:
    """The processes that share one update."""

    gpus: int  # GPUs on each node; 0 trains on the CPU
    cpu_processes: int = 1  # data-parallel processes where there are no GPUs
    nodes: int = 1  # machines that take part, each with the same number of devices

    @property
    def total(self) -> int:
        """Processes in all; each holds one model and one part of the batch."""
        return (self.gpus or self.cpu_processes) * self.nodes

    def __str__(self) -> str:
        kind, more = ("GPU", "s") if self.gpus else ("CPU process", "es")
        text = f"{self.total} {kind}{more if self.total > 1 else ''}"
        each = self.total // self.nodes
        return text if self.nodes == 1 else f"{text} ({self.nodes} nodes of {each})"


def choose_devices(
    wanted: str, cpu_processes: int, nodes: int, visible: int, elsewhere: bool = False
) -> Devices:
    """Return the devices to train on.

    Arguments:
        wanted: a number of GPUs a node, or "all" for those that are visible
        cpu_processes: processes a node where there are no GPUs
        nodes: machines
        visible: GPUs of this machine
        elsewhere: the training is for another machine, so `wanted` is taken as said

    Raises ValueError for more GPUs than there are, and for numbers that make no sense.
    """
    if cpu_processes < 1:
        raise ValueError(f"CPU_PROCESSES={cpu_processes}: at least 1 is needed")
    if nodes < 1:
        raise ValueError(f"NODES={nodes}: at least 1 is needed")
    if wanted == "all":
        return Devices(visible, 1 if visible else cpu_processes, nodes)
    if not wanted.isdecimal():
        raise ValueError(f"GPUS={wanted}: a number is expected; 0 trains on the CPU")
    gpus = int(wanted)
    if gpus > visible and not elsewhere:
        raise ValueError(
            f"GPUS={gpus}, but {visible} visible; set GPUS={visible}"
            + ("" if visible else " to train on the CPU")
        )
    return Devices(gpus, 1 if gpus else cpu_processes, nodes)


def parse_tokens(value: object) -> int:
    """Return the tokens of 524288 or "128 x 4096"."""
    factors = re.split(r"\s*[x*×]\s*", str(value).strip())
    if not all(factor.isdecimal() and int(factor) > 0 for factor in factors):
        raise ValueError(
            f"recipe.global-batch-tokens: {value!r} is neither a number nor like 128 x 4096"
        )
    return math.prod(map(int, factors))


@dataclasses.dataclass(frozen=True)
class Batch:
    """One update: `devices` x `max_tokens` x `update_freq` tokens at most."""

    max_tokens: int
    update_freq: int
    devices: int
    wanted: int

    @property
    def tokens(self) -> int:
        """Tokens of one update over all devices."""
        return self.max_tokens * self.update_freq * self.devices

    @property
    def is_exact(self) -> bool:
        """True if that is the recipe's batch."""
        return self.tokens == self.wanted

    def __str__(self) -> str:
        parts = f"{self.max_tokens:,} tokens x {self.devices} x update-freq {self.update_freq}"
        text = f"{self.tokens:,} tokens an update = {parts}"
        if not self.is_exact:
            off = 100 * (self.tokens - self.wanted) / self.wanted
            text += f" (rounded: the recipe wants {self.wanted:,}, {off:+.1f} %)"
        if self.update_freq == 1 and self.max_tokens < SMALL_SHARE:
            text += "; a sentence longer than a device's share would stop the training"
        return text


def split_batch(wanted: int, max_tokens: int, devices: int) -> Batch:
    """Share `wanted` tokens an update out over devices that hold `max_tokens` at a time.

    Where one step of all devices is more than is wanted, each takes an equal, smaller share.
    Otherwise update-freq is the nearest whole number, and `is_exact` tells whether it fits.
    """
    if wanted < devices:
        raise ValueError(f"{wanted} tokens cannot be shared out over {devices} devices")
    if max_tokens * devices > wanted:
        return Batch(wanted // devices, 1, devices, wanted)
    update_freq = max(1, round(wanted / (max_tokens * devices)))
    return Batch(max_tokens, update_freq, devices, wanted)


def precision_arguments(precision: str, has_gpus: bool, elsewhere: bool = False) -> list[str]:
    """Return fairseq-train's option for a precision; "auto" on GPUs is bf16 or else fp16.

    GPUs `elsewhere` than on this machine are taken to know bf16, as all since 2020 do.

    Raises ValueError for fp16 on the CPU and for a name that is not known.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"PRECISION={precision}: choose from {', '.join(PRECISIONS)}")
    if precision == "fp32" or (precision == "auto" and not has_gpus):
        return []
    if precision == "fp16" and not has_gpus:
        raise ValueError("PRECISION=fp16 needs a GPU; the CPU trains in fp32 or bf16")
    if precision == "auto":
        precision = "bf16" if elsewhere or _bf16_works() else "fp16"
    return [f"--{precision}"]


def _bf16_works() -> bool:
    import torch

    from fairseq_deepnet.tools import fairseq_options

    # fairseq's parser takes --bf16 to mean a TPU, unless that is mended: the GPU would lie idle
    means_tpu = fairseq_options.parse_training(["DATA", "--arch", "transformer", "--bf16"]).tpu
    return torch.cuda.is_bf16_supported() and not means_tpu
