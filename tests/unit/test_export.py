"""`deepnet export --to fairseq`: what is written, when, and what is left alone."""

from __future__ import annotations

import argparse
import pickle
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from fairseq.models import MODEL_REGISTRY

import fairseq_deepnet.tools.export
from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import load_checkpoint, num_updates, save_checkpoint
from fairseq_deepnet.files import write_json
from fairseq_deepnet.models.options import KIND_OF
from fairseq_deepnet.provenance import fingerprint
from fairseq_deepnet.tools import fairseq_options
from fairseq_deepnet.tools.export import model_card, record, stock
from fairseq_deepnet.tools.trained_model import choose_model
from tests.support.runs import make_data
from tests.support.trained import make_trained_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture
def run_folder(tmp_path: Path, data: Path) -> Path:
    make_trained_run(tmp_path / "run", data)
    return tmp_path / "run"


def export(*words: object) -> int:
    return cli.main(["export", *map(str, words)])


def test_a_run_becomes_a_checkpoint_without_anything_of_ours(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(run_folder, "--to", "fairseq") == 0
    output = run_folder / "export" / "checkpoint_best.pt"
    assert capsys.readouterr().out == f"{output}\n"
    held = load_checkpoint(output)
    assert held["cfg"]["model"]["arch"] == "transformer"
    assert not [name for name in held["model"] if "residual" in name]
    assert num_updates(held) == 7
    assert held["last_optimizer_state"] is None
    assert held["extra_state"] == {"train_iterator": {"epoch": 2}}
    facts = held["export"]
    assert (facts["format"], facts["scheme"], facts["num_updates"]) == ("fairseq", "deepnorm", 7)
    assert facts["checkpoint"].endswith("run/checkpoints/checkpoint_best.pt")
    assert [path.name for path in output.parent.iterdir()] == [output.name]


@pytest.mark.parametrize("arch", sorted({kind.arch for kind in KIND_OF.values()}))
def test_a_stock_model_has_no_option_that_stock_does_not_know(arch: str) -> None:
    kind, tasks = KIND_OF[arch], {2: "translation", 1: "language_modeling"}
    common = ["DATA", f"--task={tasks[len(kind.sides)]}", "--optimizer=adam", "--max-tokens=64"]
    words = ["--checkpoint-activations-every=2", "--compile", "--monitor-interval=5"]
    words += ["--checkpoint-memory=4"] if len(kind.sides) == 2 else []
    ours = fairseq_options.parse_training([*common, f"--arch={arch}", *words])
    theirs = fairseq_options.parse_training([*common, f"--arch={kind.stock}"])
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY[kind.stock].add_args(parser)
    known = {*vars(theirs), *(action.dest for action in parser._actions), "_name"}
    assert not vars(stock.stock_arguments(ours, kind, {})).keys() - known


@pytest.fixture
def nothing_allowed() -> Iterator[None]:
    """torch.load as it is without this plugin."""
    held = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    yield
    torch.serialization.add_safe_globals(held)


@pytest.mark.usefixtures("nothing_allowed")
def test_torch_loads_it_though_no_class_is_allowed(run_folder: Path) -> None:
    source = run_folder / "checkpoints" / "checkpoint_best.pt"
    with pytest.raises(pickle.UnpicklingError, match="Namespace"):
        torch.load(source)
    torch.serialization.add_safe_globals([Namespace])
    export(run_folder, "--to", "fairseq")
    torch.serialization.clear_safe_globals()
    assert torch.load(run_folder / "export" / "checkpoint_best.pt")["cfg"]


def test_a_second_export_does_nothing_and_says_so(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run_folder / "export" / "checkpoint_best.pt"
    export(run_folder, "--to", "fairseq")
    before = output.stat().st_mtime_ns
    assert export(run_folder, "--to", "fairseq") == 0
    assert output.stat().st_mtime_ns == before
    assert "already exported" in capsys.readouterr().err
    assert export(run_folder, "--to", "fairseq", "--force") == 0
    assert output.stat().st_mtime_ns > before


def test_a_second_process_waits_for_the_first_and_finds_its_export(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, output = record.in_place_of, run_folder / "export" / "checkpoint_best.pt"
    second = threading.Thread(target=export, args=(run_folder, "--to", "fairseq"))

    def in_place_of(path: Path) -> AbstractContextManager[Path]:
        """Half way in the first, the second begins."""
        second.start()
        second.join(0.5)
        assert second.is_alive()
        return first(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "in_place_of", in_place_of)
        assert export(run_folder, "--to", "fairseq") == 0
    second.join()
    printed = capsys.readouterr()
    assert printed.out == f"{output}\n" * 2
    assert printed.err.count("waiting for another export") == 1
    assert printed.err.count("already exported") == 1


def test_an_export_of_an_older_checkpoint_is_replaced(run_folder: Path) -> None:
    source = run_folder / "checkpoints" / "checkpoint_best.pt"
    export(run_folder, "--to", "fairseq")
    state = load_checkpoint(source)
    state["optimizer_history"] = [{"num_updates": 9}]
    save_checkpoint(state, source)
    assert export(run_folder, "--to", "fairseq") == 0
    assert num_updates(load_checkpoint(run_folder / "export" / "checkpoint_best.pt")) == 9


def test_the_mean_of_the_last_checkpoints_is_exported_under_its_name(run_folder: Path) -> None:
    folder = run_folder / "checkpoints"
    name = "decoder.layers.0.fc1.weight"
    for updates, shift in ((10, 0.0), (20, 1.0), (30, 3.0)):
        state = load_checkpoint(folder / "checkpoint_best.pt")
        state["optimizer_history"] = [{"num_updates": updates}]
        state["model"][name] = torch.full_like(state["model"][name], shift)
        save_checkpoint(state, folder / f"checkpoint_1_{updates}.pt")
    assert export(run_folder, "--to", "fairseq", "--average", 2) == 0
    held = load_checkpoint(run_folder / "export" / "average_2.pt")
    assert held["model"][name].unique().tolist() == [2.0]
    assert held["export"]["averaged"] == ["checkpoint_1_20.pt", "checkpoint_1_30.pt"]


def test_a_file_of_somebody_else_is_replaced_by_force_alone(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs.pt"
    theirs.write_text("notes", encoding="utf-8")
    words = (run_folder, "--to", "fairseq", "--out", theirs)
    assert export(*words) == 2
    assert "no export of this command's" in capsys.readouterr().err
    assert theirs.read_text(encoding="utf-8") == "notes"
    assert export(*words, "--force") == 0
    assert f"replacing {theirs}\n" in capsys.readouterr().err
    assert load_checkpoint(theirs)["export"]["format"] == "fairseq"


def test_the_checkpoint_itself_is_never_overwritten(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = run_folder / "checkpoints" / "checkpoint_best.pt"
    before = source.read_bytes()
    assert export(run_folder, "--to", "fairseq", "--out", source, "--force") == 2
    assert "is the checkpoint itself" in capsys.readouterr().err
    assert source.read_bytes() == before


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "force"])
def test_a_folder_of_something_else_is_not_replaced_even_by_force(
    run_folder: Path, tmp_path: Path, force: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("text", encoding="utf-8")
    assert export(run_folder, "--to", "fairseq", "--out", folder, *force) == 2
    assert "even --force does not replace" in capsys.readouterr().err
    assert (folder / "chapter.tex").read_text(encoding="utf-8") == "text"


@pytest.mark.parametrize("kept", [0, 100, 0.7])
def test_a_damaged_checkpoint_is_named_and_nothing_is_written(
    run_folder: Path, kept: float, capsys: pytest.CaptureFixture[str]
) -> None:
    source = run_folder / "checkpoints" / "checkpoint_best.pt"
    content = source.read_bytes()
    source.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    assert export(run_folder, "--to", "fairseq") == 2
    assert f"{source} is damaged" in capsys.readouterr().err
    assert not list((run_folder).glob("export/*"))


def test_a_scheme_that_does_not_fold_is_refused_and_nothing_is_written(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trained_run(tmp_path / "run", data, residual_scheme="rezero")
    assert export(tmp_path / "run", "--to", "fairseq") == 2
    assert "--residual-scheme rezero cannot" in capsys.readouterr().err
    assert not (tmp_path / "run" / "export").exists()


def test_a_lone_checkpoint_needs_an_output(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "alone" / "model.pt"
    alone.parent.mkdir()
    (run_folder / "checkpoints" / "checkpoint_best.pt").rename(alone)
    assert export(alone, "--to", "fairseq") == 2
    assert "say where to, with --out" in capsys.readouterr().err
    assert export(alone, "--to", "fairseq", "--out", alone.with_name("stock.pt")) == 0


def test_a_model_of_another_kind_is_refused(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = run_folder / "checkpoints" / "checkpoint_best.pt"
    state = load_checkpoint(source)
    state["cfg"]["model"].arch = "lstm"
    save_checkpoint(state, source)
    assert export(run_folder, "--to", "fairseq") == 2
    assert "a model of arch lstm is not exported" in capsys.readouterr().err


def test_a_model_card_shows_fairseqs_scores_of_the_exported_checkpoint_alone(
    run_folder: Path,
) -> None:
    model = choose_model(run_folder, 0)
    own, score = [fingerprint(model.path)], {"bleu": 30.0, "bleu_signature": "s"}
    before = [own[0] | {"modified": 1}]
    name = "test.checkpoint_best.beam5.lenpen1"
    for file, more in {
        "own.json": {"checkpoints": own},
        "before.json": {"checkpoints": before},
        "/de-en.json": {"checkpoints": own},
        "/en-de.json": {"checkpoints": before},
        ".ctranslate2-int8/de-en.json": {"checkpoints": own, "engine": "ctranslate2"},
        "silent.json": {},
    }.items():
        path = model.scores / (f"{name}{file}" if file[0] in "./" else f"{name}.{file}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, score | {"request": more})
    assert sorted(model_card.read_scores(model)) == [f"{name}.own.json", f"{name}/de-en.json"]


def test_quantization_belongs_to_ctranslate2(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(run_folder, "--to", "fairseq", "--quantization", "int8") == 2
    assert "leave it out, or --to ctranslate2" in capsys.readouterr().err


def test_without_ctranslate2_the_command_says_what_to_install(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "ctranslate2"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("ctranslate2_folder",):
        monkeypatch.delitem(sys.modules, f"fairseq_deepnet.tools.export.{name}", raising=False)
        monkeypatch.delattr(fairseq_deepnet.tools.export, name, raising=False)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert export(run_folder, "--to", "ctranslate2") == 2
    assert "pip install 'fairseq_deepnet[ctranslate2]'" in capsys.readouterr().err
