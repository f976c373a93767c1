"""The supervisor of a training: one child, fairseq-train or its launcher, from start to end.

    complete     done
    preempted    exit status 85: the queue gives the same command again
    diverged     --on-divergence fallback: planned again, from the newest checkpoint before; else,
                 or where no fallback is left, exit status 86
    failed       fairseq-train's status

Nothing is imported here that needs torch or fairseq: the memory of the machine is the training's.
Plans are made in processes of their own, which end before the training begins.
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
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from fairseq_deepnet import ended, signals
from fairseq_deepnet.ended import Why
from fairseq_deepnet.files import ROOT, try_lock
from fairseq_deepnet.tools.training import progress

if TYPE_CHECKING:
    from fairseq_deepnet.tools.training.settle import Plan

Result = TypeVar("Result")
TICK: Final = 0.1
"""Seconds between two looks at the child."""
LEEWAY: Final = 15.0
"""Seconds beyond the grace period before the child is killed; torchrun kills its processes when the
grace period is over."""
ENDING: Final = 2.0
"""Seconds that the last process of an earlier training may take to end."""
TAIL: Final = 1 << 16
"""Bytes at the end of the log in which an error or the end of the training is looked for."""
_ERROR: Final = re.compile(
    r"(\[rank\d+\]: )?(?P<text>[\w.]*(Error|Exception|Interrupt)\b.*|fairseq_deepnet: .*)"
)
_LOST_PEER: Final = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|NCCL|[Tt]imed? ?out|DistNetworkError"
    r"|ChildFailedError|SignalException"
)
"""Errors of a process that lost another, and torchrun's own."""
_DONE: Final = "| fairseq_cli.train | done training in "
_UPDATE: Final = re.compile(r'num_updates": "?(\d+)')


def say(text: str) -> None:
    """Print one line on standard error, if that is still there."""
    with contextlib.suppress(OSError):  # the terminal may be gone, and the training is not
        print(f"[train] {text}", file=sys.stderr, flush=True)


def train(args: argparse.Namespace) -> int:
    """Plan a training, of `deepnet train`'s arguments, and see it to its end; return its status."""
    with _caught_signals() as caught, _locked(args.run, wanted=not args.node_rank):
        while True:
            plan = apart(lambda: _plan(args), caught)
            if caught:
                if signal.SIGINT in caught:
                    raise KeyboardInterrupt
                say("preempted before the training began; the same command begins it")
                return signals.PREEMPTED
            if plan is None or not plan.command:
                return plan.status if plan is not None else 1
            if plan.submits:
                _submit(args, list(plan.command))
            if plan.command[0] == "srun":
                _check_nodes(args.run, args.nodes)
            child = Child(plan.command, args.run, args.node_rank or 0, args.preemption_grace)
            if plan.remark:
                child.note(plan.remark)
            status = child.train(caught)
            if status == 0:
                _finish(args, child)
            if status != signals.DIVERGED or not plan.falls_back:
                return status
            if child.signalled:
                say("diverged, and preempted; the same command falls back and resumes")
                return signals.PREEMPTED


def _plan(args: argparse.Namespace) -> Plan:
    from fairseq_deepnet.tools.training.settle import plan_run

    return plan_run(args)


def _check_nodes(run: Path, nodes: int) -> None:
    """Raise ValueError where a node of a SLURM job does not see the run folder."""
    words = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    words += ["bash", "-c", "[[ -s $1 && -d $2 ]]", "_"]
    words += [str(run / "config.yaml"), str(run / "checkpoints")]
    if subprocess.run(words, check=False).returncode:
        raise ValueError(f"not every node sees {run}; RUN must be on storage that all nodes share")


def _finish(args: argparse.Namespace, child: Child) -> None:
    if args.node_rank:
        say(f"trained: {args.run}, with node {args.node_rank} of {args.nodes}")
        return
    ended.write(args.run, Why.COMPLETE, max(map(int, _UPDATE.findall(child.tail())), default=0))
    say(f"trained: {args.run}")
    alone = option(child.command, "--task") in ("language_modeling", "masked_lm")
    what = "perplexity" if alone else "evaluate"
    say(f"next: deepnet {what} {shlex.quote(str(args.run))}")


class Child:
    """The one process that the supervisor starts on this machine.

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
        reads, writes = os.pipe()
        screen = multiprocessing.get_context("fork").Process(
            target=self._follow, args=(reads, writes)
        )
        screen.start()  # it reads on where this process is killed
        os.close(reads)
        try:
            process = self._start(writes)
        finally:
            os.close(writes)
        try:
            while process.poll() is None:
                while caught:
                    self._pass_on(caught.popleft(), process, screen.pid)
                if time.monotonic() > self.deadline:
                    break
                time.sleep(TICK)
        finally:
            _signal(signal.SIGKILL, -process.pid)
            process.wait()
            screen.join(ENDING if self.interrupted else LEEWAY)
        return self._judge(process.returncode)

    def _follow(self, reads: int, writes: int) -> None:
        os.setpgid(0, 0)
        os.close(writes)
        limit = option(self.command, "--max-update")
        progress.follow(reads, self.log, progress.Progress(int(limit) if limit else None))

    def _start(self, output: int) -> subprocess.Popen[bytes]:
        # srun kills its tasks at SIGTERM; any other signal it passes on
        ends = signal.SIGUSR1 if self.launcher == "srun" else signal.SIGTERM

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in the background of a script
            signals.end_with_parent(ends)

        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            close_fds=False,  # the lock of the run folder is held until the last has ended
            preexec_fn=prepare,
        )

    def _pass_on(self, number: int, process: subprocess.Popen[bytes], screen: int | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT:
            self.deadline = now if self.interrupted else now + self.grace + LEEWAY
            self.interrupted = True
            # it shows no more, and srun takes a SIGINT for a question
            _signal(signal.SIGINT, screen)
            number = signal.SIGTERM if self.launcher == "srun" else number
            _signal(number, -process.pid)
            return
        if not self.signalled:
            say(f"{signal.Signals(number).name}: ending after this update, with a checkpoint")
            self.ends_by, self.deadline = now + self.grace, now + self.grace + LEEWAY
            _signal(signal.SIGUSR1 if self.launcher == "srun" else signal.SIGTERM, process.pid)
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
            saved = any(self.run.glob("checkpoints/*.pt"))
            place = "resumes from the last checkpoint" if saved else "begins it again"
            say(f"stopped; the same command {place}")
            return signals.INTERRUPTED
        if why == Why.DIVERGED or status == signals.DIVERGED:
            say("diverged, and ended: the lines above say why")
            return signals.DIVERGED
        if why == Why.PREEMPTED or status == signals.PREEMPTED:
            say("preempted; the same command resumes where it was")
            return signals.PREEMPTED
        if why == Why.UNSAVED or status == signals.UNSAVED or time.monotonic() > self.ends_by:
            say(f"ended by a signal, not saved; see the end of {self.log}")
            return signals.UNSAVED
        if self.signalled and (status in (-signal.SIGTERM, -signal.SIGUSR1) or status > 0):
            # without a handler of its own yet
            say("preempted before the training began; the same command begins it")
            return signals.PREEMPTED
        return self._blame(status)

    def _blame(self, status: int) -> int:
        """Report the error that ended the child; return its status."""
        errors = [
            match["text"] for match in map(_ERROR.fullmatch, self.tail().splitlines()) if match
        ]
        own = [text for text in errors if not _LOST_PEER.search(text)]
        error = (own or errors or [""])[-1].strip()
        how = f"ended with status {status}"
        if status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        say(f"{self.launcher} {how}{f': {error}' if error else ''}; see the end of {self.log}")
        if error.startswith(progress.ERROR):
            return 2  # which torchrun does not pass on
        return 128 - status if status < 0 else status


def option(command: Sequence[str], name: str) -> str | None:
    """Return the value of an option in a command line; the last one counts."""
    value = None
    for word, after in zip(command, [*command[1:], ""], strict=True):
        if word == name:
            value = after
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _signal(number: int, process: int | None) -> None:
    """Signal a process, or a group where it is negative, if it still runs."""
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


@contextlib.contextmanager
def _caught_signals() -> Iterator[deque[int]]:
    """Collect the signals that end a training, in place of acting on them."""
    caught: deque[int] = deque()
    before = {}
    for number in (*signals.PREEMPTING, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and & have it
            before[number] = signal.signal(number, lambda number, _: caught.append(number))
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _locked(run: Path, wanted: bool) -> Iterator[None]:
    """Hold the lock of a run folder: one training per folder, before its first record is written.

    Every process started from here holds it, too. A folder that is created for it and stays empty
    is removed.
    """
    if not wanted:
        yield
        return
    created = next((path for path in (*reversed(run.parents), run) if not path.exists()), None)
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
        yield
    finally:
        if created is not None and [path.name for path in run.iterdir()] == [".lock"]:
            (run / ".lock").unlink()
            with contextlib.suppress(OSError):
                for folder in (run, *run.parents):
                    folder.rmdir()
                    if folder == created:
                        break
        os.close(lock)


def _submit(args: argparse.Namespace, command: list[str]) -> NoReturn:
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
    sys.stderr.flush()
    os.execvp(command[0], command)


def apart(work: Callable[[], Result], caught: Sequence[int] = ()) -> Result | None:
    """Return what `work` gives in a process of its own, or raise what it raises.

    None, and the process is killed, as soon as a signal was caught: what it writes is whole or not
    there.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(work, theirs), daemon=True)
    try:
        child.start()
        theirs.close()
        while not ours.poll(TICK):
            if caught:
                return None
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
        result = ValueError(str(error))  # its class is only for this process
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
    sys.stdout.flush()
    sys.stderr.flush()
    out.send(result)
