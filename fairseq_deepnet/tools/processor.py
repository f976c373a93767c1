"""This machine's processor: its cores, their share of a process, and what bf16 gains on it."""

from __future__ import annotations

import os
import time
from typing import Final

WORTH: Final = 1.2
"""Times the speed of fp32 from which bf16's products pay for the rounding and the conversions."""


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


def bf16_gain(width: int = 512, rounds: int = 3) -> float:
    """Return how many times as fast as in fp32 matrices are multiplied in bf16 on this CPU.

    A processor with AMX has 7 to 10, one with AVX512-BF16 alone 0.55. Takes some hundredths of a
    second; the types take turns and the best round of each counts, so that other work on the
    machine weighs on both.

    Args:
        width: of the square matrices.
        rounds: that are timed, after one that is not.
    """
    import torch

    best: dict[torch.dtype, float] = {}
    matrices = {
        dtype: torch.ones(width, width, dtype=dtype) for dtype in (torch.float, torch.bfloat16)
    }
    for number in range(rounds + 1):
        for dtype, matrix in matrices.items():
            start = time.perf_counter()
            matrix @ matrix
            spent = time.perf_counter() - start
            if number:
                best[dtype] = min(spent, best.get(dtype, spent))
    return best[torch.float] / best[torch.bfloat16]


def bf16_remark() -> str | None:
    """Return a warning for those who ask for bf16 on a CPU that gains nothing from it."""
    gain = bf16_gain()
    if gain >= WORTH:
        return None
    return (
        f"warning: bf16 gains nothing on this processor, whose products in it run at {gain:.2f}"
        " times the speed of fp32 (on one with AMX at 5 to 10 times); leave it out"
    )
