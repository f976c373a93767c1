"""`deepnet train`: its options, and the supervisor of a training run.

The supervisor plans the run, starts one child, fairseq-train or its launcher, and sees it to its
end:

    complete     done
    preempted    exit status 85: the queue gives the same command again
    diverged     --on-divergence fallback: planned again, from the newest checkpoint before; else,
                 or where no fallback is left, exit status 86
    failed       fairseq-train's status; 2 where the user can fix what is wrong

Nothing is imported here that needs torch or fairseq: the memory of the machine is the training's.
Plans are computed in processes of their own, which end before the training begins.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NoReturn

from fairseq_deepnet import ended
from fairseq_deepnet.ended import Why
from fairseq_deepnet.files import ROOT, try_lock
from fairseq_deepnet.tools.devices import all_cores, threads_of
from fairseq_deepnet.tools.training.launch import Plan
from fairseq_deepnet.tools.training.progress import Progress

RUNS: Final = ROOT / "runs"
TICK: Final = 0.1
"""Seconds between two looks at the child."""
LEEWAY: Final = 15.0
"""Seconds beyond the grace period before the child is killed; torchrun kills its processes when the
grace period is over."""
ENDING: Final = 2.0
"""Seconds in which a signal is a repetition of the one before, and a former training ends."""
TAIL: Final = 1 << 16
"""Bytes at the end of the log in which an error or the end of the training is looked for."""
ERROR: Final = "\nfairseq_deepnet: error: "
"""Beginning of the line that ends fairseq-train where the user can fix what is wrong."""
_DONE: Final = "| fairseq_cli.train | done training in "
_UPDATE: Final = re.compile(r'num_updates": "?(\d+)')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `deepnet train`; scripts/train.sh has a variable for each."""
    add = parser.add_argument
    add("config", help="a YAML file, or a name in configs/")
    add("--run", type=Path, help="run folder (runs/CONFIG)")
    add("--data", type=Path, help="data folder (the recipe's)")
    add("--gpus", default="all", help="GPUs to use; 0 is the CPU (all visible)")
    add("--nodes", type=int, default=1, help="machines (1)")
    add("--node-rank", type=int, help="number of this machine, from 0 (torchrun)")
    add("--launcher", default="auto", help="auto, torchrun or slurm")
    add("--node-timeout", type=int, default=600, help="seconds that nodes wait for another (600)")
    add("--cpu-processes", type=int, default=1, help="processes on the CPU (1)")
    add("--threads", type=int, help="of each CPU process (cores / CPU processes)")
    add("--memory", help="GiB of one GPU, or auto: add the options that make it fit (no question)")
    add("--precision", default="auto", help="auto, bf16, fp16 or fp32")
    add(
        "--preemption-grace",
        type=int,
        default=90,
        help="seconds to finish an update and save it after a signal (90)",
    )
    add("--resume", action="store_true", help="resume with other settings")
    add("--dry-run", action="store_true", help="show plan and commands, write nothing")
    add("extra", nargs="*", help="options of fairseq-train, after --")


def run(args: argparse.Namespace) -> int:
    """Train; return the exit status."""
    if args.run is None:
        args.run = RUNS / Path(args.config).name.removesuffix(".yaml")
    if args.dry_run:
        return _plan(args).status
    threads = args.threads or threads_of(max(1, args.cpu_processes), all_cores())
    os.environ |= {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    with _caught_signals() as caught, _locked(args.run, wanted=not args.node_rank):
        while True:
            plan = planned_apart(args)
            if caught:
                say("preempted before the training began; the same command begins it")
                return ended.PREEMPTED
            if not plan.command:
                return plan.status
            if plan.submits:
                _submit(args, plan.command)
            child = Child(plan.command, args.run, args.node_rank or 0, args.preemption_grace)
            if plan.remark:
                child.note(plan.remark)
            status = child.train(caught)
            if status == 0:
                _finish(args, child)
            if status != ended.DIVERGED or not plan.falls_back:
                return status
            if child.signalled:
                say("diverged, and preempted; the same command falls back and resumes")
                return ended.PREEMPTED


def say(text: str) -> None:
    """Print one line on standard error, if that is still there."""
    with contextlib.suppress(OSError):  # the terminal may be gone, and the training is not
        print(f"[train] {text}", file=sys.stderr, flush=True)


def _plan(args: argparse.Namespace) -> Plan:
    from fairseq_deepnet.tools.training.settle import plan_run

    return plan_run(args)


def planned_apart(args: argparse.Namespace) -> Plan:
    """Plan in a process of its own; raises what planning raises."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context, _begin_planning) as pool:
        return pool.submit(_plan, args).result()


def _begin_planning() -> None:
    ended.end_with_parent(signal.SIGKILL)  # what it writes is whole or not there
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _finish(args: argparse.Namespace, child: Child) -> None:
    if args.node_rank:
        say(f"trained: {args.run}, with node {args.node_rank} of {args.nodes}")
        return
    ended.write(args.run, Why.COMPLETE, max(map(int, _UPDATE.findall(child.tail())), default=0))
    say(f"trained: {args.run}")
    is_monolingual = option(child.command, "--task") in ("language_modeling", "masked_lm")
    what = "perplexity" if is_monolingual else "evaluate"
    say(f"next: deepnet {what} {shlex.quote(str(args.run))}")


class Child:
    """The one process that the supervisor starts on this machine; it writes into the log itself.

    Args:
        command: fairseq-train or its launcher, with all options
        run: the run folder
        node: number of this machine, from 0
        grace: seconds that it has to end after a signal
    """

    def __init__(self, command: Sequence[str], run: Path, node: int = 0, grace: float = 90) -> None:
        self.command, self.run, self.grace = list(command), run, grace
        self.log = run / (f"node{node}.log" if node else "train.log")
        self.launcher = Path(command[0]).name
        self.begins = self.log.stat().st_size if self.log.exists() else 0
        self.signalled = self.interrupted = False
        self.deadline = math.inf
        self.ends_by = math.inf  # after that, processes were killed

    def note(self, text: str) -> None:
        """Write a line of the supervisor's own into the log."""
        with contextlib.suppress(OSError), self.log.open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def train(self, caught: deque[int]) -> int:
        """Train; return the exit status.

        Args:
            caught: signals that came and are still to be passed on
        """
        say(f"training; everything is logged in {self.log}; Ctrl-C stops it")
        limit = option(self.command, "--max-update")
        view = Progress(int(limit) if limit else None)
        process = self._start()
        with self.log.open("rb") as log:
            log.seek(self.begins)
            try:
                while process.poll() is None and time.monotonic() <= self.deadline:
                    while caught:
                        self._pass_on(caught.popleft(), process)
                    self._show(view.read(log))
                    time.sleep(TICK)
            finally:
                _signal(signal.SIGKILL, -process.pid)
                process.wait()
            self._show(view.read(log, is_over=True))
        return self._judge(process.returncode)

    def _show(self, lines: Sequence[str]) -> None:
        if lines and not self.interrupted:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                print("\n".join(lines), flush=True)

    def _start(self) -> subprocess.Popen[bytes]:
        # srun kills its tasks at SIGTERM; any other signal it passes on
        ends = signal.SIGUSR1 if self.launcher == "srun" else signal.SIGTERM

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in the background of a script
            ended.end_with_parent(ends)

        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                close_fds=False,  # the lock of the run folder is held until the last has ended
                preexec_fn=prepare,
            )

    def _pass_on(self, number: int, process: subprocess.Popen[bytes]) -> None:
        now, is_srun = time.monotonic(), self.launcher == "srun"
        if number == signal.SIGINT:
            self.deadline = now if self.interrupted else now + self.grace + LEEWAY
            self.interrupted = True
            # srun takes a SIGINT for a question
            _signal(signal.SIGTERM if is_srun else number, -process.pid)
            return
        if not self.signalled:
            say(f"{signal.Signals(number).name}: ending after this update, with a checkpoint")
            self.ends_by, self.deadline = now + self.grace, now + self.grace + LEEWAY
            _signal(signal.SIGUSR1 if is_srun else signal.SIGTERM, process.pid)
        elif now > self.ends_by - self.grace + ENDING:  # no repetition of the same signal
            self.ends_by = self.deadline = now
        self.signalled = True

    def tail(self) -> str:
        """Return the end of what this child has logged."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self.begins, self.log.stat().st_size - TAIL))
            return file.read().decode("utf-8", errors="replace")
        return ""

    def _judge(self, status: int) -> int:
        """Return why the training ended, as an exit status; say so unless it is complete."""
        why = ended.read(self.run).get("why")  # torchrun and srun pass no status on
        if status == 0 or (self.signalled and _DONE in self.tail()):
            return 0
        if self.interrupted:
            say("stopped; the same command resumes from the last checkpoint, if there is one")
            return ended.INTERRUPTED
        if why == Why.DIVERGED or status == ended.DIVERGED:
            say("diverged, and ended: the lines above say why")
            return ended.DIVERGED
        if why == Why.PREEMPTED or status == ended.PREEMPTED:
            say("preempted; the same command resumes where it was")
            return ended.PREEMPTED
        if why == Why.UNSAVED or status == ended.UNSAVED or time.monotonic() > self.ends_by:
            say(f"ended by a signal, not saved; see the end of {self.log}")
            return ended.UNSAVED
        if self.signalled:  # without a handler of its own yet
            say("preempted before the training began; the same command begins it")
            return ended.PREEMPTED
        if ERROR in f"\n{self.tail()}":
            status = 2  # which torchrun does not pass on
        status = 128 - status if status < 0 else status
        say(f"{self.launcher} ended with status {status}; see the end of {self.log}")
        return status


def option(command: Sequence[str], name: str) -> str | None:
    """Return the value of an option in a command line; the last one counts."""
    value = None
    for word, after in zip(command, [*command[1:], ""], strict=True):
        if word == name:
            value = after
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _signal(number: int, process: int) -> None:
    """Signal a process, or a group where it is negative, if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


@contextlib.contextmanager
def _caught_signals() -> Iterator[deque[int]]:
    """Collect the signals that end a training, in place of acting on them."""
    caught: deque[int] = deque()
    before: dict[int, Any] = {}
    for number in (*ended.PREEMPTING, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and & have it
            before[number] = signal.signal(number, lambda number, _: caught.append(number))
    try:
        yield caught
    finally:
        for caught_number, handler in before.items():
            signal.signal(caught_number, handler)


@contextlib.contextmanager
def _locked(run: Path, wanted: bool) -> Iterator[None]:
    """Hold the lock of a run folder: one training per folder, before its first record is written.

    Every process started from here holds it, too. A folder that stays empty is removed.
    """
    if not wanted:
        yield
        return
    run.mkdir(parents=True, exist_ok=True)
    lock = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.set_inheritable(lock, True)
        deadline = time.monotonic() + ENDING
        while not try_lock(lock):
            if time.monotonic() > deadline:
                raise ValueError(
                    f"another training is at work in {run}; wait for it, or set RUN=FOLDER"
                )
            time.sleep(TICK)
        try:
            yield
        finally:
            if [path.name for path in run.iterdir()] == [".lock"]:
                (run / ".lock").unlink()
                run.rmdir()
    finally:
        os.close(lock)


def _submit(args: argparse.Namespace, command: Sequence[str]) -> NoReturn:
    """Become sbatch; the job runs scripts/train.sh, from the project's folder."""
    args.run.mkdir(parents=True, exist_ok=True)
    given = vars(args) | {"run": args.run.resolve(), "resume": int(args.resume)}
    if args.data is not None and args.data.is_dir():
        given["data"] = args.data.resolve()
    names = ("run", "data", "gpus", "launcher", "node_timeout", "threads", "memory")
    for name in (*names, "precision", "preemption_grace", "resume"):
        if given[name] is not None:
            os.environ[name.upper()] = str(given[name])
    os.chdir(ROOT)
    os.execvp(command[0], list(command))
