"""A thousand layers on a laptop: the paper's depth builds, trains an update and decodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("layers", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_deep_stacks_train_and_decode_in_little_memory(project_root: Path, layers: int) -> None:
    command = [sys.executable, "benchmarks/depth_cost.py", "--one", str(layers), "--width", "64"]
    done = subprocess.run(
        command, cwd=project_root, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["parameters"] > 40_000 * layers
    assert found["finite"]  # every gradient of every weight
    assert found["sentences"] == 4
    assert found["peak_mib"] < 6 * 1024
