"""Exit statuses of training runs, and ended.json in the run folder.

    {"why": "preempted", "update": 1200}
    {"why": "diverged", "update": 31, "layers": {"decoder": [1, 13, 18]}, "started": 29, ...}

Rank 0 writes ended.json before it exits, because torchrun and srun hide its exit status.
This module imports neither torch nor fairseq, because the supervisor of `deepnet train` uses it.
"""

import contextlib
import ctypes
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from .records import read_record, write_json

NAME: Final = "ended.json"

PREEMPTED: Final = 85
"""Exit status of a run that saved everything and ended after a signal; HTCondor also uses 85."""
UNSAVED: Final = 128 + signal.SIGTERM
"""Exit status of a run that ended after a signal without saving its last updates."""
INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit status after Ctrl-C."""
DIVERGED: Final = 86
"""Exit status of a run that was stopped because it diverged."""
ATTEMPT: Final = "fallback-step"
"""Hidden option of fairseq-train for the number of fallbacks that the run has taken."""
PREEMPTING: Final = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that end a run after the current update."""

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Let the kernel signal this process when its parent ends, even after kill -9 (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


class Why(StrEnum):
    """Reasons for the end of a run."""

    COMPLETE = "complete"
    PREEMPTED = "preempted"  # ended by a signal, with everything saved
    INTERRUPTED = "interrupted"  # ended by Ctrl-C, with everything saved
    UNSAVED = "unsaved"  # ended by a signal, without a checkpoint
    DIVERGED = "diverged"  # stopped by --on-divergence stop or fallback


def write(run: Path, why: Why, update: int, **more: Any) -> None:
    """Record in a run folder why the run ended; a full disk must not change the exit status."""
    with contextlib.suppress(OSError):
        write_json(run / NAME, {"why": why.value, "update": update, **more})


def read(run: Path) -> dict[str, Any]:
    """Return the record in a run folder, or an empty dictionary if it is missing or damaged."""
    try:
        return read_record(run / NAME, {"why": str, "update": int})
    except (FileNotFoundError, ValueError):
        return {}


def clear(run: Path) -> None:
    """Remove the record of why the run last ended."""
    (run / NAME).unlink(missing_ok=True)


def is_complete(run: Path) -> bool:
    """Return True if the record says that the run is complete."""
    return read(run).get("why") == Why.COMPLETE
