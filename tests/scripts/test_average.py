"""scripts/average.sh."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_deepnet.checkpoints import load_checkpoint
from tests.support.runs import make_data, make_run
from tests.support.shell import run_script


def test_average_sh_writes_beside_the_checkpoints_and_says_where(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_data(tmp_path / "data"))
    result = run_script("average.sh", run, env={"N": "3"})
    assert result.returncode == 0, result.stderr
    path = run / "checkpoints" / "average_3.pt"
    assert result.stdout == f"{path}\n"
    assert load_checkpoint(path)["model"]["weight"][0].item() == pytest.approx(70 / 3)
