"""scripts/train.sh and the recipes on it, with a fairseq-train that is not the real one."""

from __future__ import annotations

import json
import subprocess
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
