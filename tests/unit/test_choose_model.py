"""The checkpoint and the data of a run."""

from pathlib import Path

import pytest

from fairseq_deepnet.records import sha256, write_json
from fairseq_deepnet.tools import trained_model
from tests.support.runs import make_checkpoint, make_data, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "one", tmp_path / "data")


def test_the_model_of_a_run_without_validation_is_its_last_checkpoint(run: Path) -> None:
    folder = run / "checkpoints"
    (folder / "checkpoint_best.pt").unlink()
    assert trained_model.choose_model(run, 0).path == folder / "checkpoint_last.pt"
    (folder / "checkpoint_last.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no checkpoint_best.*; name a run"):
        trained_model.choose_model(run, 0)
    (folder / "export.json").touch()
    with pytest.raises(ValueError, match="checkpoints is an exported model: give the run"):
        trained_model.choose_model(run, 0)


def test_a_run_whose_checkpoints_are_elsewhere_keeps_its_scores(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints").rename(tmp_path / "disk")
    (run / "checkpoints").symlink_to(tmp_path / "disk")
    for target in (run, run / "checkpoints" / "checkpoint_best.pt"):
        assert trained_model.choose_model(target, 0).scores == run / "scores"


def test_an_average_is_not_used_after_another_process_has_replaced_it(run: Path) -> None:
    model = trained_model.choose_model(run, 1)
    model.make()
    model.refuse_replaced([])
    make_checkpoint(run / "checkpoints" / "checkpoint_1_50.pt", 50)
    trained_model.choose_model(run, 1).make()
    with pytest.raises(ValueError, match=r"average_1\.pt was replaced before it was read"):
        model.refuse_replaced([])


def test_moved_data_are_recognised_by_their_record(run: Path, tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    for folder in (data, copy):
        folder.mkdir()
        write_json(folder / "corpus.json", {"lines": {"train": 4}})
    facts = {"folder": str(data), "corpus_sha256": sha256(data / "corpus.json")}
    write_json(run / "environment.json", {"data": facts})
    model = trained_model.choose_model(run, 0)
    lone = trained_model.choose_model(make_checkpoint(tmp_path / "model.pt", 1, data), 0)
    assert trained_model.is_own_data(model, data)
    assert trained_model.is_own_data(model, copy)
    assert trained_model.is_own_data(lone, data)
    copied = make_checkpoint(run / "old" / "checkpoint_best.pt", 1, data)
    assert trained_model.choose_model(copied, 0).scores == run / "old" / "scores"
    write_json(copy / "corpus.json", {"lines": {"train": 5}})
    assert not trained_model.is_own_data(model, copy)
    assert not trained_model.is_own_data(lone, copy)


def test_a_multilingual_model_needs_multilingual_data(run: Path, tmp_path: Path) -> None:
    folder = trained_model.DataFolder.open(make_data(tmp_path / "pair"))
    path = run / "checkpoints" / "checkpoint_best.pt"
    with pytest.MonkeyPatch.context() as patch:
        many = {"_name": trained_model.MULTILINGUAL_TASK}
        patch.setattr(trained_model, "task_options", lambda _: many)
        with pytest.raises(ValueError, match=r"trained on many language pairs, but .* select"):
            trained_model.task_arguments(path, folder)
        many |= {"langtoks": {"main": (None, "tgt")}, "lang_tok_replacing_bos_eos": True}
        record = {"languages": ["de", "en"], "directions": {"train": ["de-en"]}}
        folder = trained_model.DataFolder(tmp_path, {**record, "lines": {"train": {"de-en": 4}}})
        words = trained_model.task_arguments(path, folder)
        assert words[-2:] == ["--decoder-langtok", "--lang-tok-replacing-bos-eos"]
