"""SIGTERM and SIGUSR1: the run saves its update, and resuming changes no number."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fairseq import checkpoint_utils

from fairseq_deepnet import preemption
from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.ended import PREEMPTED, UNSAVED
from fairseq_deepnet.trainer import DeepNetTrainer as Trainer
from tests.integration.conftest import SMALL, TRAIN
from tests.support.shell import ROOT
from tests.support.training import assert_same_checkpoints, logged, train_here, train_together

OPTIONS = ["--arch=deepnet_transformer", *SMALL, *TRAIN, "--max-tokens=60", "--dropout=0.1"]
OPTIONS += ["--lr-scheduler=inverse_sqrt", "--warmup-updates=4", "--log-interval=1"]
OPTIONS += ["--log-format=json"]


def saved(save_dir: Path, name: str = "checkpoint_last.pt") -> dict[str, Any]:
    return load_checkpoint(save_dir / name)


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Compare weights, moments, schedule and position bit by bit."""
    assert num_updates(first) == num_updates(second)
    assert_same_checkpoints(first, second)
    for key in ("train_iterator", "val_loss", "best"):
        assert first["extra_state"].get(key) == second["extra_state"].get(key), key


class InProcess:
    """Runs in the test process, with simulated signals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self.patch, self.caplog = monkeypatch, caplog
        monkeypatch.setattr(preemption, "_is_listening", True)
        caplog.set_level("INFO")

    def train(self, data: Path, save_dir: Path, *options: str) -> list[dict[str, Any]]:
        """Train like a new process, and return fairseq's logged values."""
        self.patch.setattr(preemption, "_received", None)
        self.patch.delattr(checkpoint_utils.save_checkpoint, "best", raising=False)
        self.caplog.clear()
        train_here(data, save_dir, *OPTIONS, *options)
        return self.logged_values()

    def logged_values(self) -> list[dict[str, Any]]:
        lines = []
        for record in self.caplog.records:
            if record.name in ("train_inner", "valid"):
                line = record.getMessage()
                names = ("loss", "valid_loss", "num_updates", "valid_num_updates")
                lines.append({name: v for name in names if (v := logged([line], name))})
        return lines

    def preempt(
        self, data: Path, save_dir: Path, *options: str, update: int, method: str = "train_step"
    ) -> list[dict[str, Any]]:
        """Train until a signal arrives in a method of fairseq's trainer."""
        original = getattr(Trainer, method)

        def signalled(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if trainer.get_num_updates() == update - (method == "train_step"):
                preemption._received = signal.SIGTERM
            return original(trainer, *args, **kwargs)

        with self.patch.context() as patch:
            patch.setattr(Trainer, method, signalled)
            with pytest.raises(SystemExit) as ended:
                self.train(data, save_dir, *options)
        assert ended.value.code == (UNSAVED if "--no-save" in options else PREEMPTED)
        return self.logged_values()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> InProcess:
    return InProcess(monkeypatch, caplog)


def test_the_same_command_resumes_with_the_same_numbers(
    process: InProcess, tiny_data: Path, tmp_path: Path
) -> None:
    options = ["--max-update=8", "--update-freq=2"]
    whole = process.train(tiny_data, tmp_path / "whole", *options)
    first = process.preempt(tiny_data, tmp_path / "run", *options, update=5)
    assert num_updates(saved(tmp_path / "run")) == 5
    assert first + process.train(tiny_data, tmp_path / "run", *options) == whole
    assert_same(saved(tmp_path / "run"), saved(tmp_path / "whole"))


@pytest.mark.parametrize("when", ["update", "validation", "epoch"])
def test_a_resumed_run_first_performs_a_prevented_validation(
    when: str, process: InProcess, tiny_data: Path, tmp_path: Path
) -> None:
    options = ["--max-update=8", "--validate-interval-updates=5", "--save-interval-updates=5"]
    if when != "epoch":
        options += ["--keep-best-checkpoints=2"]  # their names contain the loss
    else:
        options += ["--max-tokens=600", "--max-epoch=2", "--validate-interval-updates=0"]
    last = 3 if when == "epoch" else 5
    whole = process.train(tiny_data, tmp_path / "whole", *options)
    run, method = tmp_path / "run", "valid_step" if when == "validation" else "train_step"
    first = process.preempt(tiny_data, run, *options, update=last, method=method)
    assert num_updates(saved(run)) == last
    stopped = shutil.copy(run / "checkpoint_last.pt", tmp_path / "stopped.pt")
    assert not any("valid_loss" in line for line in first)
    second = process.train(tiny_data, run, *options)
    assert (first + second)[: last + 1] == whole[: last + 1]
    assert len(first + second) == len(whole)
    if when == "validation":  # which the next run begins with, in another folder
        other, words = tmp_path / "other", [f"--restore-file={stopped}", *options]
        process.preempt(tiny_data, other, *words, update=last, method=method)
        assert num_updates(saved(other)) == last
    last_of_all = "checkpoint1.pt" if when == "epoch" else "checkpoint_last.pt"
    assert_same(saved(run, last_of_all), saved(tmp_path / "whole", last_of_all))
    names = {path.name for path in (tmp_path / "whole").glob("*.pt")}
    assert {path.name for path in run.glob("*.pt")} == names
    for name in names:
        assert num_updates(saved(run, name)) == num_updates(saved(tmp_path / "whole", name))


def test_a_prevented_last_validation_needs_no_further_update(
    process: InProcess, tiny_data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process.preempt(tiny_data, run, "--max-update=8", update=3)
    lines = process.train(tiny_data, run, "--max-update=3")
    assert [line["valid_num_updates"] for line in lines] == [[3.0]]
    assert num_updates(saved(run)) == num_updates(saved(run, "checkpoint_best.pt")) == 3


@pytest.mark.parametrize("is_run_of_train_sh", [True, False])
def test_the_same_command_resumes_after_a_reset_only_with_train_sh(
    is_run_of_train_sh: bool, process: InProcess, tiny_data: Path, tmp_path: Path
) -> None:
    if is_run_of_train_sh:
        (tmp_path / "config.yaml").touch()
    process.preempt(tiny_data, tmp_path / "checkpoints", "--reset-meters", update=1)
    message = process.caplog.messages[-1]
    assert ("without --reset-*" in message) != is_run_of_train_sh, message


def test_an_unrecorded_end_is_an_end(process: InProcess, tiny_data: Path, tmp_path: Path) -> None:
    process.patch.setattr("fairseq_deepnet.ended.write_json", Mock(side_effect=OSError))
    process.preempt(tiny_data, tmp_path, update=1)
    process.preempt(tiny_data, tmp_path, "--no-save", update=2)


def signal_rank_1(rank: int) -> None:
    """Signal one of two processes during update 2."""
    preemption._is_listening = True
    train_step = Trainer.train_step

    def signalled(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if rank == 1 and trainer.get_num_updates() == 1:
            preemption._received = signal.SIGTERM
        return train_step(trainer, *args, **kwargs)

    Trainer.train_step = signalled


def test_two_processes_stop_after_the_same_update(tiny_data: Path, tmp_path: Path) -> None:
    words = [*OPTIONS, "--arch=transformer", "--update-freq=2", "--max-update=30"]
    ended = train_together(tiny_data, tmp_path / "run", *words, begin=signal_rank_1)
    assert ended == [PREEMPTED, PREEMPTED]
    assert num_updates(saved(tmp_path / "run")) == 2


RIG = """
import atexit, os, signal, sys, time
sys.path.insert(0, {root!r})
import torch
if {at_exit}:  # the function registered first runs last, after the end of fairseq-train
    atexit.register(lambda: kill_at_exit())
import fairseq_deepnet.models
from fairseq_deepnet import ended, preemption
from fairseq.trainer import Trainer

def kill_at_exit():
    # at exit, Python restores the default action of signals that are not ignored
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    os.kill(os.getpid(), signal.SIGTERM)
    print("signalled at exit", flush=True)

def train_step(self, *args, **kwargs):
    if self.get_num_updates() == 4 and not {at_exit}:
        os.killpg(0, signal.SIGUSR1)
        os.killpg(0, signal.SIGTERM)
        while preemption.signalled() is None:
            time.sleep(0.01)
    return original(self, *args, **kwargs)

original, Trainer.train_step = Trainer.train_step, train_step
"""
"""A user-dir that sends signals during update 5 or at the end of the process."""


@pytest.mark.parametrize(
    ("at_exit", "options", "status", "message", "last"),
    [
        (True, ["--max-update=2"], 0, "signalled at exit", 2),
        # data-loading workers receive the signal, too
        (
            *(False, ["--max-update=30", "--num-workers=2"], PREEMPTED),
            *("preempted: update 5 is saved", 5),
        ),
    ],
)
def test_a_signal_to_all_processes_of_fairseq_train(
    at_exit: bool,
    options: list[str],
    status: int,
    message: str,
    last: int,
    tiny_data: Path,
    tmp_path: Path,
) -> None:
    plugin, run = tmp_path / "plugin", tmp_path / "run"
    plugin.mkdir()
    text = RIG.format(root=str(ROOT), at_exit=at_exit)
    (plugin / "__init__.py").write_text(text, encoding="utf-8")
    command = ["fairseq-train", tiny_data, "--user-dir", plugin, "--save-dir", run, *OPTIONS]
    result = subprocess.run(
        [str(part) for part in (*command, *options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        cwd=tmp_path,
        start_new_session=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == status, result.stdout
    assert message in result.stdout
    assert ("preempted" in result.stdout) == (not at_exit)
    assert "Traceback" not in result.stdout
    assert num_updates(saved(run)) == last
