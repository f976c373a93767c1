"""Number of cores, and number and memory of GPUs of this machine."""

from __future__ import annotations

import dataclasses
import os
from typing import Final

DEVICE_GIB: Final = 80
"""Default memory of a GPU."""


def all_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_of(processes: int, cores: int) -> int:
    """Return the threads of each process: OMP_NUM_THREADS if set, otherwise its share of the cores.

    A sweep sets OMP_NUM_THREADS for its cells.
    """
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else max(1, cores // processes)


@dataclasses.dataclass(frozen=True)
class Devices:
    """The processes that compute one update together."""

    gpus: int  # GPUs of each node; 0 trains on the CPU
    cpu_processes: int = 1  # data-parallel processes if there are no GPUs
    nodes: int = 1  # machines, each with the same number of devices

    @property
    def total(self) -> int:
        """Number of processes; each has one model and one part of the batch."""
        return (self.gpus or self.cpu_processes) * self.nodes

    def __str__(self) -> str:
        kind, plural = ("GPU", "s") if self.gpus else ("CPU process", "es")
        text = f"{self.total} {kind}{plural if self.total > 1 else ''}"
        each = self.total // self.nodes
        return text if self.nodes == 1 else f"{text} ({self.nodes} nodes of {each})"


def choose_devices(
    wanted: str, cpu_processes: int, nodes: int, visible: int, elsewhere: bool = False
) -> Devices:
    """Return the devices to train on.

    Args:
        wanted: a number of GPUs per node, or "all" for all visible GPUs
        cpu_processes: processes per node without GPUs
        nodes: number of nodes
        visible: GPUs of this machine
        elsewhere: the devices belong to another machine, so `wanted` may exceed `visible`
    """
    if min(cpu_processes, nodes) < 1:
        raise ValueError(f"NODES={nodes}, CPU_PROCESSES={cpu_processes}: at least 1 is needed")
    if wanted != "all" and not wanted.isdecimal():
        raise ValueError(f"GPUS={wanted}: a number is expected; 0 trains on the CPU")
    gpus = visible if wanted == "all" else int(wanted)
    if gpus > visible and not elsewhere:
        raise ValueError(f"GPUS={gpus}, but only {visible} visible; 0 trains on the CPU")
    return Devices(gpus, 1 if gpus else cpu_processes, nodes)


def visible_gpus() -> list[str]:
    """Return the names of this machine's GPUs in CUDA_VISIBLE_DEVICES."""
    import torch

    return [_gpu_name(number) for number in range(torch.cuda.device_count())]


def _gpu_name(number: int) -> str:
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return names[number].strip() if names[0] and number < len(names) else str(number)


def use_gpu(number: int | None) -> None:
    """Make one GPU or none visible to this process, before torch first uses a device."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if number is None else _gpu_name(number)


def machine_gib() -> float:
    """Return the memory of this machine, which training on the CPU uses."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
