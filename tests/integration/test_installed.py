"""An installed package: its configs are inside, and it writes below the working folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.shell import ROOT

BUILD = "from setuptools import build_meta as b; print(b.build_wheel('d'))"


def relative_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_an_installed_package_finds_its_configs_and_writes_below_the_working_folder(
    tmp_path: Path,
) -> None:
    source, installed, empty = (tmp_path / name for name in ("source", "site-packages", "empty"))
    empty.mkdir()
    for part in ("fairseq_deepnet", "configs", "data/sample"):
        leave_out = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(ROOT / part, source / part, ignore=leave_out)
    for path in ROOT.glob("[!.]*"):
        if path.is_file():
            shutil.copy(path, source)
    words = [sys.executable, "-c", BUILD]
    subprocess.run(words, cwd=source, capture_output=True, check=True)
    with zipfile.ZipFile(next((source / "d").glob("*.whl"))) as wheel:
        wheel.extractall(installed)
    before = relative_files(installed)
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}

    def deepnet(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "fairseq_deepnet.cli", *words]
        process = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, encoding="utf-8", check=False
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    command = deepnet("train", "multi30k_tiny", "--gpus=0", "--dry-run", "--", "--max-update=10")
    assert f"--user-dir {installed / 'fairseq_deepnet'}" in command
    assert f"--save-dir {empty / 'runs' / 'multi30k_tiny' / 'checkpoints'}" in command
    assert relative_files(empty) == set()
    deepnet("preprocess", "sample", "--dry-run")
    assert relative_files(installed) == before
