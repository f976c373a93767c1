"""What a cell has come to, in CELL/sweep.json; and the lock of a sweep's folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.experiments.sweeps.cells import Cell
from fairseq_deepnet.files import shown, try_lock
from fairseq_deepnet.records import NUMBER, Shape, read_record, write_record

RECORD: Final = "sweep.json"
_SHAPE: Final[Shape] = {
    "status?": str,
    "settings?": dict,
    "places?": [{"panel": str, "values": dict, "seed": int}],
    "score?": str,
    "definition?": str,
    "unigram_nll?": NUMBER,
    "updates?": int,
}
CONSOLE: Final = "console.log"
"""What a cell's scripts print."""


class Status(StrEnum):
    """Where a cell stands. A result is what a later start of the sweep leaves alone."""

    TO_DO = "to do"
    UNFINISHED = "unfinished"
    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"

    @property
    def is_result(self) -> bool:
        """Whether the cell has run to its end, good or bad."""
        return self in (Status.DONE, Status.DIVERGED, Status.FAILED)


def read(folder: Path) -> dict[str, Any]:
    """The record of a cell; empty where it has never started."""
    file = folder / RECORD
    if not file.is_file():
        return {}
    content = read_record(file, _SHAPE, "remove it to run the cell")
    if content.get("status", Status.TO_DO) not in set(Status):
        raise ValueError(f"{shown(file)} is damaged: status {content['status']!r}; remove it")
    return content


def status_of(folder: Path) -> Status:
    """Where a cell stands; one whose sweep was killed is unfinished."""
    return Status(read(folder).get("status", Status.TO_DO))


def write(folder: Path, cell: Cell, status: Status, **facts: object) -> None:
    """Record a cell; facts of an earlier record are kept unless they are given anew."""
    folder.mkdir(parents=True, exist_ok=True)
    content = read(folder) | {
        "cell": cell.name,
        "status": status.value,
        "places": [
            {"panel": place.panel, "values": place.values, "seed": place.seed}
            for place in cell.places
        ],
        "settings": cell.settings(),
        **facts,
    }
    write_record(folder / RECORD, content)


def differences(folder: Path, cell: Cell) -> list[str]:
    """What is not as it was when the cell started, as readable text."""
    before = read(folder).get("settings")
    if before is None:
        return []
    after = cell.settings()
    return [
        f"{key} {before.get(key)} -> {after.get(key)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def refuse_changes(folder: Path, cells: list[Cell]) -> None:
    """Raise ValueError where a cell that has started would now have other settings."""
    for cell in cells:
        changed = differences(folder / cell.name, cell)
        if changed:
            raise ValueError(
                f"{shown(folder / cell.name)} was run with other settings ({'; '.join(changed)}): "
                "choose another folder with --runs FOLDER, or remove the cell's"
            )


def begin_again(folder: Path) -> None:
    """Take a cell's result back. A failed one goes on from its last checkpoint; one that diverged
    starts anew, and its folder is kept under another name.
    """
    if status_of(folder) is not Status.DIVERGED:
        (folder / RECORD).unlink()
        return
    number = 1
    while (kept := folder.with_name(f".{folder.name}.diverged{number}")).exists():
        number += 1
    folder.rename(kept)


def is_training(folder: Path) -> bool:
    """Whether a training holds a run folder's lock: one that a killed sweep left, still ending."""
    lock = folder / ".lock"
    if not lock.is_file():
        return False
    with lock.open("a", encoding="utf-8") as file:
        return not try_lock(file)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder; ValueError where another sweep does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="utf-8") as lock:
        if not try_lock(lock):
            raise ValueError(
                f"another sweep is at work in {shown(folder)}; wait for it, or set --runs FOLDER"
            )
        yield
