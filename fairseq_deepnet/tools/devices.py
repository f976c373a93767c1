"""This machine's cores and GPUs: their number and memory."""

from __future__ import annotations

import dataclasses
import os
from typing import Final

DEVICE_GIB: Final = 80
"""Memory of a GPU, where nothing says it."""


def all_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_of(processes: int, cores: int) -> int:
    """Return the threads of each process: OMP_NUM_THREADS where it is set, as a sweep does for its
    cells at work, otherwise its share of the cores.
    """
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else max(1, cores // processes)


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

    Args:
        wanted: a number of GPUs per node, or "all" for those that are visible
        cpu_processes: processes per node where there are no GPUs
        nodes: machines
        visible: GPUs of this machine
        elsewhere: the training is for another machine, so that `wanted` is not compared with it
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


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    return gpu_names(torch.cuda.device_count())


def gpu_names(count: int) -> list[str]:
    """Return the first visible GPUs' names: those in CUDA_VISIBLE_DEVICES, or numbers."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in named.split(",")] if named else []
    return names[:count] if len(names) >= count else list(map(str, range(count)))


def use_gpu(number: int | None) -> None:
    """Let this process see one GPU, or none; before torch first touches a device."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if number is None else gpu_names(number + 1)[number]


def gpu_gib(gpus: int) -> float | None:
    """Return the memory of the smallest of so many GPUs; None where this machine has none."""
    import torch

    if not torch.cuda.is_available():
        return None
    sizes = (torch.cuda.get_device_properties(i).total_memory for i in range(gpus))
    return float(min(sizes) / 2**30)


def machine_gib() -> float:
    """Return the memory of this machine, on which the CPU trains."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
