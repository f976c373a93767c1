"""Resident memory of this process."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def resident() -> int:
    """Return the current bytes in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def most_resident() -> int:
    """Return the peak of bytes in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
