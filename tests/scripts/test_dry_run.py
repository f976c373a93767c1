"""With DRY_RUN=1, every script writes nothing, or refuses in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.shell import ROOT, run_script

SCRIPTS = sorted(
    path.name
    for path in (ROOT / "scripts").glob("*.sh")
    # recipes hand over to the same subcommands
    if not path.name.startswith(("train_", "preprocess_"))
)
WORDS = {
    "train.sh": "multi30k_tiny",
    "sweep.sh": "table1",
    **dict.fromkeys(("average.sh", "eval_bleu.sh"), "run"),
}
PLACES = ("DATA", "OUT", "RUN", "RUNS", "VENV")
TEXT = {"SRC": "de", "TGT": "en", "TRAIN": "raw", "VALID": "raw"}


def files_of(*folders: Path) -> set[str]:
    return {str(path) for folder in folders if folder.exists() for path in folder.iterdir()}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_writes_nothing(script: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("raw.de", "raw.en"):
        (tmp_path / name).touch()
    folders = (tmp_path, tmp_path / "run", ROOT, ROOT / "data", ROOT / "runs")
    before = files_of(*folders)
    environment = {name: str(tmp_path / name.lower()) for name in PLACES}
    environment |= TEXT if script == "preprocess.sh" else {}
    environment |= {"HOME": str(tmp_path), "DRY_RUN": "1", "GPUS": "1", "VIRTUAL_ENV": ""}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "DEEPNET_SKIP_SETUP": "1"}
    result = run_script(
        script,
        *WORDS.get(script, "").split(),
        env=environment,
        path=f"{Path(sys.executable).parent}:/usr/bin:/bin",
        cwd=tmp_path,
    )
    assert files_of(*folders) == before
    if result.returncode:
        assert result.returncode == 2
        (line,) = result.stderr.splitlines()
        assert "error: DRY_RUN is '1', but this command has no dry run; unset it" in line
    else:
        assert result.stdout or result.stderr
