"""fairseq-train's processes on this machine: started, logged, signalled and ended together.

scripts/train.sh becomes this program, which holds neither torch nor fairseq. It passes SIGTERM and
SIGUSR1 on, ends the processes that are left when one of them fails, and says which one and why as
its last word. It exits with fairseq-train's status, or with one of fairseq_deepnet.signals. Where
it is killed outright its processes get SIGTERM: they save, and end.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fairseq_deepnet import signals

PROGRESS: Final = Path(__file__).with_name("progress.py")
TICK: Final = 0.1
"""Seconds between two looks at the processes."""
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
    """One line on standard error, as scripts/train.sh says it."""
    print(f"[train] {text}", file=sys.stderr, flush=True)


@dataclass
class Rank:
    """A process that trains, or a launcher of them.

    Arguments:
        number: from 0
        process: in a process group of its own
        log: where its output goes
        begins: bytes that the log held before
        killed: whether it was the supervisor that ended it
    """

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    begins: int
    killed: bool = False

    def error(self) -> str:
        """Return the last line of its log that names an error; empty where none does."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self.begins)
            lines = file.read().decode("utf-8", errors="replace").splitlines()
            found = map(_ERROR.fullmatch, reversed(lines))
            return next((match["said"].strip() for match in found if match), "")
        return ""

    def ended(self) -> str:
        """Say how it ended."""
        status = self.process.returncode
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with status {status}"


class Supervisor:
    """The processes of one training on this machine.

    Args:
        command: fairseq-train or its launcher, with all options
        run: the run folder
        processes: how many of them are to be started here, each with a rank
        node: number of this machine, from 0
        nodes: machines in all
    """

    def __init__(
        self, command: Sequence[str], run: Path, processes: int, node: int, nodes: int
    ) -> None:
        self.command, self.run = list(command), run
        self.processes, self.node, self.nodes = processes, node, nodes
        self.log = run / (f"node{node}.log" if node else "train.log")
        self.launcher = Path(command[0]).name
        self.grace = float(option(command, "--preemption-grace") or signals.GRACE)
        self.ranks: list[Rank] = []
        self.progress: subprocess.Popen[bytes] | None = None
        self.caught: deque[int] = deque()
        self.preempted = self.interrupted = False
        self.deadline = math.inf
        self.failed: list[Rank] = []

    def supervise(self) -> int:
        """Train; return the exit status."""
        for number in (*signals.PREEMPTING, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and & have it
                signal.signal(number, lambda number, _: self.caught.append(number))
        if not self.node:
            (self.run / signals.RECORD).unlink(missing_ok=True)
        try:
            self._start()
            self._watch()
            assert self.progress is not None
            self.progress.wait()
        finally:
            self._kill()
            if not self.node:
                (self.run / "nodes.json").unlink(missing_ok=True)
        return self._judge()

    def _start(self) -> None:
        words = [sys.executable, str(PROGRESS), str(self.log)]
        limit = option(self.command, "--max-update")
        begins = self.log.stat().st_size if self.log.exists() else 0
        self.progress = subprocess.Popen(
            [*words, *(["--max-update", limit] if limit else [])],
            stdin=subprocess.PIPE,
            process_group=0,
            close_fds=False,
        )
        assert self.progress.stdin is not None
        with self.progress.stdin as pipe:
            self._start_rank(0, pipe.fileno(), self.log, begins)
        for number in range(1, self.processes):
            log = self.run / f"rank{number}.log"
            with log.open("ab") as file:
                self._start_rank(number, file.fileno(), log, file.tell())

    def _start_rank(self, number: int, output: int, log: Path, begins: int) -> None:
        rank = ["--distributed-rank", str(number)] if self.processes > 1 else []
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

    def _watch(self) -> None:
        """Wait until every process has ended, or had to be killed."""
        while None in [rank.process.poll() for rank in self.ranks]:
            while self.caught:
                self._pass_on(self.caught.popleft())
            self._note_failures()
            if time.monotonic() > self.deadline:
                self._kill()
            time.sleep(TICK)
        self._note_failures()

    def _pass_on(self, number: int) -> None:
        running = [rank.process.pid for rank in self.ranks if rank.process.poll() is None]
        if number == signal.SIGINT:
            if self.interrupted:
                self._kill()
            self.interrupted = True
            self.deadline = time.monotonic() + SETTLE
            assert self.progress is not None
            # it shows no more, and srun takes a SIGINT for a question
            _signal(signal.SIGINT, self.progress.pid)
            for process in running:
                _signal(signal.SIGTERM if self.launcher == "srun" else number, -process)
            return
        if not self.preempted:
            say(f"{signal.Signals(number).name}: ending after this update, with a checkpoint")
            self.deadline = time.monotonic() + self.grace + LEEWAY
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
        well = (None, 0, signals.PREEMPTED, signals.UNSAVED)
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
        """Say how it ended; return the exit status."""
        statuses = [rank.process.returncode for rank in self.ranks]
        if self.interrupted:
            say("stopped; the same command goes on from the last checkpoint")
            return signals.INTERRUPTED
        if not any(statuses):
            self._finish()
            return 0
        unsaved = signals.UNSAVED in statuses
        saved = signals.PREEMPTED in statuses or (self.run / signals.RECORD).is_file()
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

    def _blame(self) -> int:
        """Say which process failed first, and what it said; return its status."""
        # of those that ended at about the same time, not one that only misses another
        first = min(self.failed, key=lambda r: (r.killed, bool(_ANOTHER_S.search(r.error()))))
        error, status = first.error(), first.process.returncode
        who = f"rank {first.number}" if len(self.ranks) > 1 else self.launcher
        text = f"{who} {first.ended()}{f': {error}' if error else ''}; see the end of {first.log}"
        if len(self.ranks) > 1:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"{text}\n")
        say(text)
        return 128 - status if status < 0 else status

    def _finish(self) -> None:
        if self.node:
            say(f"trained: {self.run}, with node {self.node} of {self.nodes}")
            return
        part = self.run / "done.part"
        part.write_text(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n", encoding="utf-8")
        part.replace(self.run / "done")
        say(f"trained: {self.run}")
        alone = option(self.command, "--task") in ("language_modeling", "masked_lm")
        script = f"scripts/eval_{'perplexity' if alone else 'bleu'}.sh"
        say(f"next: bash {script} {shlex.quote(str(self.run))}")


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


def main(arguments: list[str] | None = None) -> int:
    """Supervise the command after --."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run folder")
    parser.add_argument("--processes", type=int, default=1, help="processes on the CPU (1)")
    parser.add_argument("--nodes", type=int, default=1, help="machines (1)")
    parser.add_argument("--node-rank", type=int, default=0, help="number of this one, from 0")
    parser.add_argument("command", nargs="+", help="fairseq-train or its launcher, after --")
    args = parser.parse_args(arguments)
    try:
        if args.command[0] == "srun":
            check_nodes(args.run, args.nodes)
    except ValueError as error:
        say(f"error: {error}")
        (args.run / "nodes.json").unlink(missing_ok=True)
        return 2
    ranks = args.processes if "--distributed-no-spawn" in args.command else 1
    if args.command[0] != "fairseq-train":
        ranks = 1
    supervisor = Supervisor(args.command, args.run, ranks, args.node_rank, args.nodes)
    say(
        f"training; everything is logged in {supervisor.log};"
        " Ctrl-C stops, the same command goes on"
    )
    return supervisor.supervise()


if __name__ == "__main__":
    sys.exit(main())
