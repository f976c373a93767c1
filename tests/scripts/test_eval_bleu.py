"""scripts/eval_bleu.sh and scripts/average.sh."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fairseq_deepnet.checkpoints import load_checkpoint
from tests.support.runs import make_data, make_run
from tests.support.shell import FakeBin, run_script


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture
def run_folder(tmp_path: Path, data: Path) -> Path:
    return make_run(tmp_path / "run", data)


def evaluate(fakes: FakeBin, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {"PROCESSES": "1", "GPUS": "0", **env}
    return run_script("eval_bleu.sh", *words, env=variables, path=fakes.path())


def test_the_script_hands_over(fake_bin: FakeBin, run_folder: Path) -> None:
    fake_bin.add("deepnet")
    assert evaluate(fake_bin, run_folder, "--max-len-b", "30").returncode == 0
    due = ["evaluate", "--variables", str(run_folder), "--", "--max-len-b", "30"]
    assert fake_bin.calls("deepnet") == [due]


def test_average_sh_writes_beside_the_checkpoints_and_says_where(run_folder: Path) -> None:
    result = run_script("average.sh", run_folder, env={"N": "3"})
    assert result.returncode == 0, result.stderr
    path = run_folder / "checkpoints" / "average_3.pt"
    assert result.stdout == f"{path}\n"
    weight = load_checkpoint(path)["model"]["weight"]
    assert weight[0].item() == pytest.approx(70 / 3)
