"""The supervisor, with a fake fairseq-train or launcher as its child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import ended
from fairseq_deepnet.ended import DIVERGED, INTERRUPTED, PREEMPTED, UNSAVED
from fairseq_deepnet.tools.training import train
from fairseq_deepnet.tools.training.launch import Plan
from tests.support.shell import ROOT, FakeBin, wait_until

# these plans replace settle.plan_run, and leave less time to end than real runs have
START = """
import sys
from argparse import Namespace
from pathlib import Path
from fairseq_deepnet.tools.training import train
from fairseq_deepnet.tools.training.launch import Plan

run, grace, fallbacks, *command = sys.argv[1:]
plans = [Plan(0, tuple(command), falls_back=fallbacks != "0")]
for step in range(1, int(fallbacks) + 1):
    words = (*command, f"--fallback-step={step}")
    plans.append(Plan(0, words, falls_back=True))
plans.append(Plan(86))
train.planned_apart = lambda args: plans.pop(0)
train.LEEWAY = 1.0
args = Namespace(run=Path(run), nodes=1, node_rank=0, preemption_grace=float(grace))
args.dry_run, args.threads, args.cpu_processes = False, 1, 1
status = train.run(args)
assert "torch" not in sys.modules
sys.exit(status)
"""
WAIT = "for i in $(seq 600); do sleep 0.1; done"
DONE = "2026-01-02 03:04:05 | INFO | fairseq_cli.train | done training in 3.0 seconds"


class Work:
    """A run folder, a fake fairseq-train that records its signals, and its supervisor."""

    def __init__(self, fakes: FakeBin, folder: Path) -> None:
        self.fakes, self.run = fakes, folder / "run"
        self.run.mkdir()
        self.started: subprocess.Popen[str] | None = None

    def add(self, body: str = "", name: str = "fairseq-train") -> None:
        """Add a fake that runs `body` (bash) and then handles signals like fairseq-train."""
        notes = "".join(
            f"trap 'echo {number} >>\"{self.run}/signals\"; exit {status}' {number}\n"
            for number, status in (("INT", 130), ("TERM", PREEMPTED), ("USR1", PREEMPTED))
        )
        self.fakes.add(name, f'{notes}{body}\necho $$ >"{self.run}/pid"\n{WAIT}')

    def start(
        self, *command: str, grace: float = 60, fallbacks: int = 0, ignoring: bool = False
    ) -> int:
        """Start the supervisor, and return its process number."""
        words = [sys.executable, "-c", START, str(self.run), str(grace), str(fallbacks)]
        self.started = subprocess.Popen(
            [*words, *(command or ("fairseq-train",))],
            env={**os.environ, "PATH": self.fakes.path(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignoring else None,
        )
        return self.started.pid

    def start_and_wait(self, *command: str, **options: Any) -> int:
        """Start the supervisor, wait for its child, and return the supervisor's process number."""
        pid, file = self.start(*command, **options), self.run / "pid"
        wait_until(lambda: file.is_file() and bool(file.read_text(encoding="utf-8").strip()))
        return pid

    def finish(self, status: int) -> str:
        """Check the exit status of the supervisor, and return its messages."""
        assert self.started is not None
        _, errors = self.started.communicate(timeout=60)
        assert self.started.returncode == status, errors
        return errors

    def is_locked(self) -> bool:
        command = ["flock", "--nonblock", str(self.run / ".lock"), "true"]
        return subprocess.run(command, check=False).returncode != 0

    def signals(self) -> str:
        file = self.run / "signals"
        return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


@pytest.fixture
def work(fake_bin: FakeBin, tmp_path: Path) -> Iterator[Work]:
    work = Work(fake_bin, tmp_path)
    yield work
    if work.started is not None:
        work.started.kill()


@pytest.mark.parametrize(
    ("sent", "launcher", "heard", "status"),
    [
        (signal.SIGTERM, "fairseq-train", "TERM", PREEMPTED),
        (signal.SIGUSR1, "torchrun", "TERM", PREEMPTED),
        (signal.SIGHUP, "fairseq-train", "TERM", PREEMPTED),
        (signal.SIGTERM, "srun", "USR1", PREEMPTED),  # srun kills its tasks at SIGTERM
        (signal.SIGINT, "fairseq-train", "TERM", INTERRUPTED),
    ],
)
def test_the_child_receives_the_right_signal(
    sent: signal.Signals, launcher: str, heard: str, status: int, work: Work
) -> None:
    work.add(name=launcher)
    pid = work.start_and_wait(launcher, ignoring=sent is not signal.SIGINT)
    assert work.is_locked()
    os.kill(pid, sent)
    reason = "interrupted" if sent is signal.SIGINT else "preempted"
    assert f"{reason}; the same command resumes" in work.finish(status)
    assert not work.is_locked()
    assert work.signals() == heard
    assert not ended.is_complete(work.run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_record_of_a_saved_run_tells_an_interruption_from_a_preemption(
    number: signal.Signals, work: Work
) -> None:
    work.add()
    pid = work.start_and_wait()
    ended.write(work.run, ended.Why.PREEMPTED, 7)  # fairseq-train, which only receives SIGTERM
    os.kill(pid, number)
    is_interrupted = number is signal.SIGINT
    work.finish(INTERRUPTED if is_interrupted else PREEMPTED)
    why = "interrupted" if is_interrupted else "preempted"
    assert ended.read(work.run) == {"why": why, "update": 7}


@pytest.mark.parametrize("why", [ended.Why.PREEMPTED, ended.Why.INTERRUPTED])
def test_a_run_that_was_stopped_on_another_node_is_preempted(why: ended.Why, work: Work) -> None:
    ended.write(work.run, why, 7)
    work.fakes.add("torchrun", status=1)  # torchrun hides the status of its processes
    work.start("torchrun")
    assert "preempted at update 7; the same command resumes" in work.finish(PREEMPTED)


def test_another_node_may_start_before_the_first_creates_the_run_folder(tmp_path: Path) -> None:
    assert train.Child(Plan(0, ("true",)), tmp_path / "run", node=1).train(deque()) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the end of a parent")
def test_killing_the_supervisor_signals_its_child(work: Work) -> None:
    work.add()
    os.kill(work.start_and_wait(), signal.SIGKILL)
    wait_until(lambda: work.signals() == "TERM")


def test_the_status_of_an_error_that_the_user_can_fix_is_2(work: Work) -> None:
    work.fakes.add("torchrun", 'echo "RuntimeError: out of luck"', status=7)
    work.start("torchrun")
    assert "torchrun ended with status 7; see the end of" in work.finish(7)
    line = "fairseq_deepnet: error: --lr 0: too small"
    work.fakes.add("torchrun", f'echo "{line}"', status=1)
    work.start("torchrun")
    work.finish(2)
    assert line in (work.run / "train.log").read_text(encoding="utf-8")
    work.fakes.add("fairseq-train", "kill -9 $$")
    work.start()
    work.finish(137)


@pytest.mark.parametrize("again", [False, True])
def test_a_child_that_does_not_end_is_killed_after_the_grace_period_or_a_second_signal(
    again: bool, work: Work
) -> None:
    work.add("trap '' TERM")
    pid = work.start_and_wait(grace=60 if again else 0.2)
    os.kill(pid, signal.SIGTERM)
    if again:
        time.sleep(train.ENDING + 0.5)  # an earlier signal would count as repeated
        os.kill(pid, signal.SIGTERM)
    assert "not saved" in work.finish(UNSAVED)


def test_a_failed_save_that_could_not_be_recorded_is_not_reported_as_saved(work: Work) -> None:
    work.add(f"trap 'exit {UNSAVED}' TERM")
    os.kill(work.start_and_wait(), signal.SIGTERM)
    assert "not saved" in work.finish(UNSAVED)


def test_a_signal_before_the_run_starts_loses_nothing(work: Work) -> None:
    work.add("trap - TERM")
    os.kill(work.start_and_wait(), signal.SIGTERM)
    assert "preempted" in work.finish(PREEMPTED)


def test_a_signal_after_the_last_update_is_not_a_preemption(work: Work) -> None:
    work.add(f'echo "{DONE}"; trap - TERM')
    os.kill(work.start_and_wait(), signal.SIGTERM)
    assert "trained: " in work.finish(0)
    assert ended.is_complete(work.run)


def test_a_diverged_run_restarts_until_it_succeeds(work: Work) -> None:
    ends = '[[ "$*" != *--fallback-step=2* ]] || exit 0'
    record = '2026-01-02 03:04:05 | INFO | train | {"train_num_updates": "40"}'
    body = f"echo '{record}'; {ends}"
    work.fakes.add("fairseq-train", body, status=DIVERGED)
    work.start("fairseq-train", "--lr", "1", fallbacks=2)
    work.finish(0)
    calls = work.fakes.calls("fairseq-train")
    assert [call[-1] for call in calls] == ["1", "--fallback-step=1", "--fallback-step=2"]
    assert ended.read(work.run) == {"why": "complete", "update": 40}


def test_an_interrupted_run_that_diverges_does_not_fall_back(work: Work) -> None:
    work.add(f"trap 'exit {DIVERGED}' TERM")
    os.kill(work.start_and_wait(fallbacks=1), signal.SIGINT)
    assert "the same command falls back" in work.finish(INTERRUPTED)


@pytest.mark.parametrize("fallbacks", [0, 1])
def test_a_run_without_further_fallbacks_exits_with_status_86(fallbacks: int, work: Work) -> None:
    work.fakes.add("fairseq-train", status=DIVERGED)
    work.start(fallbacks=fallbacks)
    assert "diverged; see the lines above" in work.finish(DIVERGED)
    assert len(work.fakes.calls("fairseq-train")) == 1 + fallbacks
