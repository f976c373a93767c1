"""An installed package: its configs are inside, and it writes below the working folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.shell import ROOT

CODE = ("fairseq_deepnet", "scripts", "tests", "benchmarks", ".ci")
PARTS = (*CODE, "configs", "data/sample", "docs")
BUILD = "from setuptools import build_meta as b; print(b.build_wheel('d'), b.build_sdist('d'))"


def relative_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, as wheel and sdist are built from it into d/."""
    source = tmp_path_factory.mktemp("installed") / "source"
    for part in PARTS:
        leave_out = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(ROOT / part, source / part, ignore=leave_out)
    for path in ROOT.glob("[!.]*"):
        if path.is_file():
            shutil.copy(path, source)
    words = [sys.executable, "-c", BUILD]
    done = subprocess.run(words, cwd=source, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return source


def test_an_installed_package_finds_its_configs_and_writes_below_the_working_folder(
    source: Path,
) -> None:
    installed, empty = source.parent / "site-packages", source.parent / "empty"
    empty.mkdir()
    with zipfile.ZipFile(next((source / "d").glob("*.whl"))) as wheel:
        wheel.extractall(installed)
    before = relative_files(installed)
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}

    def deepnet(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "fairseq_deepnet.cli", *words]
        done = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = deepnet("train", "multi30k_tiny", "--gpus=0", "--dry-run", "--", "--max-update=10")
    assert f"--user-dir {installed / 'fairseq_deepnet'}" in command
    assert f"--save-dir {empty / 'runs' / 'multi30k_tiny' / 'checkpoints'}" in command
    assert relative_files(empty) == set()
    deepnet("preprocess", "sample")
    assert (empty / "data" / "sample.de-en" / "corpus.json").is_file()
    assert relative_files(installed) == before


def test_the_sdist_is_the_whole_project(source: Path) -> None:
    with tarfile.open(next((source / "d").glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for part in PARTS:
        assert {f"{part}/{name}" for name in relative_files(source / part)} <= names
    assert {"__init__.py", "pyproject.toml", "README.md", "LICENSE"} <= names
