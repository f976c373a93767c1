"""`deepnet export`: what all formats refuse, when they write, and stock fairseq's checkpoint."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_deepnet.tools.export
from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import load_checkpoint, num_updates, save_checkpoint
from tests.support.runs import make_data
from tests.support.trained import make_trained_run

NAMES = {
    "fairseq": "checkpoint_best.pt",
    "ctranslate2": "ctranslate2-float32",
    "huggingface": "huggingface",
}
"""Format -> usual name of its output."""


def identity(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file is written again; reading it changes its access time only."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture
def run_folder(tmp_path: Path, data: Path) -> Path:
    make_trained_run(tmp_path / "run", data)
    return tmp_path / "run"


@pytest.fixture(params=NAMES)
def form(request: pytest.FixtureRequest) -> str:
    """Every format whose packages are installed."""
    name: str = request.param
    pytest.importorskip({"huggingface": "huggingface_hub"}.get(name, name), reason="an extra")
    return name


def export(*words: object) -> int:
    return cli.main(["export", *map(str, words)])


def edit(run: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the state in a run's checkpoint, and return its path."""
    path = run / "checkpoints" / "checkpoint_best.pt"
    state = torch.load(path)
    change(state)
    save_checkpoint(state, path)
    return path


def test_a_run_becomes_a_checkpoint_without_anything_of_ours(
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


def test_the_same_request_again_does_nothing_also_after_copying_the_checkpoint(
    form: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run_folder / "export" / NAMES[form]
    assert export(run_folder, "--to", form) == 0
    before = identity(output)
    edit(run_folder, lambda state: None)  # the same content, written again
    assert export(run_folder, "--to", form) == 0
    assert identity(output) == before
    assert "already exported" in capsys.readouterr().err
    assert export(run_folder, "--to", form, "--force") == 0
    assert identity(output) != before


def test_what_this_command_did_not_write_is_replaced_by_force_alone(
    form: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    words = (run_folder, "--to", form, "--out", theirs)
    theirs.mkdir()
    (theirs / "model.bin").write_bytes(b"theirs")
    for force in ([], ["--force"]):  # a folder, such as one's home, not even then
        assert export(*words, *force) == 2
        assert "holds no export of this command's" in capsys.readouterr().err
        assert (theirs / "model.bin").read_bytes() == b"theirs"
    (theirs / "model.bin").unlink()
    theirs.rmdir()
    for is_folder in (False, True):
        if is_folder:
            theirs.mkdir()
        else:
            theirs.write_text("notes", encoding="utf-8")
        assert export(*words) == 2
        assert "no export of this command's" in capsys.readouterr().err
        assert is_folder or theirs.read_text(encoding="utf-8") == "notes"
        assert export(*words, "--force") == 0
        assert export(*words) == 0
        assert "already exported" in capsys.readouterr().err
        if form == "fairseq":
            theirs.unlink()
        else:
            for path in (*theirs.iterdir(), theirs):
                path.unlink() if path.is_file() else path.rmdir()


def test_the_mean_of_the_last_checkpoints_is_exported_under_its_name(run_folder: Path) -> None:
    folder = run_folder / "checkpoints"
    name = "decoder.layers.0.fc1.weight"
    for updates, shift in ((10, 0.0), (20, 1.0), (30, 3.0)):
        state = load_checkpoint(folder / "checkpoint_best.pt")
        state["optimizer_history"] = [{"num_updates": updates}]
        state["model"][name] = torch.full_like(state["model"][name], shift)
        save_checkpoint(state, folder / f"checkpoint_1_{updates}.pt")
    assert export(run_folder, "--to", "fairseq", "--average", 2) == 0
    state = load_checkpoint(run_folder / "export" / "average_2.pt")
    assert state["model"][name].unique().tolist() == [2.0]
    assert state["export"]["averaged"] == ["checkpoint_1_20.pt", "checkpoint_1_30.pt"]


@pytest.mark.parametrize("kept", [0, 100, 0.7])
def test_a_damaged_checkpoint_is_named_and_nothing_is_written(
    run_folder: Path, kept: float, capsys: pytest.CaptureFixture[str]
) -> None:
    source = run_folder / "checkpoints" / "checkpoint_best.pt"
    content = source.read_bytes()
    source.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    assert export(run_folder, "--to", "fairseq") == 2
    assert f"{source} is damaged" in capsys.readouterr().err
    assert not list(run_folder.glob("export/*"))


def test_a_full_disk_is_one_line_and_leaves_what_was_there(
    form: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit on a file's size stands for it."""
    out = tmp_path / "out"
    assert export(run_folder, "--to", form, "--out", out) == 0
    before = identity(out)
    edit(run_folder, lambda state: state["model"]["encoder.layers.0.fc1.bias"].add_(1))
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        assert export(run_folder, "--to", form, "--out", out) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    printed = capsys.readouterr().err
    assert "File too large" in printed
    assert printed.count("\n") == 1
    assert identity(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_the_checkpoint_itself_is_never_overwritten(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = run_folder / "checkpoints" / "checkpoint_best.pt"
    before = source.read_bytes()
    assert export(run_folder, "--to", "fairseq", "--out", source, "--force") == 2
    assert "is the checkpoint itself" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_a_model_of_bare_fairseq_commands_is_exported_with_its_sentencepiece_model(
    form: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = make_data(tmp_path / "bin")
    (bare / "corpus.json").unlink()
    spm = (bare / "spm.model").rename(tmp_path / "mine.model")
    alone = (run_folder / "checkpoints" / "checkpoint_best.pt").rename(tmp_path / "model.pt")
    words = (alone, "--to", form, "--data", bare, "--out", tmp_path / "out")
    if form != "fairseq":
        assert export(*words) == 2
        assert "--spm FILE" in capsys.readouterr().err
    assert export(*words, "--spm", spm) == 0
    if form == "ctranslate2":
        assert (tmp_path / "out" / "mine.model").read_bytes() == spm.read_bytes()
    if form == "huggingface":
        assert (tmp_path / "out" / "source.spm").read_bytes() == spm.read_bytes()
        assert export(*words, "--spm", "none", "--force") == 2
        assert "holds other tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "package"),
    [
        ("ctranslate2", "ctranslate2"),
        ("huggingface", "safetensors"),
        ("huggingface", "huggingface_hub"),
    ],
)
def test_without_its_package_the_command_says_what_to_install(
    form: str,
    package: str,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("ctranslate2_folder", "huggingface_folder", "model_card"):
        monkeypatch.delitem(sys.modules, f"fairseq_deepnet.tools.export.{name}", raising=False)
        monkeypatch.delattr(fairseq_deepnet.tools.export, name, raising=False)
    assert export(run_folder, "--to", form) == 2
    printed = capsys.readouterr().err
    assert f"{package} is not installed: " in printed
    assert f"pip install 'fairseq_deepnet[{form}]'" in printed
