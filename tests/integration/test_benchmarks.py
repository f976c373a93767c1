"""The commands of benchmarks/ on the smallest shapes, and what their numbers rest on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.footprint import activations
from fairseq_deepnet.tools.planning import estimates
from tests.integration.conftest import RunCommand
from tests.support.shell import ROOT

SMALL = ["--layers", "1", "--width", "64", "--vocabulary", "100"]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, importable as it is for its scripts."""
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    return folder


def cells(text: str) -> list[list[str]]:
    """The rows of the Markdown tables in a text, heads and rules left out."""
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
def test_training_speed_compares_systems_goes_on_without_one_and_keeps_every_number(
    run_command: RunCommand, tmp_path: Path
) -> None:
    options = [*SMALL, "--tokens", "256", "--rounds", "2", "--systems", "stock,ours"]
    options += ["--variant", "broken=--nosuch"]
    done = run(run_command, "training_speed", *options, "--json", str(tmp_path / "all.json"))
    assert done.returncode == 1, done.stderr
    assert "broken: the process ended with status 2: worker.py: error: unrec" in done.stdout
    assert "usage:" not in done.stderr
    stock, ours = cells(done.stdout)
    assert (stock[1], ours[1]) == ("stock", "ours")
    assert stock[5] == "1.00"
    parts = [float(cell.rstrip("%")) for cell in ours[7:13]]
    assert sum(parts) == pytest.approx(100, abs=3)
    assert 0 < float(ours[13].rstrip("%")) < 100  # no update is faster than its products
    (shape,) = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["measured"]
    both = [shape["found"][name] for name in ("stock", "ours")]
    # the same batches, of the same size
    assert [one["sizes"] for one in both[0]] == [one["sizes"] for one in both[1]]
    assert both[0][0]["parameters"] == both[1][0]["parameters"]


# rows 4 and 5 are streams, which are not judged at 6 layers
ROWS = (slice(4), slice(6, 17), slice(17, 21), slice(21, 23), slice(23, None))


@pytest.mark.slow
def test_gpu_check_has_its_logic_on_the_cpu_and_does_nothing_twice(
    run_command: RunCommand, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    options = ["--device", "cpu", *SMALL, "--tokens", "256", "--precisions", "bf16"]
    options += ["--rounds", "1", "--no-compile", "--results", str(results)]
    done = run(run_command, "gpu_check", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    correct, features, commands, training, sharded = (cells(done.stdout)[part] for part in ROWS)
    assert [row[-1] for row in correct] == ["ok", "", "ok", "ok"]
    assert [row[-1] for row in features] == ["ok"] * 11
    assert [row[-1] for row in commands] == ["ok"] * 4
    assert [row[2] for row in training] == ["stock", "ours"]
    assert [(row[1], row[-1]) for row in sharded] == [("bf16", "ok")]
    again = run(run_command, "gpu_check", *options)
    assert cells(again.stdout) == cells(done.stdout)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_gpu_check_says_so_where_there_is_no_gpu(run_command: RunCommand) -> None:
    done = run(run_command, "gpu_check")
    assert done.returncode == 2
    assert "--device cpu" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_stock_system_does_not_import_the_plugin(benchmarks: Path) -> None:
    code = "import sys; from side_by_side.systems import System; from side_by_side import worker;"
    code += " worker.load(System('stock', 'stock')); print('fairseq_deepnet' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=benchmarks,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_products_are_the_operations_that_the_plan_counts(benchmarks: Path) -> None:
    from side_by_side.limits import operations, products
    from side_by_side.systems import Shape, System

    from fairseq_deepnet.tools import fairseq_options

    shape = Shape(3, 128, 500, 1024)
    args: Any = fairseq_options.parse_training(System("ours", "ours").arguments(shape))
    model = estimates.read_model(args, (500, 500))
    batch = activations.MicroBatch(sentences=4, source=9, target=11, element=4, on_gpu=True)
    flops = estimates.count_flops(model, batch)
    forward = flops["linear"] + flops["attention"] + flops["projection"]
    assert operations(products(shape, 4, 9, 11)) == 3 * forward
    assert operations(products(shape, 4, 9, 11, 36, 40)) < 3 * forward  # four fewer of the target
