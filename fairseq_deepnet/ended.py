"""ended.json in a run folder: why its training ended, for the supervisor and for people.

    {"why": "preempted", "update": 1200}
    {"why": "diverged", "update": 31, "layers": {"decoder": [1, 13, 18]}, "started": 29, ...}

Rank 0 writes it before it exits, because torchrun and srun pass no exit status on.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from .records import read_record, write_record

NAME: Final = "ended.json"


class Why(StrEnum):
    """Reasons for the end of a training."""

    COMPLETE = "complete"
    PREEMPTED = "preempted"  # by a signal, everything is saved
    UNSAVED = "unsaved"  # by a signal, and the checkpoint could not be saved
    DIVERGED = "diverged"  # and --on-divergence stop or fallback


def write(run: Path, why: Why, update: int, **more: Any) -> None:
    """Record the end of the training in a run folder after `update` updates."""
    write_record(run / NAME, {"why": why.value, "update": update, **more})


def read(run: Path) -> dict[str, Any]:
    """Return the record; empty where there is none, or only a damaged one."""
    try:
        return read_record(run / NAME, {"why": str, "update": int})
    except (FileNotFoundError, ValueError):
        return {}


def clear(run: Path) -> None:
    """Remove the record of an earlier training."""
    (run / NAME).unlink(missing_ok=True)


def is_complete(run: Path) -> bool:
    """Return True if a run was trained to its end."""
    return read(run).get("why") == Why.COMPLETE
