"""States of a training: saved at intervals, chosen when it is known since when all is not well."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairseq.checkpoint_utils import save_checkpoint as fairseqs_save

from ..checkpoints import load_checkpoint, num_updates
from ..files import whole
from .detectors import LOOKBACK

FOLDER: Final = "good_states"
LAST_GOOD: Final = "checkpoint_last_good.pt"
TESTED: Final = 2
"""Updates that a state must lie before the start of trouble: its parameters are first used by the
update after it, and that one must have been well."""
CLOCKS: Final = 5.0
"""Seconds by which the clock of a file server may be behind."""


def save(trainer: Any, epoch_itr: Any, save_dir: Path) -> None:
    """Save what fairseq would save now; every process calls this, one writes.

    Whether the state is good is known up to LOOKBACK updates later. So it keeps the newest, the
    newest that is older than LOOKBACK, and between them the one that is next to be that old (with
    intervals of LOOKBACK and more it is the newest); the others are deleted.
    """
    trainer.consolidate_optimizer()
    if not trainer.should_save_checkpoint_on_current_rank:
        return
    extra = extra_state(trainer, epoch_itr)
    folder = save_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    trainer.save_checkpoint(str(folder / f"update_{trainer.get_num_updates()}.pt"), extra)
    saved = dict(_saved(save_dir))
    for update in saved.keys() - _kept(saved):
        saved[update].unlink(missing_ok=True)


def extra_state(trainer: Any, epoch_itr: Any) -> dict[str, Any]:
    """Return what fairseq saves besides the trainer's own state."""
    extra = {"train_iterator": epoch_itr.state_dict(), "val_loss": None}
    if hasattr(trainer.task, "get_checkpoint_dict"):
        extra.update(trainer.task.get_checkpoint_dict())
    if hasattr(fairseqs_save, "best"):
        extra["best"] = fairseqs_save.best
    return extra


def _kept(updates: Collection[int]) -> set[int]:
    """Return the states to keep; of the young ones the oldest, or none would ever grow old."""
    newest = max(updates)
    old = [update for update in updates if update <= newest - LOOKBACK]
    young = [update for update in updates if update > newest - LOOKBACK]
    return {newest, min(young), max(old, default=newest)}


def _saved(save_dir: Path) -> Iterator[tuple[int, Path]]:
    for path in (save_dir / FOLDER).glob("update_*.pt"):
        match = re.fullmatch(r"update_(\d+)\.pt", path.name)
        if match:
            yield int(match[1]), path


def _resumable(save_dir: Path) -> Iterator[tuple[int, Path]]:
    """Yield every whole checkpoint that can be resumed from, and its update."""
    yield from _saved(save_dir)
    for path in sorted(save_dir.glob("checkpoint*.pt")):
        with contextlib.suppress(ValueError, OSError):
            state = load_checkpoint(path, split=True)
            extra = state.get("extra_state", {})
            if state.get("last_optimizer_state") is not None and "train_iterator" in extra:
                yield num_updates(state), path


@dataclass(frozen=True)
class Start:
    """What a training began from: what else lies in its folder may be another's."""

    update: int  # of the checkpoint that was loaded, 0 for none
    time: float  # of day, in seconds

    def owns(self, update: int, path: Path) -> bool:
        """Return True if a state belongs to this training, or to what it went on from."""
        return update <= self.update or path.stat().st_mtime >= self.time - CLOCKS


def newest(save_dir: Path, started: int, start: Start) -> tuple[int, Path] | None:
    """Return the newest state from before trouble that began at `started`, and its update.

    fairseq's own checkpoints count as well as `save`'s. If none is old enough, it is the one that
    the training was resumed from: better that than the beginning. None if there is no state at all.
    """
    owned = [(update, path) for update, path in _resumable(save_dir) if start.owns(update, path)]
    fit = [state for state in owned if state[0] <= started - TESTED]
    fit = fit or [state for state in owned if 0 < state[0] <= start.update]
    return max(fit, key=lambda state: state[0]) if fit else None


def begin(save_dir: Path, update: int) -> None:
    """Move good states that are later than the start out of the way: another training left them."""
    later = [path for number, path in _saved(save_dir) if number > update]
    _move(later, free_folder(save_dir, "earlier", 1))


def keep(source: Path, save_dir: Path) -> tuple[Path, OSError | None]:
    """Keep a state as LAST_GOOD; return where it is, and what kept it from being copied."""
    target = save_dir / LAST_GOOD
    try:
        if source != target:
            copy(source, target)
    except OSError as error:
        return source, error
    return target, None


def copy(source: Path, target: Path) -> None:
    """Copy a checkpoint so that it is there whole or not at all.

    A state of ours that becomes LAST_GOOD is linked where the file system can: at once, and on a
    full disk too. No other is: `cp`, as people use it, writes over checkpoint_last.pt in place, and
    would change what is linked to it.
    """
    with whole(target) as part:
        part.unlink(missing_ok=True)
        if source.parent.name == FOLDER and target.name == LAST_GOOD:
            with contextlib.suppress(OSError):
                os.link(source, part)
        if not part.exists():
            shutil.copyfile(source, part)


def set_aside(save_dir: Path, after: int | None, folder: Path) -> None:
    """Move what came after the good state into a folder; nothing is deleted.

    Args:
        after: the good state's update; None where there is none, and all is moved
    """
    later = [path for update, path in _saved(save_dir) if after is None or update > after]
    later += save_dir.glob("crash.pt")
    for path in save_dir.glob("checkpoint*.pt"):
        try:
            is_later = after is None or num_updates(load_checkpoint(path, split=True)) > after
        except (ValueError, OSError):
            is_later = True  # half a file can be gone on from as little
        later += [path] if is_later else []
    _move(later, folder)


def free_folder(save_dir: Path, name: str, number: int) -> Path:
    """Return save_dir/name_N, counted on from `number` where there is such a folder."""
    while (folder := save_dir / f"{name}_{number}").exists():
        number += 1
    return folder


def _move(paths: Sequence[Path], folder: Path) -> None:
    if paths:
        folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        path.rename(folder / path.name)
