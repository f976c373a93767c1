"""Signals and exit statuses by which fairseq-train, its supervisor and a queue understand another.

Standard library only: the supervisor holds neither torch nor fairseq.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from pathlib import Path
from typing import Final

PREEMPTED: Final = 85
"""Exit status: ended by a signal with everything saved; the same command resumes. HTCondor's
manual uses the same number for it."""
UNSAVED: Final = 128 + signal.SIGTERM
"""Exit status: ended by a signal, and updates since the last checkpoint are lost."""
INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit status: Ctrl-C."""
DIVERGED: Final = 86
"""Exit status: the training diverged and was stopped, after the last good state was kept."""

ATTEMPT: Final = "fallback-step"
"""Hidden option of fairseq-train by which its supervisor says how many fallbacks it has taken."""

PREEMPTING: Final = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that end a training after the update that is being made."""
GRACE: Final = 90.0
"""Seconds that a training has to finish its update and save; scripts/slurm_train.sbatch has SLURM
send its signal 120 s before the time limit."""

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Let this process get a signal when its parent ends, even by kill -9; Linux only."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(number))


def children(process: int) -> list[int]:
    """Return the processes that a process has started and that still run; Linux only."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended, or this is no Linux
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found
