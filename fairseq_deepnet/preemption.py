"""SIGTERM and SIGUSR1 end a training after the update that is being made, and lose nothing.

The handlers only note the signal. After the update every process knows whether any of them was
signalled: the word is one more number in the sum of statistics that fairseq makes anyway. All stop
after the same update, rank 0 saves checkpoint_last.pt, and all exit with the status PREEMPTED.
What fairseq would have done after that update, such as validating, is owed: compat.owed_validation
makes up for it when the training goes on.
"""

from __future__ import annotations

import atexit
import logging
import math
import multiprocessing.process
import os
import select
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from fairseq.file_io import PathManager
from torch.utils.data._utils import signal_handling

from . import ended
from .checkpoints import LAST, last_of
from .compat.owed_validation import OWED, training_program
from .divergence.good_states import extra_state
from .errors import ConfigurationError
from .monitoring.records import run_folder
from .monitoring.trainer import Observer, broadcast_from_rank0
from .signals import DIVERGED, GRACE, PREEMPTED, PREEMPTING, UNSAVED, end_with_parent
from .wrapping import wrap

logger = logging.getLogger(__name__)

REPEATED: Final = 2.0
"""Seconds within which a further signal is the same one: it comes to the process, to its group and
by its launcher."""
_GRACE_VARIABLE: Final = "DEEPNET_PREEMPTION_GRACE"


def add_preemption_arguments(parser: ArgumentParser) -> None:
    """Add --preemption-grace, which every architecture takes."""
    parser.add_argument(
        "--preemption-grace",
        type=float,
        metavar="SECONDS",
        help="after SIGTERM or SIGUSR1, time to finish the update and to save checkpoint_last.pt"
        f" before the training ends anyway (default {GRACE:g}); its exit status is then {PREEMPTED}"
        f" where nothing is lost, else {UNSAVED}",
    )


def keep_grace_period(args: Any) -> None:
    """Hand --preemption-grace on to this process's listener and to the processes it spawns.

    fairseq passes spawned processes a configuration without it, unless the model's class keeps
    whatever the parser has read.

    Raises:
        ConfigurationError: if it is not a positive number.
    """
    grace = getattr(args, "preemption_grace", None)
    if grace is not None:
        if not (math.isfinite(grace) and grace > 0):
            raise ConfigurationError(f"--preemption-grace {grace:g}: give seconds above 0")
        os.environ[_GRACE_VARIABLE] = str(grace)


class Listener:
    """Hears this process's signals in a thread of its own.

    The main thread may wait for another process, in C, where Python runs no handler.
    """

    def __init__(self) -> None:
        self.heard: signal.Signals | None = None
        self.grace = GRACE
        self.training: Preemption | None = None
        self._pipe, writes = os.pipe()
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        for number in PREEMPTING:
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._listen, name="preemption", daemon=True).start()

    def _next(self, seconds: float) -> signal.Signals | None:
        """Return the next signal; None where none comes in time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._pipe], [], [], min(left, 3600))[0]:
                number = signal.Signals(os.read(self._pipe, 1)[0])
                if number in PREEMPTING:
                    return number
        return None

    def _listen(self) -> None:
        while (heard := self._next(math.inf)) is None:
            pass
        began = time.monotonic()
        self.heard = heard
        if self.training is None:
            if self._pass_on(heard):
                while True:  # the processes end by themselves, and this one with them
                    self._pass_on(self._next(math.inf))
            if _is_alone():
                self._end("before the training began")
        reason = f"the grace period of {self.grace:g} s (--preemption-grace) is over"
        while (left := began + self.grace - time.monotonic()) > 0:
            if self._next(left) and time.monotonic() - began > REPEATED:
                reason = "a second signal"
                break
        self._end(reason)

    def _pass_on(self, number: signal.Signals | None) -> bool:
        """Signal the processes that fairseq has spawned here; False where there are none."""
        spawned = list(multiprocessing.process._children)  # type: ignore[attr-defined]
        for process in spawned:
            if number is not None and process.pid is not None:
                try:
                    os.kill(process.pid, number)
                except ProcessLookupError:
                    continue
        return bool(spawned)

    def _end(self, reason: str) -> NoReturn:
        """End the process here and now: its main thread may never come to it."""
        assert self.heard is not None
        text, status = f"{self.heard.name}: {reason}", PREEMPTED
        if self.training is not None and not self.training.is_saved():
            status = UNSAVED
            text += "; what was trained since the last checkpoint is lost; the same command"
            text += " goes on from there"
        print(f"fairseq_deepnet: {text}", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


_listener: Listener | None = None


def listen() -> None:
    """Hear the signals from here on, where this process is fairseq-train; at most once."""
    global _listener
    if _listener is not None or not _is_fairseq_train():
        return
    if threading.current_thread() is not threading.main_thread():
        return  # Python takes handlers from the main thread alone
    _listener = Listener()
    if _is_spawned() or "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    else:
        # of the process that counts semaphores: it would have the last word, after the error
        filters = [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker:UserWarning"]
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, filters))
        _end_as_spawned_processes_do(_listener)
    os.register_at_fork(after_in_child=_forget)
    atexit.register(_ignore)
    _protect_workers()


def listener() -> Listener | None:
    """Return what `listen` has begun; None in other programs."""
    return _listener


def _is_fairseq_train() -> bool:
    """True for fairseq-train and processes that it has spawned, not for programs that call it."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    return program.stem == "fairseq-train" or program.parts[-2:] == ("fairseq_cli", "train.py")


def _is_spawned() -> bool:
    return multiprocessing.process.parent_process() is not None


def _is_alone() -> bool:
    """Return True if no other process waits for this one; asked before there is a trainer."""
    together = _is_spawned() or "--distributed-no-spawn" in sys.argv
    return not together and int(os.environ.get("WORLD_SIZE", 1)) == 1


def _end_as_spawned_processes_do(heard_by: Listener) -> None:
    """Give fairseq-train the exit status of the processes that it has spawned."""

    @wrap(sys, "excepthook")
    def hook(previous: Any, kind: Any, error: BaseException, traceback: Any) -> None:
        status = getattr(error, "exit_code", None)  # torch's ProcessExitedException
        if heard_by.heard is not None and status == -heard_by.heard:
            status = PREEMPTED  # it had not yet come to listen
        if status not in (PREEMPTED, UNSAVED, DIVERGED):
            previous(kind, error, traceback)
            return
        raise SystemExit(status)


def _ignore() -> None:
    """Let a signal that comes after the end of the training change nothing."""
    for number in PREEMPTING:
        signal.signal(number, signal.SIG_IGN)


def _forget() -> None:
    """Leave signals alone in a forked process: they are no business of it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _protect_workers() -> None:
    """Let workers that load data end by their parent's SIGTERM alone.

    A signal to all processes of a job would end them before the update that needs their batches,
    and torch ends the training with the first of them.
    """
    if not hasattr(signal, "sigwaitinfo"):
        return

    def heed_parent() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    @wrap(signal_handling, "_set_worker_signal_handlers")
    def set_worker_signal_handlers(prepare: Any) -> None:
        prepare()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=heed_parent, daemon=True).start()


def _attend(program: ModuleType | None) -> None:
    """Let the training that is preempted hear when fairseq-train has logged an update."""
    if program is None or hasattr(program, "attended"):
        return

    @wrap(program, "validate_and_save")
    def attended(
        validate_and_save: Any, cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *rest: Any
    ) -> Any:
        training = None if _listener is None else _listener.training
        if training is not None and training.trainer is trainer:
            training.logged(epoch_itr)
        return validate_and_save(cfg, trainer, task, epoch_itr, *rest)

    program.attended = attended  # type: ignore[attr-defined]


class Preemption(Observer):
    """Ends one training when its processes were signalled."""

    def __init__(self, listener: Listener, trainer: Any) -> None:
        self.listener = listener
        self.trainer = trainer
        self.is_first = bool(trainer.is_data_parallel_master)
        self.alone = trainer.data_parallel_world_size == 1
        self.kept = 0  # updates that a checkpoint holds
        self.made = self.ending = False
        self.epoch_itr: Any = None
        self.flag: Any = False  # or a tensor on fairseq's device
        _attend(training_program())
        wrap(trainer, "valid_step")(self._follow_validation)
        wrap(trainer, "save_checkpoint")(self._follow_save)
        if not self.alone:
            wrap(trainer, "_aggregate_logging_outputs")(self._share)
        listener.grace = float(os.environ.get(_GRACE_VARIABLE, GRACE))
        listener.training = self

    def _share(
        self, aggregate: Any, outputs: Any, *stats: Any, ignore: bool = False
    ) -> tuple[Any, Any]:
        """Let every process know, at each update and batch of a validation, whether any of them was
        signalled: one more number in the sum of statistics that fairseq makes anyway.
        """
        own = float(self.listener.heard is not None)
        outputs, (*sums, signalled) = aggregate(outputs, *stats, own, ignore=ignore)
        self.flag = signalled > 0
        return outputs, sums

    @property
    def asked(self) -> bool:
        """True if a process was signalled; the same in all of them."""
        return self.listener.heard is not None if self.alone else bool(self.flag)

    def is_saved(self) -> bool:
        """Return True if every update is in a checkpoint, or if it is another rank that knows."""
        if not self.trainer.should_save_checkpoint_on_current_rank:
            return True
        return bool(self.trainer.get_num_updates() <= self.kept)

    def loaded(self, trainer: Any, update: int) -> None:
        self.kept = update
        if self.is_first:
            ended.clear(run_folder(Path(trainer.cfg.checkpoint.save_dir)))

    def end(self, trainer: Any, update: int, made: bool) -> None:
        self.made = made

    def logged(self, epoch_itr: Any) -> None:
        """After an update, or a failed try; before fairseq validates and saves, if it is to."""
        self.epoch_itr = epoch_itr
        if self.made and self.asked and not self.ending:
            self._save_and_leave(self.trainer.get_num_updates())
        self.made = False

    def _follow_validation(self, valid_step: Any, *args: Any, **kwargs: Any) -> Any:
        output = valid_step(*args, **kwargs)
        if self.asked and not self.ending:
            self._save_and_leave(self.trainer.get_num_updates())
        return output

    def _follow_save(self, save: Any, *args: Any, **kwargs: Any) -> Any:
        """Note what fairseq's own checkpoints hold, so that a later hang does not count as loss."""
        result = save(*args, **kwargs)
        if not self.trainer.cfg.checkpoint.no_save_optimizer_state:
            self.kept = self.trainer.get_num_updates()
        return result

    def _save_and_leave(self, update: int) -> None:
        """End the training, but for one of which only the last validation is left."""
        if update > self.kept:
            self._save(update)
        if self.epoch_itr is None or not self._ends_with(update):
            self._leave(update)
        self.ending = True  # what is left is made up for where the grace period is over before

    def _ends_with(self, update: int) -> bool:
        """Return True if the training ends with this update anyway."""
        settings = self.trainer.cfg.optimization
        is_last_epoch = self.epoch_itr.epoch >= (settings.max_epoch or math.inf)
        return update >= (settings.max_update or math.inf) or (
            is_last_epoch and self.epoch_itr.end_of_epoch()
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
                    self._write()
                except Exception as error:
                    logger.exception("no checkpoint was saved")
                    problem = f"{type(error).__name__}: {error}"
            if not problem and cfg.no_save_optimizer_state:
                problem = "--no-save-optimizer-state has kept the weights alone"
        problem = broadcast_from_rank0(trainer, problem)
        if problem:
            if self.is_first:
                logger.error("preempted at update %d, not saved: %s", update, problem)
                ended.write(run_folder(Path(cfg.save_dir)), ended.Why.UNSAVED, update)
            raise SystemExit(UNSAVED)
        self.kept = update

    def _write(self) -> None:
        trainer, cfg = self.trainer, self.trainer.cfg.checkpoint
        owed = {"epoch": self.epoch_itr.epoch, "end_of_epoch": self.epoch_itr.end_of_epoch()}
        extra = {**extra_state(trainer, self.epoch_itr), OWED: owed}
        trainer.save_checkpoint(str(last_of(trainer)), extra)
        if cfg.write_checkpoints_asynchronously:
            PathManager.async_close()

    def _leave(self, update: int) -> NoReturn:
        if self.is_first:
            cfg, last = self.trainer.cfg.checkpoint, last_of(self.trainer)
            ended.write(run_folder(last.parent), ended.Why.PREEMPTED, update)
            resets = [
                f"--{name.replace('_', '-')}" for name in cfg if "reset_" in name and cfg[name]
            ]
            how = "" if cfg.restore_file == LAST else f"--restore-file {LAST}"
            how += f"{', ' if how else ''}without {' '.join(resets)}," if resets else ""
            logger.warning(
                "preempted: update %d is saved in %s; %s goes on from there",
                *(update, last, how or "the same command"),
            )
        raise SystemExit(PREEMPTED)
