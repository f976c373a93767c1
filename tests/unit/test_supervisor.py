"""The supervisor of a training, with what stands for fairseq-train and its launchers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairseq_deepnet import ended
from fairseq_deepnet.signals import (
    DIVERGED,
    INTERRUPTED,
    PREEMPTED,
    UNSAVED,
)
from fairseq_deepnet.tools.training import processes
from fairseq_deepnet.tools.training.fallbacks import FallbackState
from tests.support.shell import ROOT, FakeBin

# the time that others have to end is shorter than for real trainings
START = """
import sys
from argparse import Namespace
from pathlib import Path
from fairseq_deepnet.tools.training import processes, supervisor
from fairseq_deepnet.tools.training.fallbacks import FallbackState, SupervisorPlan, parse

def fall_back(run, plan, state):
    if state.step == len(plan.fallbacks):
        return None
    taken = {"from_update": 9, "overrides": {"lr": "0.1"}}
    return FallbackState(state.step + 1, {"lr": "0.1"}, True, [taken])

processes.SETTLE = processes.LEEWAY = 1.0
supervisor._fall_back = fall_back
run, number, node, steps, *command = sys.argv[1:]
args = Namespace(
    run=Path(run), nodes=1 + int(node), node_rank=int(node), node_timeout=30, preemption_grace=None,
    cpu_processes=int(number),
)
plan = SupervisorPlan(tuple(command), parse(steps) if steps else None)
status = supervisor.Supervisor(args, plan).supervise()
assert "torch" not in sys.modules
sys.exit(status)
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

    def start(
        self,
        *command: str,
        processes: int = 1,
        ignoring: bool = False,
        fallbacks: str = "",
        node: int = 0,
    ) -> int:
        """Start the supervisor; its process, once all its processes are at work."""
        words = [sys.executable, "-c", START, str(self.run), str(processes), str(node), fallbacks]
        words += command or ("fairseq-train",)
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
    assert "the same command" in work.finish(status)[-1]
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


def test_a_second_signal_does_not_wait_for_the_grace_period(work: Work) -> None:
    work.add("trap '' TERM")
    pid = work.start("fairseq-train", "--preemption-grace=5000")
    work.at_work()
    for _ in range(2):
        os.kill(pid, signal.SIGTERM)
        time.sleep(2.2)
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
    record = f"""echo '{{"why": "preempted", "update": 3}}' >"{work.run}/ended.json\""""
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


def test_a_training_that_diverged_is_started_again_gentler_until_it_ends_well(work: Work) -> None:
    ends = '[[ "$*" != *--fallback-step=2* ]] || exit 0'
    work.fakes.add("fairseq-train", f'printf "said\\n"; {ends}', status=DIVERGED)
    work.start("fairseq-train", "--lr", "1", "--fp16", fallbacks="lr*0.5, lr*0.1")
    last = work.finish(0)
    told = [f"fallback {step}: starting again from update 9 with --lr 0.1" for step in (1, 2)]
    assert [line.removeprefix("[train] ") for line in last if "fallback" in line] == told
    log = (work.run / "train.log").read_text(encoding="utf-8").splitlines()
    assert log == ["said", told[0], "said", told[1], "said"]
    first, second, third = work.fakes.calls("fairseq-train")
    assert first == ["--lr", "1", "--fp16"]
    assert second == [*first, "--lr=0.1", "--restore-file=checkpoint_last.pt", "--fallback-step=1"]
    assert third[-1] == "--fallback-step=2"
    assert (work.run / "done").is_file()


@pytest.mark.parametrize("steps", ["", "lr*0.5"])
def test_a_training_that_diverged_for_good_has_a_status_of_its_own(steps: str, work: Work) -> None:
    work.fakes.add("fairseq-train", status=DIVERGED)
    work.start(fallbacks=steps)
    last = work.finish(DIVERGED)[-1]
    assert ("no fallback is left after 1" if steps else "diverged, and ended") in last
    assert not (work.run / "done").exists()


def test_of_a_launcher_that_passes_no_status_on_the_record_tells(work: Work) -> None:
    work.fakes.add("torchrun", status=1)
    ended.write(work.run, ended.Why.DIVERGED, 30, attempt=0)
    work.start("torchrun", "fairseq-train")
    work.finish(DIVERGED)
    ended.write(work.run, ended.Why.DIVERGED, 30, attempt=3)  # of another attempt than this
    work.start("torchrun", "fairseq-train")
    assert "torchrun ended with status 1" in work.finish(1)[-1]


def test_a_further_node_does_as_node_0_has_decided(work: Work) -> None:
    ends = '[[ "$*" != *--fallback-step=1* ]] || exit 0'
    work.fakes.add("torchrun", ends, status=1)
    ended.write(work.run, ended.Why.DIVERGED, 30, attempt=0)
    work.start("torchrun", "fairseq-train", fallbacks="lr*0.5", node=1)
    wait_until(lambda: len(work.fakes.calls("torchrun")) == 1)
    taken = [{"from_update": 0, "overrides": {"lr": "0.2"}}]
    FallbackState(1, {"lr": "0.2"}, history=taken).write(work.run)
    said = work.finish(0)
    assert "[train] diverged; waiting for node 0 to roll back" in said
    assert work.fakes.calls("torchrun")[1][-2:] == ["--lr=0.2", "--fallback-step=1"]


def test_a_training_that_is_signalled_while_it_diverges_is_not_begun_again(work: Work) -> None:
    work.fakes.add("fairseq-train", "trap '' TERM; kill -TERM $PPID; sleep 0.3", status=DIVERGED)
    work.start(fallbacks="lr*0.5")
    assert "preempted; the same command goes on" in work.finish(PREEMPTED)[-1]
    assert len(work.fakes.calls("fairseq-train")) == 1


def test_a_signal_does_not_queue_again_what_has_no_fallback_left(work: Work) -> None:
    signalled = """[[ "$*" != *--fallback-step=1* ]] || kill -TERM $PPID; sleep 0.3"""
    work.fakes.add("fairseq-train", f"trap '' TERM; {signalled}", status=DIVERGED)
    work.start(fallbacks="lr*0.5")
    assert "no fallback is left after 1" in work.finish(DIVERGED)[-1]


def test_a_node_that_waits_for_the_first_heeds_a_signal(work: Work) -> None:
    work.fakes.add("torchrun", status=1)
    ended.write(work.run, ended.Why.DIVERGED, 30, attempt=0)
    pid = work.start("torchrun", "fairseq-train", fallbacks="lr*0.5", node=1)
    wait_until(lambda: len(work.fakes.calls("torchrun")) == 1)
    time.sleep(0.5)  # for the supervisor, which looks at its processes ten times a second
    os.kill(pid, signal.SIGTERM)
    assert "preempted" in work.finish(PREEMPTED)[-1]


def test_a_terminal_that_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

        def flush(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    processes.say("SIGHUP: passed on")
