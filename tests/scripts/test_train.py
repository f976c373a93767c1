"""scripts/train.sh and the recipes on it, with a fairseq-train that is not the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs import TINY, make_data
from tests.support.shell import ROOT, FakeBin, run_script

INTERVAL = (
    "2026-01-02 03:04:05 | INFO | train_inner | "
    '{"epoch": 1, "loss": "6.5", "wps": "10", "num_updates": "2"}\n'
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


def train(
    fakes: FakeBin, folder: Path, data: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    variables = {"RUN": str(folder), "DATA": str(data), "GPUS": "0"}
    words = ["multi30k", *TINY, *options]
    return run_script("train.sh", *words, env=variables, path=fakes.path())


def option(call: list[str], name: str) -> str:
    return call[call.index(name) + 1]


def test_a_run_on_the_cpu_is_recorded_trained_and_marked_as_done(
    fake_bin: FakeBin, tmp_path: Path, data: Path
) -> None:
    fake_bin.add("fairseq-train", stdout=INTERVAL + "noise")
    run = tmp_path / "run"
    first = train(fake_bin, run, data, "--max-update", "8")
    assert first.returncode == 0, first.stderr
    (call,) = fake_bin.calls("fairseq-train")
    assert call[0] == str(data)
    assert "--cpu" in call
    assert option(call, "--user-dir") == str(ROOT / "fairseq_deepnet")
    assert option(call, "--save-dir") == str(run / "checkpoints")
    assert option(call, "--tensorboard-logdir") == str(run / "tensorboard")
    assert (option(call, "--source-lang"), option(call, "--target-lang")) == ("de", "en")
    # 2,048 tokens per update, 200 a step
    assert (option(call, "--max-tokens"), option(call, "--update-freq")) == ("200", "10")
    assert "update 2/8  epoch 1  loss 6.500" in first.stdout
    assert "noise" in first.stdout
    assert (run / "train.log").read_text(encoding="utf-8") == INTERVAL + "noise"
    assert " fairseq-train" not in (run / "command.txt").read_text(encoding="utf-8")
    assert f"fairseq-train {data}" in (run / "command.txt").read_text(encoding="utf-8")
    facts = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    assert facts["versions"]["torch"]
    assert facts["seed"] == 1

    second = train(fake_bin, run, data, "--max-update", "8")
    assert second.returncode == 0
    assert "is complete: nothing to do" in second.stderr
    assert len(fake_bin.calls("fairseq-train")) == 1


def test_a_preempted_training_ends_with_all_that_it_started_and_frees_the_folder(
    fake_bin: FakeBin, tmp_path: Path, data: Path
) -> None:
    # stands for fairseq-train: ends on the signal as that does
    began, ended, run = tmp_path / "began", tmp_path / "ended", tmp_path / "run"
    fake_bin.add(
        "fairseq-train",
        f"trap 'touch {ended}; exit 85' TERM; echo $$ >{began}\n"
        "for i in $(seq 600); do sleep 0.1; done",
    )
    environment = {
        **os.environ,
        **{"DEEPNET_SKIP_SETUP": "1", "OMP_NUM_THREADS": "1"},
        # the real Python: its process is found by its number
        "PATH": fake_bin.path(Path(sys.executable).parent, os.environ["PATH"]),
        **{"RUN": str(run), "DATA": str(data), "GPUS": "0", "PREEMPTION_GRACE": "7"},
    }
    # nohup and & of a script without job control: what is started so ignores SIGINT
    script = subprocess.Popen(
        [
            *("bash", "-c", 'nohup bash "$@" & echo $! >"$0"; wait $!', str(tmp_path / "pid")),
            *(str(ROOT / "scripts" / "train.sh"), "multi30k", *TINY),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        wait_until(lambda: began.is_file() and began.read_text(encoding="utf-8").strip() != "")
        pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
        beside = train(fake_bin, run, data)
        assert beside.returncode == 2
        assert "another training uses" in beside.stderr
        os.kill(pid, signal.SIGTERM)
        _, errors = script.communicate(timeout=60)
    finally:
        script.kill()
    assert script.returncode == 85
    assert errors.splitlines()[-1] == "[train] preempted; the same command resumes"
    assert ended.exists()
    assert not lock_is_held(run)
    assert len(fake_bin.calls("fairseq-train")) == 1


def lock_is_held(run: Path) -> bool:
    command = ["flock", "--nonblock", str(run / ".lock"), "true"]
    return subprocess.run(command, check=False).returncode != 0


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.1)
