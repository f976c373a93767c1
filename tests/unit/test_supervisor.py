"""The supervisor of a training, with what stands for fairseq-train and its launchers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairseq_deepnet.signals import INTERRUPTED, PREEMPTED, RECORD, UNSAVED
from tests.support.shell import ROOT, FakeBin

MODULE = "fairseq_deepnet.tools.training.supervisor"
# the time that others have to end is shorter than for real trainings
START = f"""
import sys
from {MODULE} import main
from fairseq_deepnet.tools.training import supervisor
assert "torch" not in sys.modules
supervisor.SETTLE = supervisor.LEEWAY = 1.0
sys.exit(main(sys.argv[2:]))
"""
WAIT = "for i in $(seq 600); do sleep 0.1; done"


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.02)


class Work:
    """A run folder, a fake fairseq-train that notes the signals it gets, and its supervisor."""

    def __init__(self, fakes: FakeBin, folder: Path) -> None:
        self.fakes, self.run = fakes, folder / "run"
        self.run.mkdir()
        self.started: subprocess.Popen[str] | None = None

    def add(self, body: str = "", name: str = "fairseq-train") -> None:
        """Add a fake that heeds signals as fairseq-train does, after `body` (bash)."""
        rank = '[[ "$*" == *"--distributed-rank 1"* ]] && rank=1 || rank=0'
        notes = "".join(
            f"trap 'echo {number} >>\"{self.run}/noted.$rank\"; exit {status}' {number}\n"
            for number, status in (("INT", 130), ("TERM", PREEMPTED), ("USR1", PREEMPTED))
        )
        ready = f'echo $$ >"{self.run}/pid.$rank"'
        self.fakes.add(name, f"{rank}\n{notes}{body}\n{ready}\n{WAIT}")

    def start(self, *command: str, processes: int = 1, ignoring: bool = False) -> int:
        """Start the supervisor; its process, once all its processes are at work."""
        words = [sys.executable, "-c", START, MODULE, "--run", str(self.run)]
        words += ["--processes", str(processes), "--", *(command or ("fairseq-train",))]
        words += ["--distributed-no-spawn"] if processes > 1 else []
        self.started = subprocess.Popen(
            words,
            env={**os.environ, "PATH": self.fakes.path(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignoring else None,
        )
        return self.started.pid

    def at_work(self, processes: int = 1) -> None:
        files = [self.run / f"pid.{rank}" for rank in range(processes)]
        wait_until(
            lambda: all(
                file.is_file() and file.read_text(encoding="utf-8").strip() for file in files
            )
        )

    def finish(self, status: int) -> list[str]:
        """Return what it said, a line each, after checking its exit status."""
        assert self.started is not None
        _, errors = self.started.communicate(timeout=60)
        assert self.started.returncode == status, errors
        return errors.splitlines()

    def noted(self) -> list[str]:
        return [
            file.read_text(encoding="utf-8").strip() for file in sorted(self.run.glob("noted.*"))
        ]


@pytest.fixture
def work(fake_bin: FakeBin, tmp_path: Path) -> Iterator[Work]:
    work = Work(fake_bin, tmp_path)
    yield work
    if work.started is not None:
        work.started.kill()


@pytest.mark.parametrize(
    ("sent", "heard", "status"),
    [
        (signal.SIGTERM, "TERM", PREEMPTED),
        (signal.SIGUSR1, "TERM", PREEMPTED),
        (signal.SIGHUP, "TERM", PREEMPTED),
        (signal.SIGINT, "INT", INTERRUPTED),
    ],
)
def test_every_process_hears_a_signal_to_the_supervisor(
    sent: signal.Signals, heard: str, status: int, work: Work
) -> None:
    work.add()
    pid = work.start(processes=2, ignoring=sent is not signal.SIGINT)
    work.at_work(2)
    os.kill(pid, sent)
    assert "the same command goes on" in work.finish(status)[-1]
    assert work.noted() == [heard, heard]
    assert not (work.run / "done").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's signal at a parent's end")
def test_a_supervisor_that_is_killed_outright_takes_its_processes_along(work: Work) -> None:
    work.add()
    pid = work.start(processes=2)
    work.at_work(2)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: work.noted() == ["TERM", "TERM"])


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("way", ["killed", "raised"])
def test_when_one_rank_fails_the_others_end_and_its_error_is_the_last_word(
    way: str, failing: int, work: Work
) -> None:
    fails = "kill -9 $$" if way == "killed" else 'echo "[rank1]: RuntimeError: out of luck"; exit 7'
    misses = 'echo "[rank0]: RuntimeError: pair.cc:553] Connection closed by peer"'
    # the other says at once what it misses, and hangs, deaf to signals
    work.add(f"if [[ $rank == {failing} ]]; then {fails}; fi; {misses}; trap '' TERM INT")
    work.start(processes=2)
    last = work.finish(137 if way == "killed" else 7)[-1]
    how = "was ended by SIGKILL" if way == "killed" else "ended with status 7: RuntimeError: out of"
    assert last.startswith(f"[train] rank {failing} {how}")
    assert last.endswith("rank1.log" if failing else "train.log")
    assert (work.run / "train.log").read_text(encoding="utf-8").splitlines()[
        -1
    ] == last.removeprefix("[train] ")


def test_the_rank_that_only_misses_another_is_not_blamed_though_it_ended_first(work: Work) -> None:
    misses = 'echo "RuntimeError: Connection closed by peer"; exit 1'
    fails = 'sleep 0.5; echo "ValueError: out of luck"; exit 3'
    work.add(f"if [[ $rank == 0 ]]; then {misses}; else {fails}; fi")
    work.start(processes=2)
    assert "rank 1 ended with status 3: ValueError: out of luck" in work.finish(3)[-1]


def test_what_does_not_end_within_the_grace_period_is_killed(work: Work) -> None:
    work.add("trap '' TERM")
    pid = work.start("fairseq-train", "--preemption-grace=0.2")
    work.at_work()
    os.kill(pid, signal.SIGTERM)
    assert "not saved" in work.finish(UNSAVED)[-1]


def test_a_training_without_handlers_has_not_begun_and_loses_nothing(work: Work) -> None:
    work.add("trap - TERM")
    pid = work.start()
    work.at_work()
    os.kill(pid, signal.SIGTERM)
    assert "preempted before the training began" in work.finish(PREEMPTED)[-1]


def test_torchrun_is_spared_the_signal_and_its_status_is_made_good(work: Work) -> None:
    work.add()  # torchrun kills its processes 30 s after a SIGTERM, and ends with 1 in any case
    (work.fakes.folder / "fairseq-train").rename(work.fakes.folder / "worker")
    record = f'echo "{{}}" >"{work.run}/{RECORD}"'
    body = f'trap "echo torchrun >{work.run}/noted.torchrun" TERM\nworker & wait; {record}'
    work.fakes.add("torchrun", body, status=1)
    pid = work.start("torchrun", "--node-rank=0")
    work.at_work()
    os.kill(pid, signal.SIGUSR1)
    assert "preempted; the same command goes on" in work.finish(PREEMPTED)[-1]
    assert work.noted() == ["TERM"]


def test_srun_gets_the_signal_that_it_passes_on(work: Work) -> None:
    # the first call checks the nodes; srun kills its tasks at SIGTERM
    work.add(name="srun", body='[[ "$*" != *"bash -c"* ]] || exit 0')
    pid = work.start("srun", "fairseq-train")
    work.at_work()
    os.kill(pid, signal.SIGTERM)
    work.finish(PREEMPTED)
    assert work.noted() == ["USR1"]
