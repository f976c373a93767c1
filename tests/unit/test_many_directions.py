"""Which texts are translated into which languages, before any model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.evaluation.many_directions import (
    finish,
    make_jobs,
    texts_in,
    texts_of_folder,
)

LANGUAGES = ["cs", "de", "en"]


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    """cs-en and de-en are trained, in both directions; cs-de is zero-shot."""
    trained = ["cs-en", "de-en", "en-cs", "en-de"]
    directions = {"train": trained, "test": [*trained, "cs-de", "de-cs"]}
    lines = {"train": {"cs-en": 70, "de-en": 30}}
    return DataFolder(tmp_path, {"languages": LANGUAGES, "directions": directions, "lines": lines})


def write(place: Path, *names: str) -> None:
    for name in names:
        (place / name).write_text("a line\n", encoding="utf-8")


def test_one_text_serves_both_directions(tmp_path: Path) -> None:
    write(tmp_path, "news.cs-en.cs", "news.cs-en.en", "other.de-en.de")
    found = texts_in(tmp_path, "news", LANGUAGES, [])
    assert [str(text.direction) for text in found] == ["cs-en", "en-cs"]
    assert found[1].source.name == "news.cs-en.en"
    assert found[1].reference.name == "news.cs-en.cs"


def test_a_direction_with_a_text_of_its_own_is_translated_from_that_alone(tmp_path: Path) -> None:
    write(tmp_path, "news.cs-en.cs", "news.cs-en.en", "news.en-cs.cs", "news.en-cs.en")
    found = {str(text.direction): text for text in texts_in(tmp_path, "news", LANGUAGES, [])}
    assert sorted(found) == ["cs-en", "en-cs"]
    assert len(texts_in(tmp_path, "news", LANGUAGES, [])) == 2
    assert found["en-cs"].source.name == "news.en-cs.en"
    assert found["cs-en"].source.name == "news.cs-en.cs"


@pytest.mark.parametrize(
    ("names", "error", "cause"),
    [
        ((), ValueError, "news.A-B.A and news.A-B.B are expected"),
        (("news.cs-en.cs",), FileNotFoundError, "no other side"),
        (("news.en-fr.en", "news.en-fr.fr"), ValueError, "the model knows no fr"),
    ],
)
def test_text_that_cannot_be_scored_is_refused(
    tmp_path: Path, names: tuple[str, ...], error: type[Exception], cause: str
) -> None:
    write(tmp_path, *names)
    with pytest.raises(error, match=cause):
        texts_in(tmp_path, "news", LANGUAGES, [])


def test_what_was_not_trained_is_zero_shot(folder: DataFolder, tmp_path: Path) -> None:
    jobs = make_jobs(folder, texts_of_folder(folder, "test", []), "13a", tmp_path, {})
    assert {str(job.direction) for job in jobs if job.zero_shot} == {"cs-de", "de-cs"}
    assert {job.tokenizer for job in jobs} == {"13a"}
    with pytest.raises(ValueError, match="no test text of en-fr"):
        texts_of_folder(folder, "test", ["en-fr"])


def test_an_epoch_is_every_training_pair_once_in_each_direction(folder: DataFolder) -> None:
    assert folder.task_options()["virtual-data-size"] == "200"
    assert Direction("en", "cs") in folder.directions("train")


class Copier:
    """Gives sentences back as they are, for their translations."""

    cut = 0

    def translate(self, sentences: list[str], direction: Direction) -> list[str]:
        return sentences


def job_of(place: Path, name: str, tokenizer: str | None = None) -> Any:
    """One line of Chinese on either side, to be scored as `name` says."""
    direction = Direction.parse(name)
    for language in direction:
        text = place / f"news.{name}.{language}"
        text.write_text("我喜欢吃红色的苹果。\n", encoding="utf-8")
    texts = texts_in(place, "news", list(direction), [name])
    folder = DataFolder(place, {"languages": list(direction), "directions": {}})
    (job,) = make_jobs(folder, texts, tokenizer, place / "scores", {"beam": 5})
    return job


@pytest.mark.parametrize(
    ("name", "asked", "tokenizer"),
    [
        *[("de-zh", None, "zh"), ("zh-de", None, "13a"), ("de-th", None, "char")],
        ("de-zh", "13a", "13a"),
    ],
)
def test_a_direction_is_scored_with_the_tokenizer_of_its_target(
    tmp_path: Path, name: str, asked: str | None, tokenizer: str
) -> None:
    job = job_of(tmp_path, name, asked)
    scores = finish(job, Copier())  # type: ignore[arg-type]
    assert f"|tok:{tokenizer}|" in scores["bleu_signature"]
    recorded = json.loads(job.record.read_text(encoding="utf-8"))
    assert {key: recorded[key] for key in scores} == scores


@pytest.mark.parametrize("language", ["de", "en"])
def test_a_direction_whose_text_has_changed_is_not_done(tmp_path: Path, language: str) -> None:
    job = job_of(tmp_path, "de-en")
    assert not job.is_done()
    finish(job, Copier())  # type: ignore[arg-type]
    assert job.is_done()
    (tmp_path / f"news.de-en.{language}").write_text("another line\n", encoding="utf-8")
    assert not job.is_done()
