"""benchmarks/decoding.py on a tiny model, with all systems."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.conftest import RunCommand
from tests.support.runs import SENTENCES, make_data
from tests.support.trained import make_trained_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_all_systems_give_the_same_translations_as_stock_fairseq(
    tmp_path: Path, run_command: RunCommand
) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    data = make_data(tmp_path / "data")
    make_trained_run(tmp_path / "run", data, encoder_layers=2)
    words = [
        "--systems=stock,ours@2,float32@1,stock-bf16,ours-bf16@2",
        "--rounds=1",
        f"--sentences={len(SENTENCES)}",
    ]
    words += ["--beam=2", "--batch=4"]
    result = run_command(
        sys.executable, "benchmarks/decoding.py", tmp_path / "run", *words, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr[-2000:]
    rows = [line.split("|")[1:-1] for line in result.stdout.splitlines() if line.startswith("| ")]
    names = ["stock", "ours@2", "float32@1", "stock-bf16", "ours-bf16@2"]
    assert [row[0].strip() for row in rows] == ["system", *names]
    assert [row[-1].strip() for row in rows[1:4]] == ["0", "0", "0"], "no translation differs"
    assert rows[1][3].strip() == "1.00"
