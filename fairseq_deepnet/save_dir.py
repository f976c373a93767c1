"""The folder of a training's checkpoints: of one training at a time, resumed from the newest."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any, Final

from fairseq.file_io import PathManager

from .checkpoints import (
    LAST,
    copy_checkpoint,
    last_of,
    load_checkpoint,
    num_updates,
    periodic_checkpoints,
)
from .errors import ConfigurationError
from .files import try_lock
from .observers import broadcast_from_rank0

logger = logging.getLogger(__name__)

_LOCKS: Final[dict[Path, int]] = {}
"""Folders that this process has locked: their descriptors, which are open until it ends."""


def prepare_save_dir(trainer: Any) -> None:
    """Lock --save-dir and repair its checkpoint_last.pt, on rank 0; all ranks fail with it.

    Raises:
        ConfigurationError: if another training writes there, if --restore-file does not exist, or
            if checkpoint_last.pt is damaged and no other checkpoint can be resumed from.
    """
    failure = None
    if trainer.data_parallel_rank == 0:
        try:
            _prepare(trainer)
        except (ValueError, OSError) as error:
            failure = str(error)
    failure = broadcast_from_rank0(trainer, failure)
    has_last = broadcast_from_rank0(trainer, last_of(trainer).is_file())
    if failure is None and has_last and not last_of(trainer).is_file():
        failure = f"{last_of(trainer)} is not on every node; use storage that all nodes share"
    if failure is not None:
        raise ConfigurationError(failure)


def _prepare(trainer: Any) -> None:
    cfg, suffix = trainer.cfg.checkpoint, trainer.checkpoint_suffix
    folder = Path(cfg.save_dir)
    if not cfg.no_save:
        _lock(folder)
    if cfg.restore_file != LAST:
        # fairseq would train from scratch
        if not PathManager.exists(cfg.restore_file.replace(".pt", f"{suffix}.pt")):
            raise ConfigurationError(f"--restore-file {cfg.restore_file}: there is no such file")
        _warn_of_overwriting(cfg.restore_file, last_of(trainer))
    elif not suffix:
        starts_elsewhere = bool(cfg.finetune_from_model or getattr(cfg, "continue_once", None))
        is_kept_up = not cfg.no_last_checkpoints
        newest = repair_last(folder, starts_elsewhere, is_kept_up)
        if newest is not None:
            reason = why_repaired(newest, is_kept_up)
            logger.warning("%s %s; to begin again, give another --save-dir", folder / LAST, reason)
        for part in folder.glob("checkpoint*.pt.part"):
            part.unlink(missing_ok=True)  # a killed run's


def _lock(folder: Path) -> None:
    """Lock a folder until this process ends."""
    if folder.resolve() in _LOCKS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise ConfigurationError(
            f"--save-dir {folder}: another training writes here; give another folder"
        )
    _LOCKS[folder.resolve()] = descriptor


def _warn_of_overwriting(restore_file: str, last: Path) -> None:
    """Warn if a training that has come farther begins with a checkpoint from elsewhere."""
    if not last.is_file() or Path(restore_file).resolve().parent == last.resolve().parent:
        return
    try:
        updates = num_updates(load_checkpoint(last))
    except ValueError:
        return  # damaged: there is nothing to lose
    if updates:
        logger.warning(
            "--restore-file %s: the training begins there, and will overwrite update %d of %s; give"
            " --restore-file %s to resume from that",
            *(restore_file, updates, last, LAST),
        )


def why_repaired(newest: Path, is_kept_up: bool) -> str:
    """Return the message about a checkpoint_last.pt that `repair_last` has replaced."""
    if is_kept_up:
        return f"is damaged, missing or not the newest: resuming from {newest.name}"
    return f"is not the newest: resuming from {newest.name}"


def _is_older_than_another(last: Path, made: int) -> bool:
    """Tell whether a checkpoint of more updates was written after checkpoint_last.pt.

    fairseq copies a new checkpoint onto it in the end. The time of the last change of status also
    covers `cp -p old.pt checkpoint_last.pt`, by which people go back on purpose.
    """
    changed = last.stat().st_ctime_ns
    later = [p for p in periodic_checkpoints(last.parent) if p.stat().st_ctime_ns > changed]
    # the name of checkpoint_2_4000.pt has its updates; of checkpoint1.pt, ... the last counts
    updates = [re.fullmatch(r"checkpoint_\d+_(\d+)\.pt", path.name) for path in later]
    if any(match and int(match[1]) > made for match in updates):
        return True
    epochs = {int(path.stem[10:]): path for path in later if path.stem[10:].isdigit()}
    try:
        return bool(epochs) and num_updates(load_checkpoint(epochs[max(epochs)])) > made
    except ValueError:  # half a file, which is not resumed from
        return False


def repair_last(folder: Path, only_damaged: bool = False, is_kept_up: bool = True) -> Path | None:
    """Put the newest whole checkpoint in the place of a checkpoint_last.pt that cannot be read, or
    that is older than others: because the training does not keep it up (--no-last-checkpoints), or
    because it was killed while it copied a new checkpoint there.

    With `only_damaged` a folder that has no checkpoint_last.pt is left alone. Returns the
    checkpoint that was taken; None where there is nothing to mend, or nothing to resume from.
    Raises ValueError if checkpoint_last.pt is damaged and there is no other to resume from.
    """
    last = folder / LAST
    damage, made = None, 0
    if last.is_file():
        try:
            made = num_updates(load_checkpoint(last, entire=True))
            if is_kept_up and not _is_older_than_another(last, made):
                return None
        except ValueError as error:
            damage = error
    elif only_damaged:
        return None
    found: dict[int, Path] = {}
    for path in [*periodic_checkpoints(folder), *sorted(folder.glob("checkpoint[_.]best*.pt"))]:
        try:
            state = load_checkpoint(path, entire=True)
        except (ValueError, FileNotFoundError):
            continue
        if state.get("last_optimizer_state") is not None and num_updates(state) > made:
            found.setdefault(num_updates(state), path)
    if found:
        newest = found[max(found)]
        copy_checkpoint(newest, last)
        return newest
    if damage is not None:
        raise damage
    return None
