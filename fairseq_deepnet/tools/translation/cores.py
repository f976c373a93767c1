"""How many cores a translation uses."""

from __future__ import annotations

import os


def all_cores() -> int:
    """As many as this process may use."""
    return len(os.sched_getaffinity(0))


def threads_of(processes: int, cores: int) -> int:
    """Threads of each process: OMP_NUM_THREADS where it is set, as a sweep does for its cells at
    work, otherwise its share of the cores.
    """
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else max(1, cores // processes)
