"""Cores, GPUs and memory of this machine."""

import dataclasses
import os
from typing import Final

DEVICE_GIB: Final = 79
"""Memory of a GPU if none is specified."""


def all_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_of(processes: int, cores: int) -> int:
    """Return the number of threads per process: OMP_NUM_THREADS, or else `cores / processes`."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else max(1, cores // processes)


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices that compute each update together."""

    gpus: int  # number of GPUs per node; 0 to train on the CPU
    cpu_processes: int = 1  # number of processes per node if there are no GPUs
    nodes: int = 1  # number of machines, each with the same number of devices

    @property
    def total(self) -> int:
        """Number of processes, each of which computes a share of the batch."""
        return (self.gpus or self.cpu_processes) * self.nodes

    def __str__(self) -> str:
        kind, plural = ("GPU", "s") if self.gpus else ("CPU process", "es")
        text = f"{self.total} {kind}{plural if self.total > 1 else ''}"
        each = self.total // self.nodes
        return text if self.nodes == 1 else f"{text} ({self.nodes} nodes of {each})"


def choose_devices(
    gpus: str, cpu_processes: int, nodes: int, visible: int, elsewhere: bool = False
) -> Devices:
    """Return the devices to train on, given the fields of `Devices`.

    Args:
        gpus: number of GPUs per node, or "all" for all visible GPUs
        visible: number of GPUs in this machine
        elsewhere: True if the run may use another machine, as in a dry run; `gpus` may then exceed
            `visible`
    """
    if min(cpu_processes, nodes) < 1:
        raise ValueError(f"NODES={nodes}, CPU_PROCESSES={cpu_processes}: at least 1 is needed")
    if gpus != "all" and not gpus.isdecimal():
        raise ValueError(f"GPUS={gpus}: a number is expected; 0 trains on the CPU")
    number = visible if gpus == "all" else int(gpus)
    if number > visible and not elsewhere:
        raise ValueError(f"GPUS={number}, but only {visible} visible; 0 trains on the CPU")
    return Devices(number, 1 if number else cpu_processes, nodes)


def visible_gpus() -> list[str]:
    """Return the names of the visible GPUs, as CUDA_VISIBLE_DEVICES would list them."""
    import torch

    return [_gpu_name(number) for number in range(torch.cuda.device_count())]


def _gpu_name(number: int) -> str:
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return names[number].strip() if names[0] and number < len(names) else str(number)


def use_gpu(number: int | None) -> None:
    """Hide all GPUs except `number` (all if None); call this before the process uses a GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if number is None else _gpu_name(number)


def machine_gib() -> float:
    """Return this machine's main memory in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
