"""`deepnet export`: options of all formats, and the checkpoint for stock fairseq."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import fairseq_deepnet.tools.export
from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from tests.support.runs import make_data
from tests.support.shell import Refused
from tests.support.trained import make_trained_run

NAMES = {
    "fairseq": "checkpoint_best.pt",
    "ctranslate2": "ctranslate2-float32",
    "huggingface": "huggingface",
}
"""Format -> default name of the export."""


@pytest.fixture
def run_folder(tmp_path: Path, data: Path) -> Path:
    make_trained_run(tmp_path / "run", data)
    return tmp_path / "run"


@pytest.fixture(params=NAMES)
def form(request: pytest.FixtureRequest) -> str:
    """Return every format whose packages are installed."""
    name: str = request.param
    pytest.importorskip({"huggingface": "huggingface_hub"}.get(name, name), reason="an extra")
    return name


def export(*words: object) -> int:
    return cli.main(["export", *map(str, words)])


def test_a_run_becomes_a_checkpoint_of_stock_fairseq(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(run_folder, "--to", "fairseq") == 0
    output = run_folder / "export" / "checkpoint_best.pt"
    assert capsys.readouterr().out == f"{output}\n"
    state = load_checkpoint(output)
    assert state["cfg"]["model"]["arch"] == "transformer"
    assert not [name for name in state["model"] if "residual" in name]
    assert num_updates(state) == 7
    assert state["last_optimizer_state"] is None
    assert state["extra_state"] == {"train_iterator": {"epoch": 2}}
    record = state["export"]
    assert (record["checkpoint"], record["scheme"]) == ("checkpoint_best.pt", "deepnorm")
    assert (record["num_updates"], record["request"]["format"]) == (7, "fairseq")
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    assert cli.main(["average", str(output), f"--out={output}"]) == 0  # no longer an export
    assert export(run_folder, "--to", "fairseq") == 2


def test_an_export_replaces_an_earlier_export_but_no_other_file(
    form: str, run_folder: Path, refused: Refused
) -> None:
    checkpoint = run_folder / "checkpoints" / "checkpoint_best.pt"
    output = run_folder / "export" / NAMES[form]
    assert export(run_folder, "--to", form) == 0
    written = output.stat().st_mtime_ns
    assert export(run_folder, "--to", form) == 0
    assert output.stat().st_mtime_ns != written
    content = checkpoint.read_bytes()
    for path in (checkpoint, checkpoint.parent):
        error = refused("export", run_folder, "--to", form, "--out", path)
        assert "exists and is not an export" in error
    assert checkpoint.read_bytes() == content


def test_a_model_of_bare_fairseq_commands_is_exported_with_its_sentencepiece_model(
    form: str, run_folder: Path, tmp_path: Path, refused: Refused
) -> None:
    bare = make_data(tmp_path / "bin")
    (bare / "corpus.json").unlink()
    spm = (bare / "spm.model").rename(tmp_path / "mine.model")
    alone = (run_folder / "checkpoints" / "checkpoint_best.pt").rename(tmp_path / "model.pt")
    words = (alone, "--to", form, "--data", bare, "--out", tmp_path / "out")
    if form != "fairseq":
        assert "--spm FILE" in refused("export", *words)
    assert export(*words, "--spm", spm) == 0
    if form != "fairseq":
        name = {"ctranslate2": "mine.model", "huggingface": "source.spm"}[form]
        assert (tmp_path / "out" / name).read_bytes() == spm.read_bytes()
        assert "without sentencepiece" in refused("export", *words, "--spm", "none")


def test_a_missing_package_is_named(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    for name in ["ctranslate2", *(name for name in sys.modules if name.startswith("ctranslate2."))]:
        monkeypatch.setitem(sys.modules, name, None)
    name = "ctranslate2_folder"
    monkeypatch.delitem(sys.modules, f"fairseq_deepnet.tools.export.{name}", raising=False)
    monkeypatch.delattr(fairseq_deepnet.tools.export, name, raising=False)
    error = refused("export", run_folder, "--to", "ctranslate2")
    assert "ctranslate2 is not installed: pip install" in error


def test_a_checkpoint_that_training_replaces_before_it_is_read_is_not_exported(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    def load(path: Path, **options: bool) -> dict[str, Any]:
        state = load_checkpoint(path, **options)
        path.write_bytes(path.read_bytes() + b"newer")
        return state

    monkeypatch.setattr("fairseq_deepnet.tools.export.export.load_checkpoint", load)
    assert "was replaced before it was read" in refused("export", run_folder, "--to", "fairseq")
    assert not (run_folder / "export").exists()
