"""The supervisor of a training: starts fairseq-train, sees why it ended, decides what follows.

    complete     done
    preempted    exit status 85: the queue gives the same command again
    diverged     --on-divergence fallback: again from the last good state, with gentler options;
                 else, or where no fallback is left, exit status 86
    failed       fairseq-train's status, and which process it was

On several nodes each supervisor reads the same record in the run folder, which they share; node 0's
rolls back. What needs torch or fairseq is done in processes of their own, which end before the
training begins: its memory is the training's.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shlex
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from fairseq_deepnet import signals
from fairseq_deepnet.files import ROOT, shown, try_lock, write_text
from fairseq_deepnet.tools.training import nodes
from fairseq_deepnet.tools.training.fallbacks import FallbackState, SupervisorPlan
from fairseq_deepnet.tools.training.processes import Processes, check_nodes, option, say

Result = TypeVar("Result")


class _SignalledEarlyError(Exception):
    """SIGTERM or SIGUSR1 came before there was a training."""


def _end_early(*_: object) -> NoReturn:
    raise _SignalledEarlyError


def train(args: argparse.Namespace) -> int:
    """Plan a training, of `deepnet train`'s arguments, and supervise it; return the exit status."""
    is_first = not args.node_rank
    before = {number: signal.getsignal(number) for number in signals.PREEMPTING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _end_early)
    lock = RunLock(args.run)
    try:
        if is_first:
            lock.take()  # before the first record is written
        plan = apart(lambda: _plan(args))
        if plan.command[:1] == ("sbatch",):
            _submit(args, list(plan.command))
        if not plan.command:
            return 0
        return Supervisor(args, plan).supervise()
    except _SignalledEarlyError:
        say("preempted before the training began; the same command begins it")
        return signals.PREEMPTED
    finally:
        lock.leave_no_empty_folder()
        for number, handler in before.items():
            signal.signal(number, handler)


class Supervisor:
    """One training, from its start to its end, however many attempts that takes."""

    def __init__(self, args: argparse.Namespace, plan: SupervisorPlan) -> None:
        self.run, self.plan, self.state = args.run, plan, plan.state
        self.node, self.nodes, self.patience = args.node_rank or 0, args.nodes, args.node_timeout
        grace = args.preemption_grace
        self.grace = [] if grace is None else ["--preemption-grace", str(grace)]
        is_ours = plan.command[0] == "fairseq-train" and "--distributed-no-spawn" in plan.command
        self.processes = args.cpu_processes if is_ours else 1
        self.caught: deque[int] = deque()
        self.signalled = False

    def supervise(self) -> int:
        """Train to the end; return the exit status."""
        for number in (*signals.PREEMPTING, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and & have it
                signal.signal(number, lambda number, _: self.caught.append(number))
        try:
            if self.plan.command[0] == "srun":
                check_nodes(self.run, self.nodes)
            if self.plan.announcement is not None:
                nodes.announce(self.run, self.plan.announcement)
            while True:
                status = self._attempt()
                if status == 0:
                    self._finish()
                if status != signals.DIVERGED or not self._falls_back():
                    return status
                if signal.SIGINT in self.caught:
                    say("stopped; the same command goes on from the last good state")
                    return signals.INTERRUPTED
                if self.signalled or self.caught:
                    say("preempted; the same command goes on where it was")
                    return signals.PREEMPTED
        finally:
            if not self.node:
                nodes.withdraw(self.run)

    def _attempt(self) -> int:
        command = [*self.plan.attempt(self.state), *self.grace]
        attempt = Processes(command, self.run, self.processes, self.node, self.state.step)
        say(
            f"training; everything is logged in {attempt.log};"
            " Ctrl-C stops, the same command goes on"
        )
        status = attempt.train(self.caught)
        self.signalled = attempt.preempted
        return status

    def _falls_back(self) -> bool:
        """Take a fallback after a divergence; False where there is none to take."""
        steps = self.plan.fallbacks
        if steps is None:
            say("diverged, and ended: the lines above say why and how to go on")
            return False
        try:
            if self.node:
                say("diverged; waiting for node 0 to roll back")
                state = nodes.wait_for_fallback(
                    self.run, self.state.step, len(steps), self.patience, lambda: bool(self.caught)
                )
            else:
                state = apart(lambda: _fall_back(self.run, self.plan, self.state))
        except (ValueError, OSError) as error:
            say(f"diverged, and no fallback could be taken: {error}")
            return False
        if (self.signalled or self.caught) and (self.node or state is not None):
            return True  # and the same command goes on with it
        if state is None:
            say(
                f"diverged, and no fallback is left after {self.state.step}"
                f" ({shown(self.run)}/fallback.json); the lines above say how to go on"
            )
            return False
        self.state = state
        say(str(state))
        if not self.node:
            with (self.run / "train.log").open("a", encoding="utf-8") as log:
                log.write(f"{state}\n")
        return True

    def _finish(self) -> None:
        if self.node:
            say(f"trained: {self.run}, with node {self.node} of {self.nodes}")
            return
        write_text(self.run / "done", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n")
        say(f"trained: {self.run}")
        alone = option(self.plan.command, "--task") in ("language_modeling", "masked_lm")
        script = f"scripts/eval_{'perplexity' if alone else 'bleu'}.sh"
        say(f"next: bash {script} {shlex.quote(str(self.run))}")


ENDING: Final = 2.0
"""Seconds that the last process of a training which has ended may take to go."""


class RunLock:
    """One training a folder: the lock is held by every process started from here.

    It ends with the last of them. Further nodes join the training of node 0, which holds it.
    """

    def __init__(self, run: Path) -> None:
        self.file = run / ".lock"
        self.held: int | None = None
        above = [run, *run.parents]
        self.created = [path for path in above if not path.exists()]  # the innermost first

    def take(self) -> int:
        """Return the file that is locked; ValueError where another training has it."""
        if self.held is None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.held = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666)
            os.set_inheritable(self.held, True)
            deadline = time.monotonic() + ENDING
            while not try_lock(self.held):
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"another training is at work in {self.file.parent} ({self._holders()});"
                        " wait for it, or set RUN=FOLDER"
                    )
                time.sleep(0.1)
        return self.held

    def leave_no_empty_folder(self) -> None:
        """Remove the folders that were made for the lock alone."""
        run = self.file.parent
        if run in self.created and [path.name for path in run.iterdir()] == [self.file.name]:
            self.file.unlink()
            with contextlib.suppress(OSError):
                for folder in self.created:
                    folder.rmdir()

    def _holders(self) -> str:
        found = set()
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if link.readlink() == self.file.resolve():
                    found.add(int(link.parts[2]))
        found.discard(os.getpid())
        if found:
            return f"process {' '.join(map(str, sorted(found)))}"
        return "of another user, or on another machine"


def _plan(args: argparse.Namespace) -> SupervisorPlan:
    from fairseq_deepnet.tools.training.planned_run import plan_run

    return plan_run(args)


def _fall_back(run: Path, plan: SupervisorPlan, state: FallbackState) -> FallbackState | None:
    from fairseq_deepnet.tools.training.planned_run import fall_back

    return fall_back(run, plan, state)


def _submit(args: argparse.Namespace, command: list[str]) -> NoReturn:
    """Become sbatch; the job runs scripts/train.sh, from the project's folder."""
    args.run.mkdir(parents=True, exist_ok=True)
    given = vars(args) | {"run": args.run.resolve(), "resume": int(args.resume)}
    if args.data is not None and args.data.is_dir():
        given["data"] = args.data.resolve()
    names = ("run", "data", "gpus", "launcher", "precision", "memory", "resume", "preemption_grace")
    os.environ |= {name.upper(): str(given[name]) for name in names if given[name] is not None}
    os.chdir(ROOT)
    sys.stderr.flush()
    os.execvp(command[0], command)


def apart(work: Callable[[], Result]) -> Result:
    """Return what `work` gives in a process of its own, or raise what it raises.

    It is killed where this process is interrupted; what it writes is whole or not there.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(work, theirs), daemon=True)
    try:
        child.start()
        theirs.close()
        result = ours.recv()
    except EOFError:
        child.join()
        raise SystemExit(child.exitcode if (child.exitcode or 0) > 0 else 1) from None
    finally:
        if child.pid is not None:
            child.kill()
            child.join()
    if isinstance(result, Exception):
        raise result
    return result  # type: ignore[no-any-return]


def _work(work: Callable[[], Any], out: Any) -> None:
    for number in (*signals.PREEMPTING, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent's to act on
    try:
        result = work()
    except OSError as error:
        result = error
    except ValueError as error:
        result = ValueError(str(error))  # what kind of one is for this process alone
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
    sys.stdout.flush()
    sys.stderr.flush()
    out.send(result)
