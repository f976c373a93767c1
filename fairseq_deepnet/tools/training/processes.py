"""fairseq-train's processes on this machine: started, logged, signalled and ended together.

Signals are passed on, the processes that are left are ended when one of them fails, and it is said
which one that was, and why. Where this process is killed outright, its processes get SIGTERM: they
save, and end. Holds neither torch nor fairseq.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet import ended, signals
from fairseq_deepnet.tools.training import progress

_TAIL: Final = 1 << 14
_DONE: Final = b"| fairseq_cli.train | done training in "
TICK: Final = 0.1
"""Seconds between two looks at the processes."""
REPEATED: Final = 2.0
"""Seconds within which a further signal is the same one: it comes to the process and its group."""
SETTLE: Final = 20.0
"""Seconds that processes have to end by themselves when one has failed, or after Ctrl-C."""
LEEWAY: Final = 15.0
"""Seconds beyond the grace period before processes are killed: each ends by itself when it is
over."""
_ERROR: Final = re.compile(
    r"(\[rank\d+\]: )?(?P<said>[\w.]*(Error|Exception|Interrupt)\b.*|fairseq_deepnet: .*)"
)
_ANOTHER_S: Final = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|NCCL|[Tt]imed? ?out|DistNetworkError"
)
"""What a process says that has lost another."""


def say(text: str) -> None:
    """Print one line on standard error, as scripts/train.sh does, if that is still there."""
    with contextlib.suppress(OSError):  # the terminal may be gone, and the training is not
        print(f"[train] {text}", file=sys.stderr, flush=True)


@dataclass
class Rank:
    """A process that trains, or a launcher of them."""

    number: int  # from 0
    process: subprocess.Popen[bytes]  # in a process group of its own
    log: Path  # where its output goes
    begins: int  # bytes that the log held before
    killed: bool = False  # whether it was the supervisor that ended it

    def error(self) -> str:
        """Return the last line of its log that names an error; empty where none does."""
        lines = []
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self.begins)
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        found = map(_ERROR.fullmatch, reversed(lines))
        return next((match["said"].strip() for match in found if match), "")


class Processes:
    """The processes of one attempt to train on this machine.

    Args:
        command: fairseq-train or its launcher, with all options
        run: the run folder
        number: how many of them are to be started here, each with a rank
        node: number of this machine, from 0
        attempt: fallbacks taken before
    """

    def __init__(
        self, command: Sequence[str], run: Path, number: int = 1, node: int = 0, attempt: int = 0
    ) -> None:
        self.command, self.run = list(command), run
        self.number, self.node, self.attempt = number, node, attempt
        self.log = run / (f"node{node}.log" if node else "train.log")
        self.launcher = Path(command[0]).name
        self.grace = float(option(command, "--preemption-grace") or signals.GRACE)
        self.ranks: list[Rank] = []
        self.screen: Any = None
        self.preempted = self.interrupted = False
        self.deadline = math.inf
        self.signalled = 0.0  # when the first signal came
        self.failed: list[Rank] = []

    def train(self, caught: deque[int]) -> int:
        """Train; return the exit status.

        Args:
            caught: signals that came and are still to be passed on
        """
        try:
            self._start()
            while None in [rank.process.poll() for rank in self.ranks]:
                while caught:
                    self._pass_on(caught.popleft())
                self._note_failures()
                if time.monotonic() > self.deadline:
                    self._kill()
                time.sleep(TICK)
            self._note_failures()
            self.screen.join()
        finally:
            self._kill()
        return self._judge()

    def _start(self) -> None:
        begins = self.begins = self.log.stat().st_size if self.log.exists() else 0
        limit = option(self.command, "--max-update")
        reads, writes = os.pipe()

        def follow() -> None:
            os.setpgid(0, 0)
            os.close(writes)
            progress.follow(reads, self.log, progress.Progress(int(limit) if limit else None))

        # a process of its own, which goes on reading where this one is killed
        self.screen = multiprocessing.get_context("fork").Process(target=follow)
        self.screen.start()
        os.close(reads)
        try:
            self._start_rank(0, writes, self.log, begins)
        finally:
            os.close(writes)
        for number in range(1, self.number):
            log = self.run / f"rank{number}.log"
            with log.open("ab") as file:
                self._start_rank(number, file.fileno(), log, file.tell())

    def _start_rank(self, number: int, output: int, log: Path, begins: int) -> None:
        rank = ["--distributed-rank", str(number)] if self.number > 1 else []
        # srun kills its tasks at SIGTERM; any other signal it passes on
        ends = signal.SIGUSR1 if self.launcher == "srun" else signal.SIGTERM

        def prepare() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in the background of a script
            signals.end_with_parent(ends)

        process = subprocess.Popen(
            [*self.command, *rank],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            close_fds=False,  # the lock of the run folder is held until the last has ended
            preexec_fn=prepare,
        )
        self.ranks.append(Rank(number, process, log, begins))

    def _pass_on(self, number: int) -> None:
        running = [rank.process.pid for rank in self.ranks if rank.process.poll() is None]
        if number == signal.SIGINT:
            if self.interrupted:
                self._kill()
            self.interrupted = True
            self.deadline = time.monotonic() + SETTLE
            # it shows no more, and srun takes a SIGINT for a question
            _signal(signal.SIGINT, self.screen.pid)
            for process in running:
                _signal(signal.SIGTERM if self.launcher == "srun" else number, -process)
            return
        now = time.monotonic()
        if not self.preempted:
            say(f"{signal.Signals(number).name}: ending after this update, with a checkpoint")
            self.deadline, self.signalled = now + self.grace + LEEWAY, now
        elif now - self.signalled > REPEATED:  # of one who does not want to wait
            self.deadline = now
        self.preempted = True
        for process in running:
            if self.launcher == "torchrun":
                # it would kill its processes 30 s after a SIGTERM of its own
                for worker in signals.children(process) or [process]:
                    _signal(signal.SIGTERM, worker)
            else:
                _signal(signal.SIGUSR1 if self.launcher == "srun" else signal.SIGTERM, process)

    def _note_failures(self) -> None:
        """Keep the processes that failed in their order; the others have a while to end."""
        well = (None, 0, signals.PREEMPTED, signals.UNSAVED, signals.DIVERGED)
        for rank in self.ranks:
            if rank.process.returncode not in well and rank not in self.failed:
                if not self.failed:
                    self.deadline = min(self.deadline, time.monotonic() + SETTLE)
                self.failed.append(rank)

    def _kill(self) -> None:
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.killed = True
                for worker in signals.children(rank.process.pid):
                    _signal(signal.SIGKILL, worker)
                _signal(signal.SIGKILL, -rank.process.pid)
                rank.process.wait()

    def _judge(self) -> int:
        """Return why it ended, as an exit status; say so unless it is complete or diverged."""
        statuses = [rank.process.returncode for rank in self.ranks]
        if not any(statuses) or (self.preempted and self._is_done()):
            return 0
        if self.interrupted:
            saved = any(self.run.glob("checkpoints/*.pt"))
            then = "resumes from the last checkpoint" if saved else "begins it again"
            say(f"stopped; the same command {then}")
            return signals.INTERRUPTED
        if signals.DIVERGED in statuses or self._has_diverged():
            return signals.DIVERGED
        unsaved = signals.UNSAVED in statuses
        saved = (
            signals.PREEMPTED in statuses or ended.read(self.run).get("why") == ended.Why.PREEMPTED
        )
        if saved and not unsaved:
            say("preempted; the same command goes on where it was")
            return signals.PREEMPTED
        # without a handler of its own yet; and what one rank has not begun, none has
        if self.preempted and {-signal.SIGTERM, -signal.SIGUSR1}.intersection(statuses):
            say("preempted before the training began; the same command begins it")
            return signals.PREEMPTED
        if unsaved or self.preempted:
            say(f"ended by a signal, not saved; see the end of {self.log}")
            return signals.UNSAVED
        return self._blame()

    def _is_done(self) -> bool:
        """Return True if fairseq-train has ended the training: a later signal prevents nothing."""
        with self.log.open("rb") as file:
            file.seek(max(self.begins, self.log.stat().st_size - _TAIL))
            return _DONE in file.read()

    def _has_diverged(self) -> bool:
        """Return True if this attempt left its record: torchrun and srun pass no status on."""
        record = ended.read(self.run)
        return record.get("why") == ended.Why.DIVERGED and record.get("attempt") == self.attempt

    def _blame(self) -> int:
        """Say which process failed first, and what it said; return its status."""
        # of those that ended at about the same time, not one that only misses another
        first = min(self.failed, key=lambda r: (r.killed, bool(_ANOTHER_S.search(r.error()))))
        error, status = first.error(), first.process.returncode
        who = f"rank {first.number}" if len(self.ranks) > 1 else self.launcher
        how = f"ended with status {status}"
        if status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        text = f"{who} {how}{f': {error}' if error else ''}; see the end of {first.log}"
        if len(self.ranks) > 1:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"{text}\n")
        say(text)
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


def _signal(number: int, process: int) -> None:
    """Signal a process, or a group where it is negative, if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def check_nodes(run: Path, nodes: int) -> None:
    """Raise ValueError where not every node of a SLURM job could train here.

    fairseq finds its rank by scontrol; without it, every node would train by itself.
    """
    check = "command -v scontrol >/dev/null && [[ -s $1 && -d $2 ]]"
    words = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    words += ["bash", "-c", check, "_", str(run / "config.yaml"), str(run / "checkpoints")]
    if subprocess.run(words, check=False).returncode:
        raise ValueError(
            f"not every node has scontrol and sees {run}; RUN must be on storage that all nodes"
            " share"
        )
