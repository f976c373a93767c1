"""A multilingual model: every direction is scored by several processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora.folder import MULTILINGUAL_TASK, DataFolder, Direction
from fairseq_deepnet.tools.translation import engines
from fairseq_deepnet.tools.translation.engines import CTranslate2Model, Translator
from tests.support.runs import SENTENCES
from tests.support.trained import make_multilingual_data, make_trained_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of a model for en-xx, xx-en and en-yy; other directions are zero-shot."""
    place = tmp_path_factory.mktemp("multilingual")
    make_multilingual_data(place)
    about = {"_name": MULTILINGUAL_TASK, "encoder_langtok": "tgt"}
    about["lang_pairs"] = ["en-xx", "en-yy", "xx-en"]
    make_trained_run(place / "run", place / "data", about=about)
    return place / "run"


def test_every_direction_is_scored_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(run), "--gpus=0", "--processes=2", "--beam=2", "--batch=5"]
    words += ["--", "--max-len-b=8"]
    assert cli.main(words) == 0
    first = capsys.readouterr()
    folder = run / "scores" / "test.checkpoint_best.beam2.lenpen1.max-len-b8"
    records = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*-*.json")
    }
    assert sorted(records) == ["en-xx", "en-yy", "xx-en", "xx-yy", "yy-en", "yy-xx"]
    for name, record in records.items():
        assert record["zero_shot"] == (name in ("xx-yy", "yy-en", "yy-xx"))
        assert record["lines"] == 32
        assert (folder / f"{name}.txt").read_text(encoding="utf-8").count("\n") == 32
    assert "| all supervised |            3 |" in first.out
    assert (folder / "table.md").read_text(encoding="utf-8") == first.out
    (folder / "xx-yy.json").unlink()
    assert cli.main(words) == 0
    again = capsys.readouterr()
    assert "already scored: 5 of 6 in " in again.err
    assert "test set: xx-yy, " in again.err
    assert again.out == first.out


def test_both_engines_translate_to_the_target_language_of_the_token(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    monkeypatch.setattr(engines, "NEVER", None)  # see test_translate.py
    folder = DataFolder.open(run.parent / "data")
    out, checkpoint = tmp_path / "out", run / "checkpoints" / "checkpoint_best.pt"
    assert cli.main(["export", str(run), "--to", "ctranslate2", "--out", str(out)]) == 0
    engine = CTranslate2Model(out, beam=1, cpu=True)
    tokens = {language: f"__{language}__" for language in ("en", "xx", "yy")}
    assert engine.tokens == {"source": "tgt", "target": False, "tokens": tokens}
    engine.longest = 6
    translator = Translator(checkpoint, folder, ["--beam", "1", "--max-len-b", "6"], cpu=True)
    for name in ("en-xx", "en-yy", "yy-xx"):
        direction = Direction.parse(name)
        theirs = engine.translate(SENTENCES, direction)
        assert theirs == translator.translate(SENTENCES, direction)
