"""Commands of benchmarks/ on the smallest shapes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.conftest import RunCommand
from tests.support.runs import SENTENCES
from tests.support.shell import ROOT
from tests.support.trained import make_trained_run

SMALL = ["--layers", "1", "--width", "64", "--vocabulary", "100"]


def cells(text: str) -> list[list[str]]:
    """Return the rows of the Markdown tables in a text, without headings and rules."""
    rows = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("|")]
    rules = [number for number, row in enumerate(rows) if set("".join(row)) <= set("-:")]
    return [
        [cell.strip() for cell in row]
        for number, row in enumerate(rows)
        if number not in rules and number + 1 not in rules
    ]


def run(run_command: RunCommand, script: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return run_command(sys.executable, f"benchmarks/{script}.py", *options, cwd=ROOT)


@pytest.mark.slow
def test_training_speed_compares_systems_and_continues_without_a_broken_one(
    run_command: RunCommand,
) -> None:
    options = [*SMALL, "--tokens", "256", "--rounds", "2", "--systems", "stock,ours"]
    result = run(run_command, "training_speed", *options, "--variant", "broken=--nosuch")
    assert result.returncode == 1, result.stderr
    assert "broken: the process ended with status 2: worker.py: error: unrec" in result.stdout
    stock, ours = cells(result.stdout)
    assert (stock[1], stock[5], ours[1]) == ("stock", "1.00", "ours")


# rows 4 and 5 are streams, which are not judged at 6 layers
ROWS = (slice(4), slice(6, 17), slice(17, 21), slice(21, None))


@pytest.mark.slow
def test_gpu_check_runs_on_the_cpu_and_measures_nothing_twice(
    run_command: RunCommand, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    options = ["--device", "cpu", *SMALL, "--tokens", "256", "--precisions", "bf16"]
    options += ["--rounds", "1", "--no-compile", "--results", str(results)]
    result = run(run_command, "gpu_check", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    correct, features, commands, training = (cells(result.stdout)[part] for part in ROWS)
    assert [row[-1] for row in correct] == ["ok", "", "ok", "ok"]
    assert [row[-1] for row in features] == ["ok"] * 11
    assert [row[-1] for row in commands] == ["ok"] * 4
    assert [row[2] for row in training] == ["stock", "ours"]
    again = run(run_command, "gpu_check", *options)
    assert cells(again.stdout) == cells(result.stdout)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_gpu_check_without_a_gpu_is_one_line_of_error(run_command: RunCommand) -> None:
    result = run(run_command, "gpu_check")
    assert result.returncode == 2
    assert "--device cpu" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_stock_system_does_not_import_the_plugin(run_command: RunCommand) -> None:
    code = "import sys; from side_by_side.systems import System; from side_by_side import worker;"
    code += " worker.load(System('stock', 'stock')); print('fairseq_deepnet' in sys.modules)"
    result = run_command(sys.executable, "-c", code, cwd=ROOT / "benchmarks")
    assert result.stdout.strip() == "False", result.stderr


@pytest.mark.slow
def test_all_decoders_give_the_same_translations_as_stock_fairseq(
    tmp_path: Path, data: Path, run_command: RunCommand
) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    make_trained_run(tmp_path / "run", data, encoder_layers=2)
    names = ["stock", "ours@2", "float32@1", "stock-bf16", "ours-bf16@2"]
    options = [f"--systems={','.join(names)}", "--rounds=1", "--beam=2", "--batch=4"]
    result = run(run_command, "decoding", str(tmp_path / "run"), *options)
    assert result.returncode == 0, result.stderr[-2000:]
    assert f" {len(SENTENCES)} sentences," in result.stdout
    rows = cells(result.stdout)
    assert [row[0] for row in rows] == names
    assert [row[-1] for row in rows[:3]] == ["0", "0", "0"], "no translation differs"
    assert rows[0][3] == "1.00"
