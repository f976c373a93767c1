"""What a machine adds to a config: devices, their share of the global batch, precision."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

PRECISIONS: Final = ("auto", "bf16", "fp16", "fp32")


@dataclasses.dataclass(frozen=True)
class Devices:
    """The processes that share one update.

    Arguments:
        gpus: GPUs on each node; 0 trains on the CPU
        cpu_processes: data-parallel processes where there are no GPUs
        nodes: machines that take part, each with the same number of devices
    """

    gpus: int
    cpu_processes: int = 1
    nodes: int = 1

    @property
    def total(self) -> int:
        """Processes in all; each holds one model and one part of the batch."""
        return (self.gpus or self.cpu_processes) * self.nodes

    def __str__(self) -> str:
        if self.gpus:
            return f"{self.total} GPU{'s' if self.total > 1 else ''}"
        return f"{self.total} CPU process{'es' if self.total > 1 else ''}"


def choose_devices(wanted: str, cpu_processes: int, nodes: int, visible: int) -> Devices:
    """The devices to train on; `wanted` is a number of GPUs, or "all" for those that are visible.

    Raises ValueError for more GPUs than there are, and for numbers that make no sense.
    """
    if cpu_processes < 1:
        raise ValueError(f"CPU_PROCESSES={cpu_processes}: at least 1 is needed")
    if nodes != 1:
        raise ValueError(f"NODES={nodes}: only a single node is supported")
    if wanted == "all":
        return Devices(visible, 1 if visible else cpu_processes, nodes)
    if not wanted.isdecimal():
        raise ValueError(f"GPUS={wanted}: a number is expected; 0 trains on the CPU")
    gpus = int(wanted)
    if gpus > visible:
        raise ValueError(
            f"GPUS={gpus}, but {visible} visible; set GPUS={visible}"
            + ("" if visible else " to train on the CPU")
        )
    return Devices(gpus, 1 if gpus else cpu_processes, nodes)


def device_arguments(devices: Devices, port: int) -> list[str]:
    """fairseq-train's options for these devices, except the rank of a CPU process.

    fairseq starts one process a GPU by itself. CPU processes are started by the caller, each with
    its own `--distributed-rank`; pytorch_ddp does not start on CPU, legacy_ddp with gloo does.
    """
    if devices.total == 1:
        return ["--distributed-world-size", "1"] if devices.gpus else ["--cpu"]
    # otherwise rank 0 sends the others what it read, with classes that torch refuses to unpickle
    alone = ["--load-checkpoint-on-all-dp-ranks"]
    if devices.gpus:
        return ["--distributed-world-size", str(devices.total), *alone]
    arguments = ["--cpu", *alone, "--ddp-backend", "legacy_ddp", "--distributed-backend", "gloo"]
    arguments += ["--distributed-no-spawn", "--device-id", "0"]
    arguments += ["--distributed-world-size", str(devices.total)]
    arguments += ["--distributed-init-method", f"tcp://127.0.0.1:{port}"]
    return arguments


def parse_tokens(value: object) -> int:
    """524288 or "128 x 4096" -> a number of tokens."""
    factors = re.split(r"\s*[x*×]\s*", str(value).strip())
    if not all(factor.isdecimal() and int(factor) > 0 for factor in factors):
        raise ValueError(
            f"recipe.global-batch-tokens: {value!r} is neither a number nor like 128 x 4096"
        )
    product = 1
    for factor in factors:
        product *= int(factor)
    return product


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
        """Whether that is the recipe's batch."""
        return self.tokens == self.wanted

    def __str__(self) -> str:
        parts = f"{self.max_tokens:,} tokens x {self.devices} x update-freq {self.update_freq}"
        text = f"{self.tokens:,} tokens an update = {parts}"
        if not self.is_exact:
            off = 100 * (self.tokens - self.wanted) / self.wanted
            text += f" (rounded: the recipe wants {self.wanted:,}, {off:+.1f} %)"
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


def precision_arguments(precision: str, has_gpus: bool) -> list[str]:
    """fairseq-train's option for a precision; "auto" on GPUs is bf16 where that works, else fp16.

    Raises ValueError for half precision on the CPU and for a name that is not known.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"PRECISION={precision}: choose from {', '.join(PRECISIONS)}")
    if precision == "fp32" or (precision == "auto" and not has_gpus):
        return []
    if not has_gpus:
        raise ValueError(f"PRECISION={precision} needs a GPU; the CPU trains in fp32")
    if precision == "auto":
        precision = "bf16" if _bf16_works() else "fp16"
    return [f"--{precision}"]


def _bf16_works() -> bool:
    import torch

    from fairseq_deepnet import fairseq_options

    # fairseq's parser takes --bf16 to mean a TPU, unless that is mended: the GPU would lie idle
    means_tpu = fairseq_options.parse_training(["DATA", "--arch", "transformer", "--bf16"]).tpu
    return torch.cuda.is_bf16_supported() and not means_tpu
