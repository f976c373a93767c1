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


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["/nowhere"], {}, "there is no run or checkpoint /nowhere"),
        (["RUN"], {"BEAM": "five"}, "BEAM is 'five'"),
        (["--beam", "3"], {}, "options need a run or a checkpoint before them"),
        (["RUN"], {"ENGINE": "marian"}, "ENGINE is 'marian'"),
        (["RUN"], {"QUANTIZATION": "int8"}, "QUANTIZATION=int8 needs ENGINE=ctranslate2"),
        (["RUN"], {"THREADS": "0"}, "THREADS=0; at least 1"),
        (["RUN", "--nbest", "2"], {"ENGINE": "ctranslate2"}, "options of fairseq-generate"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    fake_bin: FakeBin, run_folder: Path, words: list[str], env: dict[str, str], message: str
) -> None:
    result = evaluate(fake_bin, *(word.replace("RUN", str(run_folder)) for word in words), **env)
    assert result.returncode == 2
    (error,) = [line for line in result.stderr.splitlines() if "error:" in line]
    assert message in error


def test_average_sh_writes_beside_the_checkpoints_and_says_where(run_folder: Path) -> None:
    result = run_script("average.sh", run_folder, env={"N": "3"})
    assert result.returncode == 0, result.stderr
    path = run_folder / "checkpoints" / "average_3.pt"
    assert result.stdout == f"{path}\n"
    weight = load_checkpoint(path)["model"]["weight"]
    assert weight[0].item() == pytest.approx(70 / 3)


def test_average_sh_takes_named_checkpoints(run_folder: Path, tmp_path: Path) -> None:
    named = [run_folder / "checkpoints" / f"checkpoint_1_{n}.pt" for n in (10, 40)]
    result = run_script("average.sh", *named, env={"OUT": str(tmp_path / "mean.pt")})
    assert result.returncode == 0, result.stderr
    assert load_checkpoint(tmp_path / "mean.pt")["model"]["weight"].tolist() == [25.0, 25.0]


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        ([], {}, "a run or checkpoints are missing"),
        (["RUN"], {"N": "0"}, "N is '0'"),
        (["RUN/checkpoints/checkpoint_1_10.pt"], {}, "one checkpoint alone has no average"),
        (["RUN", "RUN"], {}, "one run at a time"),
    ],
)
def test_average_sh_refuses_what_it_cannot_average(
    run_folder: Path, words: list[str], env: dict[str, str], message: str
) -> None:
    result = run_script("average.sh", *(w.replace("RUN", str(run_folder)) for w in words), env=env)
    assert result.returncode == 2
    assert message in result.stderr
    assert not list(run_folder.rglob("average_*"))
