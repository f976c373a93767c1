"""The options of `deepnet train`, and the supervisor of a training run.

The supervisor plans the run, starts one child (fairseq-train or its launcher), and returns one of
these exit statuses:

    0     complete
    85    preempted: the same command resumes
    86    diverged, and no fallback remains
    130   interrupted by Ctrl-C
    143   ended by a signal, without saving a checkpoint
    2     an error that the user can fix
    other the exit status of the child

To save memory, this module imports neither torch nor fairseq. Plans are computed in processes that
exit before the child starts.
"""

import argparse
import contextlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from fairseq_deepnet import ended
from fairseq_deepnet.ended import Why
from fairseq_deepnet.files import ROOT, try_lock
from fairseq_deepnet.tools.devices import all_cores, threads_of
from fairseq_deepnet.tools.training.launch import LAUNCHERS, PRECISIONS, Plan
from fairseq_deepnet.tools.training.progress import Progress

RUNS: Final = ROOT / "runs"
TICK: Final = 0.1
"""Interval in seconds at which the child is checked."""
LEEWAY: Final = 15.0
"""Seconds after the grace period for torchrun to kill its processes before this module does."""
ENDING: Final = 2.0
"""Seconds in which a repeated signal is ignored, and in which an earlier run may still exit."""
TAIL: Final = 1 << 16
"""Number of bytes at the end of the log that are searched for errors."""
ERROR: Final = "\nfairseq_deepnet: error: "
"""Prefix of the line in which fairseq-train reports an error that the user can fix."""
_DONE: Final = "| fairseq_cli.train | done training in "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `deepnet train`; scripts/train.sh has a variable for each."""
    add = parser.add_argument
    add("config", help="a YAML file or a name in configs/")
    add("--run", type=Path, help="run folder (runs/CONFIG)")
    add("--data", type=Path, help="data folder (the config's)")
    add("--gpus", default="all", help="GPUs per machine; 0 trains on the CPU (all visible)")
    add("--nodes", type=int, default=1, help="number of machines (1)")
    add("--node-rank", type=int, help="this machine's number, from 0, for torchrun")
    add("--launcher", default="auto", choices=LAUNCHERS, help="launcher of processes (auto)")
    add("--cpu-processes", type=int, default=1, help="processes per machine without GPUs (1)")
    add("--threads", type=int, help="threads of each CPU process (cores / CPU processes)")
    add("--precision", default="auto", choices=PRECISIONS, help="auto: half precision on GPUs")
    add("--preemption-grace", type=int, default=90, help="seconds for saving after a signal (90)")
    add("--resume", action="store_true", help="resume even if settings have changed")
    add("--dry-run", action="store_true", help="only print the plan and the command")
    add("extra", nargs="*", default=[], help="options of fairseq-train, after --")


def run(args: argparse.Namespace) -> int:
    """Train a model, and return the exit status."""
    if args.run is None:
        args.run = RUNS / Path(args.config).name.removesuffix(".yaml")
    if args.dry_run:
        return _plan(args).status
    threads = args.threads or threads_of(max(1, args.cpu_processes), all_cores())
    os.environ |= {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    with _caught_signals() as caught, _locked(args.run, needed=not args.node_rank):
        while True:
            plan = planned_apart(args)
            if caught:
                reason = Why.INTERRUPTED if signal.SIGINT in caught else Why.PREEMPTED
                say(f"{reason} before the run started; the same command starts it")
                return ended.INTERRUPTED if reason == Why.INTERRUPTED else ended.PREEMPTED
            if not plan.command:
                return plan.status
            child = Child(plan, args.run, args.node_rank or 0, args.preemption_grace)
            status = child.train(caught)
            if status == 0:
                say(f"trained: {args.run}")
                if not args.node_rank:
                    ended.write(args.run, Why.COMPLETE, child.view.updates)
            if status != ended.DIVERGED or not plan.falls_back:
                return status
            if child.signal is not None:
                say("diverged, and preempted; the same command falls back and resumes")
                return ended.INTERRUPTED if child.signal == signal.SIGINT else ended.PREEMPTED


def say(text: str) -> None:
    """Log a message of the supervisor to standard error."""
    _print([f"[train] {text}"], sys.stderr)


def _print(lines: Sequence[str], file: TextIO | None = None) -> None:
    """Print lines, unless the terminal is closed."""
    with contextlib.suppress(OSError, ValueError):
        print(*lines, sep="\n", end="\n" if lines else "", file=file, flush=True)


def _plan(args: argparse.Namespace) -> Plan:
    from fairseq_deepnet.tools.training.settle import plan_run

    return plan_run(args)


def planned_apart(args: argparse.Namespace) -> Plan:
    """Plan in a separate process, and raise that process's errors here."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context, ended.end_with_parent, (signal.SIGKILL,)) as pool:
        return pool.submit(_plan, args).result()


class Child:
    """Process that the supervisor starts on this machine, and whose output becomes the log.

    Args:
        node: index of this machine, from 0
        grace: seconds until the process must have exited after a signal
    """

    def __init__(self, plan: Plan, run: Path, node: int = 0, grace: float = 90) -> None:
        self.command, self.run, self.grace = list(plan.command), run, grace
        self.view = Progress(plan.max_update)
        self.log = run / (f"node{node}.log" if node else "train.log")
        self.launcher = Path(self.command[0]).name
        self.begins = self.log.stat().st_size if self.log.exists() else 0
        self.signal: int | None = None  # the first forwarded signal
        self.ends_by = math.inf  # end of the grace period

    def train(self, caught: deque[int]) -> int:
        """Run the child, forward the signals in `caught`, and return the run's exit status."""
        say(f"training; everything is logged in {self.log}; Ctrl-C saves and stops")
        say("nll: negative log-likelihood in bits per token, without label smoothing")
        process = self._start()
        with self.log.open("rb") as log:
            log.seek(self.begins)
            try:
                while process.poll() is None and time.monotonic() <= self.ends_by + LEEWAY:
                    while caught:
                        self._pass_on(caught.popleft(), process)
                    self._show(log)
                    time.sleep(TICK)
            finally:
                _signal(signal.SIGKILL, -process.pid)
                process.wait()
            self._show(log, is_over=True)
        return self._judge(process.returncode)

    def _show(self, log: BinaryIO, is_over: bool = False) -> None:
        lines = self.view.read(log, is_over)
        if self.signal is None:  # torchrun prints a traceback for a signal
            _print(lines)

    @property
    def _ending(self) -> signal.Signals:
        """Signal that ends the run. srun forwards SIGUSR1 but kills its tasks on SIGTERM."""
        return signal.SIGUSR1 if self.launcher == "srun" else signal.SIGTERM

    def _start(self) -> subprocess.Popen[bytes]:
        def prepare() -> None:
            # scripts start background commands with SIGINT ignored
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            ended.end_with_parent(self._ending)

        self.run.mkdir(parents=True, exist_ok=True)  # if node 0 has not yet created it
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                close_fds=False,  # the run folder stays locked until the last process exits
                preexec_fn=prepare,
            )

    def _pass_on(self, number: int, process: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        if self.signal is None:
            say(f"{signal.Signals(number).name}: ending after this update, with a checkpoint")
            self.signal, self.ends_by = number, now + self.grace
            _signal(self._ending, process.pid)
        elif now > self.ends_by - self.grace + ENDING:  # a second signal, not a repetition
            self.ends_by = now - LEEWAY

    def tail(self) -> str:
        """Return the end of the log, without the lines of earlier children."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self.begins, self.log.stat().st_size - TAIL))
            return file.read().decode("utf-8", errors="replace")
        return ""

    def _judge(self, status: int) -> int:
        """Return the exit status of the run, and log why the run ended."""
        last = ended.read(self.run)  # torchrun and srun hide the exit status
        why = last.get("why")
        if status == 0 or (self.signal is not None and _DONE in self.tail()):
            return 0
        if why == Why.DIVERGED or status == ended.DIVERGED:
            say("diverged; see the lines above")
            return ended.DIVERGED
        reason = Why.INTERRUPTED if self.signal == signal.SIGINT else Why.PREEMPTED
        # the supervisor of another node may already have recorded Ctrl-C
        is_recorded = why in (Why.PREEMPTED, Why.INTERRUPTED)
        is_saved = is_recorded or status == ended.PREEMPTED
        if self.signal is None and not is_saved and why != Why.UNSAVED:
            if ERROR in f"\n{self.tail()}":
                status = 2  # torchrun hides this status
            status = 128 - status if status < 0 else status
            say(f"{self.launcher} ended with status {status}; see the end of {self.log}")
            return status
        is_unsaved = why == Why.UNSAVED or status == ended.UNSAVED
        if not is_saved and (is_unsaved or time.monotonic() > self.ends_by):
            say(f"ended by a signal, not saved; see the end of {self.log}")
            status = ended.UNSAVED
        else:
            update = f" at update {last['update']:,}" if is_recorded else ""
            if is_recorded and reason == Why.INTERRUPTED:  # the child received SIGTERM
                ended.write(self.run, reason, last["update"])
            say(f"{reason}{update}; the same command resumes")
            status = ended.PREEMPTED
        return ended.INTERRUPTED if reason == Why.INTERRUPTED else status


def _signal(number: int, process: int) -> None:
    """Signal a process, or a process group if `process` is negative, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


@contextlib.contextmanager
def _caught_signals() -> Iterator[deque[int]]:
    """Collect signals that would end this process, so that the supervisor can handle them."""
    caught: deque[int] = deque()
    before: dict[int, Any] = {}
    for number in (*ended.PREEMPTING, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and & set this
            before[number] = signal.signal(number, lambda number, _: caught.append(number))
    try:
        yield caught
    finally:
        for caught_number, handler in before.items():
            signal.signal(caught_number, handler)


@contextlib.contextmanager
def _locked(run: Path, needed: bool) -> Iterator[None]:
    """Lock a run folder, if `needed`, before its first record is written.

    Child processes inherit the lock. A folder that remains empty is removed.
    """
    if not needed:
        yield
        return
    run.mkdir(parents=True, exist_ok=True)
    lock = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.set_inheritable(lock, True)
        deadline = time.monotonic() + ENDING
        while not try_lock(lock):
            if time.monotonic() > deadline:
                raise ValueError(f"another process uses {run}; wait for it, or set RUN=FOLDER")
            time.sleep(TICK)
        try:
            yield
        finally:
            if [path.name for path in run.iterdir()] == [".lock"]:
                (run / ".lock").unlink()
                run.rmdir()
    finally:
        os.close(lock)
