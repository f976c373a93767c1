"""SIGTERM and SIGUSR1 end a training after the update in progress, and lose nothing.

A handler only notes the signal. After the update every process knows whether any of them was
signalled: DeepNetTrainer adds one number to the sum of statistics that fairseq computes anyway. All
processes stop after the same update, rank 0 saves checkpoint_last.pt, and all exit with the status
PREEMPTED. What fairseq would have done after that update, such as validating, is owed: the trainer
does it first when it resumes. Deadlines are the supervisor's: a bare fairseq-train has none.
"""

from __future__ import annotations

import atexit
import logging
import math
import multiprocessing.process
import os
import signal
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

from fairseq.file_io import PathManager

from . import ended
from .checkpoints import LAST, last_of
from .ended import DIVERGED, PREEMPTED, PREEMPTING, UNSAVED, end_with_parent
from .errors import ConfigurationError
from .monitoring.records import run_folder
from .observers import Observer, broadcast_from_rank0

logger = logging.getLogger(__name__)

OWED: Final = "preempted"
"""Key of a checkpoint's extra state: fairseq has not validated and saved after its update."""


class Listener:
    """The signals of this process, and the training that they end."""

    def __init__(self) -> None:
        self.heard: signal.Signals | None = None
        self.training: Preemption | None = None

    def hear(self, number: int, _: Any = None) -> None:
        """Note a signal; before the training has begun, end the process.

        The parent of processes that fairseq has spawned sends it to them, and ends as they do.
        """
        self.heard = signal.Signals(number)
        if self.training is not None:
            return
        spawned = list(multiprocessing.process._children)  # type: ignore[attr-defined]
        for process in spawned:
            if process.is_alive():
                os.kill(process.pid, number)
        if not spawned:
            print(
                f"fairseq_deepnet: {self.heard.name}: before the training began",
                file=sys.stderr,
                flush=True,
            )
            raise SystemExit(PREEMPTED)


_listener: Listener | None = None


def listen() -> None:
    """Handle the signals from here on if this process is fairseq-train; at most once."""
    global _listener
    if _listener is not None or not _is_fairseq_train():
        return
    if threading.current_thread() is not threading.main_thread():
        return  # Python takes handlers only from the main thread
    _listener = Listener()
    for number in PREEMPTING:
        signal.signal(number, _listener.hear)
    is_spawned = multiprocessing.process.parent_process() is not None
    if is_spawned or "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    else:
        _end_as_spawned_processes_do(_listener)
    os.register_at_fork(after_in_child=_protect_worker)
    atexit.register(_ignore)


def is_listening() -> bool:
    """Tell whether `listen` handles the signals of this process."""
    return _listener is not None


def signalled() -> signal.Signals | None:
    """Return the signal that this process has received."""
    return None if _listener is None else _listener.heard


def _is_fairseq_train() -> bool:
    """True for fairseq-train and processes that it has spawned, not for programs that call it."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    return program.stem == "fairseq-train" or program.parts[-2:] == ("fairseq_cli", "train.py")


def _end_as_spawned_processes_do(listener: Listener) -> None:
    """Give fairseq-train the exit status of the processes that it has spawned."""
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        status = getattr(error, "exit_code", None)  # torch's ProcessExitedException
        if listener.heard is not None and status == -listener.heard:
            status = PREEMPTED  # the process did not handle signals yet
        if status not in (PREEMPTED, UNSAVED, DIVERGED):
            previous(kind, error, traceback)
            return
        raise SystemExit(status)

    sys.excepthook = hook


def _ignore() -> None:
    """Let a signal that comes after the end of the training change nothing."""
    for number in PREEMPTING:
        signal.signal(number, signal.SIG_IGN)


def _protect_worker() -> None:
    """Let a forked process, which loads data, end only by its parent's SIGTERM.

    A signal to all processes of a job would end it before the update that needs its batches, and
    torch ends the training with the first worker.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if not hasattr(signal, "sigwaitinfo"):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def heed_parent() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=heed_parent, daemon=True).start()


class Preemption(Observer):
    """Ends a training whose processes were signalled."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.is_made = self.is_ending = False
        if _listener is not None:
            _listener.training = self

    @property
    def is_asked(self) -> bool:
        """True if a process was signalled; the same in all of them."""
        if self.trainer.data_parallel_world_size == 1:
            return signalled() is not None
        return bool(self.trainer.is_signalled)

    def loaded(self, trainer: Any, update: int) -> None:
        if trainer.is_data_parallel_master:
            ended.clear(run_folder(Path(trainer.cfg.checkpoint.save_dir)))

    def end(self, trainer: Any, update: int, made: bool) -> None:
        self.is_made = made

    def logged(self) -> None:
        """After an update, or a failed attempt; before fairseq validates and saves."""
        if self.is_made and self.is_asked and not self.is_ending:
            self._save_and_leave()
        self.is_made = False

    def validated_a_batch(self) -> None:
        """After each batch of a validation, which may take longer than there is time."""
        if self.is_asked and not self.is_ending:
            self._save_and_leave()

    def owed(self) -> dict[str, Any]:
        """Return what the checkpoint records of the validation that did not take place."""
        epoch_itr = self.trainer.epoch_itr
        return {"epoch": epoch_itr.epoch, "end_of_epoch": epoch_itr.end_of_epoch()}

    def _save_and_leave(self) -> None:
        """Save, and end the training unless only its last validation is left."""
        update = self.trainer.get_num_updates()
        if update > self.trainer.saved:
            self._save(update)
        if not self._is_last(update):
            self._leave(update)
        self.is_ending = True  # the validation is made up for if the time is over before

    def _is_last(self, update: int) -> bool:
        """Return True if the training ends with this update anyway."""
        settings, epoch_itr = self.trainer.cfg.optimization, self.trainer.epoch_itr
        is_last_epoch = epoch_itr.epoch >= (settings.max_epoch or math.inf)
        return update >= (settings.max_update or math.inf) or (
            is_last_epoch and epoch_itr.end_of_epoch()
        )

    def _save(self, update: int) -> None:
        """Save all that fairseq saves as checkpoint_last.pt; ends where that fails."""
        trainer, cfg = self.trainer, self.trainer.cfg.checkpoint
        problem = "--no-save keeps no checkpoint" if cfg.no_save else ""
        if not cfg.no_save:
            try:
                trainer.consolidate_optimizer()
            except ConfigurationError as error:  # of rows that were not written: in all processes
                problem = str(error)
            if not problem and trainer.should_save_checkpoint_on_current_rank:
                try:
                    trainer.save_now(str(last_of(trainer)))
                    if cfg.write_checkpoints_asynchronously:
                        PathManager.async_close()
                except Exception as error:
                    logger.exception("no checkpoint was saved")
                    problem = f"{type(error).__name__}: {error}"
            if not problem and cfg.no_save_optimizer_state:
                problem = "--no-save-optimizer-state has kept only the weights"
        problem = broadcast_from_rank0(trainer, problem)
        if problem:
            if trainer.is_data_parallel_master:
                logger.error("preempted at update %d, not saved: %s", update, problem)
                ended.write(run_folder(Path(cfg.save_dir)), ended.Why.UNSAVED, update)
            raise SystemExit(UNSAVED)
        trainer.saved = update  # on the ranks that do not write, too

    def _leave(self, update: int) -> NoReturn:
        if self.trainer.is_data_parallel_master:
            cfg, last = self.trainer.cfg.checkpoint, last_of(self.trainer)
            ended.write(run_folder(last.parent), ended.Why.PREEMPTED, update)
            resets = [
                f"--{name.replace('_', '-')}" for name in cfg if "reset_" in name and cfg[name]
            ]
            how = "" if cfg.restore_file == LAST else f"--restore-file {LAST}"
            how += f"{', ' if how else ''}without {' '.join(resets)}," if resets else ""
            logger.warning(
                "preempted: update %d is saved in %s; %s resumes from there",
                *(update, last, how or "the same command"),
            )
        raise SystemExit(PREEMPTED)
