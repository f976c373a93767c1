"""Preemption: SIGTERM and SIGUSR1 end a run after the current update, with a checkpoint.

A handler records the signal. DeepNetTrainer counts the signalled processes when it sums fairseq's
statistics, so after an update all processes know whether to stop. Rank 0 then saves
checkpoint_last.pt, and all processes exit with status PREEMPTED. If a validation was due after the
update, the resumed run starts with it. Only `deepnet train` enforces a deadline for the exit.
"""

import atexit
import logging
import math
import multiprocessing.process
import os
import signal
import threading
from pathlib import Path
from typing import Any, Final, NoReturn

from . import ended
from .checkpoints import LAST, last_of
from .ended import PREEMPTED, PREEMPTING, UNSAVED, end_with_parent
from .errors import is_fairseq_command
from .monitoring.records import run_folder
from .observers import Observer, broadcast_from_rank0

logger = logging.getLogger(__name__)

OWED: Final = "preempted"
"""Key in a checkpoint's extra state for the validation that a signal prevented."""

_received: signal.Signals | None = None
_is_listening = False


def signalled() -> signal.Signals | None:
    """Return the signal that this process has received, or None."""
    return _received


def listen() -> bool:
    """Start handling signals in fairseq's commands; return True if signals are handled.

    Before the trainer calls this function, a signal ends the process at once, because there is
    nothing to save.
    """
    global _is_listening
    # only the main thread may set handlers
    is_main = threading.current_thread() is threading.main_thread()
    if _is_listening or not is_fairseq_command() or not is_main:
        return _is_listening
    _is_listening = True
    for number in PREEMPTING:
        signal.signal(number, _receive)
        atexit.register(signal.signal, number, signal.SIG_IGN)  # while the process exits
    is_spawned = multiprocessing.process.parent_process() is not None
    if is_spawned or "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    os.register_at_fork(after_in_child=_protect_worker)
    return True


def _receive(number: int, _: Any) -> None:
    global _received
    _received = signal.Signals(number)


def _protect_worker() -> None:
    """Make a forked data-loading process ignore SIGTERM unless its parent sends the signal.

    Otherwise a signal to all processes of a job would end the data-loading process before it has
    supplied the current update's batches, and torch would abort the run.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if not hasattr(signal, "sigwaitinfo"):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait_for_parent() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=wait_for_parent, daemon=True).start()


class Preemption(Observer):
    """Observer that ends a run after a signal to any of its processes."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.is_ending = False  # only the last validation remains

    @property
    def is_requested(self) -> bool:
        """True, in all processes, if any process was signalled."""
        if self.trainer.data_parallel_world_size == 1:
            return signalled() is not None
        return bool(self.trainer.is_signalled)

    def act(self) -> None:
        """After a signal, save a checkpoint; end the run unless only its last validation remains.

        The trainer calls this after an update and, as validation may take longer than the grace
        period, after each validation batch.
        """
        if not self.is_requested or self.is_ending:
            return
        settings, epoch_itr = self.trainer.cfg.optimization, self.trainer.epoch_itr
        update = self.trainer.get_num_updates()
        if update > self.trainer.saved:
            self._save(update)
        is_last_epoch = epoch_itr.epoch >= (settings.max_epoch or math.inf)
        is_last = is_last_epoch and epoch_itr.end_of_epoch()
        if not is_last and update < (settings.max_update or math.inf):
            self._leave(update)
        self.is_ending = True

    def _save(self, update: int) -> None:
        """Write checkpoint_last.pt with everything that fairseq saves; exit if saving fails."""
        trainer, cfg = self.trainer, self.trainer.cfg.checkpoint
        problem = ""
        if cfg.no_save or cfg.no_save_optimizer_state:
            problem = "--no-save and --no-save-optimizer-state leave nothing to resume from"
        else:
            try:
                trainer.consolidate_optimizer()
                if trainer.should_save_checkpoint_on_current_rank:
                    trainer.save_now(str(last_of(trainer)))
            except Exception as error:
                logger.exception("no checkpoint was saved")
                problem = f"{type(error).__name__}: {error}"
        problem = broadcast_from_rank0(trainer, problem)
        if problem:
            if trainer.is_data_parallel_master:
                logger.error("preempted at update %d, not saved: %s", update, problem)
                ended.write(run_folder(Path(cfg.save_dir)), ended.Why.UNSAVED, update)
            raise SystemExit(UNSAVED)
        trainer.saved = update  # also on the ranks that do not write

    def _leave(self, update: int) -> NoReturn:
        if self.trainer.is_data_parallel_master:
            cfg, last = self.trainer.cfg.checkpoint, last_of(self.trainer)
            run = run_folder(last.parent)
            ended.write(run, ended.Why.PREEMPTED, update)
            resets = [name for name in cfg if "reset_" in name and cfg[name]]
            command = "the same command resumes"
            # `deepnet train` applies these options only to the first start
            if run == last.parent and (resets or cfg.restore_file != LAST):
                command = f"the same command with --restore-file {LAST}, without --reset-*, resumes"
            logger.warning("preempted: update %d is saved in %s; %s", update, last, command)
        raise SystemExit(PREEMPTED)
