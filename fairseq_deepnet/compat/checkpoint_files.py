"""Checkpoints that are there whole or not at all, and a resume that finds the newest whole one.

fairseq writes a checkpoint beside its place and renames it, but copies it onto checkpoint_best.pt
and checkpoint_last.pt in place: a kill or a full disk leaves half a file, and a process that has
mapped the old one dies of SIGBUS. A run whose checkpoint_last.pt is damaged or missing is not
resumed from the whole checkpoints beside it, and a --restore-file that is not there is passed over.
Two trainings in one --save-dir overwrite each other's checkpoints.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any, Final

import fairseq.checkpoint_utils
from fairseq.file_io import PathManager

from ..checkpoints import (
    LAST,
    DiskFullError,
    copy_checkpoint,
    last_of,
    load_checkpoint,
    mend_last,
    num_updates,
    save_checkpoint,
    why_mended,
)
from ..errors import ConfigurationError
from ..files import try_lock
from ..monitoring.trainer import broadcast_from_rank0
from ..wrapping import wrap

logger = logging.getLogger(__name__)

PAUSES: Final = (2.5, 2.5)
"""Seconds before fairseq tries again to write a checkpoint: file servers have their moments."""


class WholeFiles(PathManager):
    """fairseq's access to files, with a copy that is whole."""

    @staticmethod
    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
        """Copy a checkpoint; `overwrite` is fairseq's, which always does."""
        if not PathManager.supports_rename(dst_path):
            return PathManager.copy(src_path, dst_path, overwrite)
        copy_checkpoint(Path(src_path), Path(dst_path))
        return True


def apply() -> None:
    """Let fairseq write checkpoints as `save_checkpoint` does, and resume from a whole one."""
    fairseq.checkpoint_utils.PathManager = WholeFiles

    @wrap(fairseq.checkpoint_utils, "torch_persistent_save")
    def torch_persistent_save(
        stock: Any, obj: Any, filename: str, async_write: bool = False
    ) -> None:
        if async_write or not PathManager.supports_rename(filename):
            stock(obj, filename, async_write)
            return
        for pause in PAUSES:
            try:
                save_checkpoint(obj, filename)
                return
            except DiskFullError:
                raise  # no pause helps, and the state of a deep model takes minutes to write
            except ConfigurationError as error:
                logger.warning("%s; trying again in %s seconds", error, pause)
                time.sleep(pause)
        save_checkpoint(obj, filename)

    @wrap(fairseq.checkpoint_utils, "load_checkpoint")
    def load_checkpoint(load: Any, cfg: Any, trainer: Any, **kwargs: Any) -> Any:
        wanted, suffix = cfg.restore_file, trainer.checkpoint_suffix
        if not cfg.no_save:
            _lock_together(Path(cfg.save_dir), trainer)
        # mistyped: fairseq would train from scratch
        if wanted != LAST and not PathManager.exists(wanted.replace(".pt", f"{suffix}.pt")):
            raise ConfigurationError(f"--restore-file {wanted}: there is no such file")
        if wanted != LAST and trainer.data_parallel_rank == 0:
            _warn_of_beginning_again(wanted, last_of(trainer))
        if wanted == LAST and not suffix:
            _mend_together(cfg, trainer)
        return load(cfg, trainer, **kwargs)


def _warn_of_beginning_again(wanted: str, last: Path) -> None:
    """Say that a training which has come farther begins with a checkpoint from elsewhere."""
    if not last.is_file() or Path(wanted).resolve().parent == last.resolve().parent:
        return
    try:
        made = num_updates(load_checkpoint(last, split=True))
    except ValueError:
        return  # damaged: there is nothing to lose
    if made:
        logger.warning(
            "--restore-file %s: the training begins there, and will overwrite update %d of %s; give"
            " --restore-file %s to go on with that",
            *(wanted, made, last, LAST),
        )


_LOCKS: Final[dict[Path, int]] = {}


def _lock_together(folder: Path, trainer: Any) -> None:
    """Lock --save-dir on rank 0 until this process ends; all ranks fail if another training has."""
    failure = None
    if trainer.data_parallel_rank == 0 and folder.resolve() not in _LOCKS:
        descriptor = os.open(folder, os.O_RDONLY)
        if try_lock(descriptor):
            _LOCKS[folder.resolve()] = descriptor
        else:
            os.close(descriptor)
            failure = f"--save-dir {folder}: another training writes here; give another folder"
    failure = broadcast_from_rank0(trainer, failure)
    if failure is not None:
        raise ConfigurationError(failure)


def _mend_together(cfg: Any, trainer: Any) -> None:
    """Mend checkpoint_last.pt on rank 0 while the others wait; all fail if it cannot be."""
    failure = None
    if trainer.data_parallel_rank == 0:
        folder = Path(cfg.save_dir)
        starts_elsewhere = bool(cfg.finetune_from_model or getattr(cfg, "continue_once", None))
        try:
            taken = mend_last(folder, starts_elsewhere, not cfg.no_last_checkpoints)
        except (ValueError, OSError) as error:
            failure = str(error)
        else:
            if taken is not None:
                logger.warning(
                    "%s %s; to begin anew, give another --save-dir",
                    folder / LAST,
                    why_mended(taken, not cfg.no_last_checkpoints),
                )
            for part in folder.glob("checkpoint*.pt.part"):
                part.unlink(missing_ok=True)  # a killed run's
    failure = broadcast_from_rank0(trainer, failure)
    if failure is not None:
        raise ConfigurationError(failure)
