"""Locking and repair of --save-dir, the folder of a run's checkpoints."""

import logging
import os
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
from .observers import broadcast_from_rank0, gather

logger = logging.getLogger(__name__)

REPAIRED: Final = "is damaged, missing or not the newest: resuming from"
_LOCKS: Final[dict[Path, int]] = {}
"""Folders that this process has locked, with the file descriptors that hold the locks."""


def prepare_save_dir(trainer: Any) -> None:
    """Lock --save-dir and repair its checkpoint_last.pt on rank 0; errors are raised on all ranks.

    Raises:
        ConfigurationError: if another run uses --save-dir, if the checkpoint from which the run
            starts is missing on a node, or if checkpoint_last.pt is damaged and no other
            checkpoint can be resumed from.
    """
    failure: str | None = None
    if trainer.data_parallel_rank == 0:
        try:
            _prepare(trainer)
        except (ValueError, OSError) as error:
            failure = str(error)
    failure = broadcast_from_rank0(trainer, failure)
    start = _start(trainer)
    starts = {*gather(trainer, (start, not start or PathManager.isfile(start)))}
    if failure is None and starts != {(start, True)}:  # fairseq would train from scratch
        failure = f"{max(starts)[0]}: there is no such file; with several nodes, each must have it"
    if failure is not None:
        raise ConfigurationError(failure)


def _prepare(trainer: Any) -> None:
    """Lock --save-dir, repair checkpoint_last.pt and delete the partial files of killed runs."""
    cfg = trainer.cfg.checkpoint
    folder = Path(cfg.save_dir)
    if not cfg.no_save:
        _lock(folder)
    if cfg.restore_file != LAST or trainer.checkpoint_suffix:
        return
    newest = repair_last(folder, bool(_other_start(cfg)), not cfg.no_last_checkpoints)
    if newest is not None:
        logger.warning(
            "%s %s %s; to start over, use another --save-dir",
            *(folder / LAST, REPAIRED, newest.name),
        )
    for part in () if cfg.no_save else folder.glob(".checkpoint*.pt.*.part"):
        part.unlink(missing_ok=True)


def _start(trainer: Any) -> str:
    """Return the checkpoint from which this process starts, or "" if it starts from scratch."""
    cfg, last = trainer.cfg.checkpoint, last_of(trainer)
    if cfg.restore_file != LAST:
        return str(cfg.restore_file.replace(".pt", f"{trainer.checkpoint_suffix}.pt"))
    return str(last) if last.is_file() else _other_start(cfg)


def _other_start(cfg: Any) -> str:
    """Return the checkpoint that replaces a missing checkpoint_last.pt as the start, or ""."""
    return getattr(cfg, "continue_once", None) or cfg.finetune_from_model or ""


def _lock(folder: Path) -> None:
    """Lock a folder until this process ends."""
    if folder.resolve() in _LOCKS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise ConfigurationError(
            f"--save-dir {folder}: another run writes here; use another folder"
        )
    _LOCKS[folder.resolve()] = descriptor


def repair_last(folder: Path, only_damaged: bool = False, is_kept_up: bool = True) -> Path | None:
    """Replace a damaged or missing checkpoint_last.pt with the newest intact checkpoint.

    Args:
        only_damaged: replace checkpoint_last.pt only if it is damaged, not if it is missing.
        is_kept_up: whether fairseq keeps checkpoint_last.pt up to date (not with
            --no-last-checkpoints); if not, an intact but outdated file is also replaced.

    Returns:
        The checkpoint that was copied, or None if no repair is needed or possible.

    Raises:
        ValueError: if checkpoint_last.pt is damaged and no other checkpoint can be resumed from.
    """
    last = folder / LAST
    damage, updates = None, 0
    if last.is_file():
        try:
            updates = num_updates(load_checkpoint(last, entire=True))
            if is_kept_up:
                return None
        except ValueError as error:
            damage = error
    elif only_damaged:
        return None
    candidates: dict[int, Path] = {}
    for path in [*periodic_checkpoints(folder), *sorted(folder.glob("checkpoint[_.]best*.pt"))]:
        try:
            state = load_checkpoint(path, entire=True)
        except (ValueError, FileNotFoundError):
            continue
        if state.get("last_optimizer_state") is not None and num_updates(state) > updates:
            candidates.setdefault(num_updates(state), path)
    if candidates:
        newest = candidates[max(candidates)]
        extra = load_checkpoint(newest).get("extra_state") or {}
        if extra.get("val_loss") is not None and extra["val_loss"] == extra.get("best"):
            copy_checkpoint(newest, folder / "checkpoint_best.pt")  # fairseq may have failed to
        copy_checkpoint(newest, last)
        return newest
    if damage is not None:
        raise damage
    return None
