"""Train and score the cells of a sweep, some at a time; whatever one comes to, the next follows."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairseq_deepnet.experiments import state
from fairseq_deepnet.experiments.cells import Cell
from fairseq_deepnet.experiments.runs import Status, read_cell_record
from fairseq_deepnet.files import ROOT, shown, write_text
from fairseq_deepnet.provenance import now
from fairseq_deepnet.signals import end_with_parent
from fairseq_deepnet.tools.training.progress import clock

CONFIG: Final = "cell.yaml"
_NOT_FOR_CELLS: Final = {
    *("DATA", "RUN", "OUT", "RESUME", "DRY_RUN", "NODES", "CPU_PROCESSES", "THREADS"),
    *("SPLIT", "BEAM", "LENPEN", "AVERAGE", "PROCESSES", "GPUS", "LAUNCHER"),
    *("DIRECTIONS", "TEXT", "TOKENIZER", "MEMORY", "ENGINE", "QUANTIZATION", "BATCH"),
}
"""Variables of the scripts that a cell sets itself, or that would make it another cell."""
PATIENCE: Final = 60.0
"""Seconds that a stopped script has to write its last checkpoint and end."""


@dataclass(frozen=True)
class Scripts:
    """What trains and scores; the config or the run folder is put after them."""

    train: tuple[str, ...] = ("bash", str(ROOT / "scripts" / "train.sh"))
    score: tuple[str, ...] = ("bash", str(ROOT / "scripts" / "eval_bleu.sh"))
    score_options: tuple[str, ...] = ()


@dataclass
class _Work:
    """A cell at work on one share of the machine."""

    cell: Cell
    folder: Path
    label: str
    share: dict[str, str]
    stage: str
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)


class Runner:
    """Runs cells to their results.

    Args:
        folder: the sweep's; a cell's run folder lies in it under the cell's name
        shares: variables for the scripts, one set a cell at work
        say: takes a line about what happens
        definition: the file that defines the sweep, for reports
    """

    def __init__(
        self,
        folder: Path,
        shares: list[dict[str, str]],
        say: Callable[[str], None],
        definition: str,
        scripts: Scripts | None = None,
        pause: float = 0.2,
    ) -> None:
        self.folder = folder
        self.free = list(shares)
        self.say = say
        self.definition = definition
        self.scripts = scripts or Scripts()
        self.pause = pause
        self.working: list[_Work] = []

    def run(self, cells: list[Cell]) -> None:
        """Run the cells in their order. Ctrl-C stops those at work and leaves them unfinished."""
        waiting = [
            (cell, f"[{number}/{len(cells)}] {cell.name}")
            for number, cell in enumerate(cells, start=1)
        ]
        try:
            while waiting or self.working:
                while waiting and self.free:
                    self._begin(*waiting.pop(0))
                time.sleep(self.pause)
                for work in list(self.working):
                    status = work.process.poll()
                    if status is not None:
                        self._next_stage(work, status)
        except KeyboardInterrupt:
            self.say(f"stopping {len(self.working)} at work")
            stop([work.process for work in self.working])
            self.say("stopped; the same command goes on from the last checkpoints")
            raise
        except BaseException:
            stop([work.process for work in self.working])
            raise

    def _begin(self, cell: Cell, label: str) -> None:
        folder = self.folder / cell.name
        # a training that a killed sweep has left must end: scripts/train.sh refuses a second
        limit = time.monotonic() + PATIENCE
        if state.is_training(folder):
            self.say(f"{label}: waiting for its last training to end")
        while state.is_training(folder) and time.monotonic() < limit:
            time.sleep(self.pause)
        config, before = cell.resolve(), read_cell_record(folder)
        facts = {"definition": self.definition, "started": before.get("started") or now()}
        starts = int(before.get("starts", 0)) + 1
        state.write(folder, cell, Status.UNFINISHED, **facts, starts=starts)
        write_text(folder / CONFIG, config.to_yaml())
        self.say(f"{label}: training, see {shown(folder / state.CONSOLE)}")
        share = self.free.pop()
        variables = {"RUN": str(folder), **share, **cell.variables}
        command = [*self.scripts.train, str(folder / CONFIG)]
        process = self._start(command, folder, variables)
        self.working.append(_Work(cell, folder, label, share, "train", process))

    def _start(
        self, command: list[str], folder: Path, variables: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_CELLS}
        return start(command, folder / state.CONSOLE, environment | variables)

    def _next_stage(self, work: _Work, status: int) -> None:
        cell, folder = work.cell, work.folder
        if work.stage == "train" and status == 0 and cell.score is not None:
            self.say(f"{work.label}: scoring")
            variables, options = cell.scoring()
            command = [*self.scripts.score, str(folder), *options, *self.scripts.score_options]
            work.stage = "score"
            work.process = self._start(command, folder, work.share | variables)
            return
        self.working.remove(work)
        self.free.append(work.share)
        wanted = state.score_asked_for(folder, cell) if status == 0 else None
        outcome, facts = state.judge(folder, work.stage, status, wanted)
        seconds = time.monotonic() - work.started
        before = float(read_cell_record(folder).get("seconds", 0.0))
        facts |= {"ended": now(), "seconds": round(before + seconds, 1)}
        state.write(folder, cell, outcome, **facts)
        state.prune(folder, cell)
        self.say(f"{work.label}: {facts['reason']} ({clock(seconds)})")


# The scripts: each in a session of its own, none of them outliving the sweep.


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a script whose output goes to the end of a file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=end_with_parent,  # where the sweep is killed outright
        )


def stop(processes: Sequence[subprocess.Popen[bytes]], patience: float = PATIENCE) -> None:
    """End scripts and all that they started; what does not end in time is killed.

    scripts/train.sh passes the signal on to fairseq-train, which is in a process group of its own,
    and waits for it. A second Ctrl-C while waiting kills at once.
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    limit = time.monotonic() + patience
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < limit and any(process.poll() is None for process in processes):
            time.sleep(0.1)
    for process in processes:
        _kill_session(process.pid)
        process.wait()


def _kill_session(session: int) -> None:
    """Kill what is left of a session: the process groups that a script made for its children."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
