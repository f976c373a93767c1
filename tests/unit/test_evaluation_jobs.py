"""Which texts are translated into which languages, in which parts, and what is recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation.directions import (
    Job,
    Translated,
    finish,
    translate_all,
)
from fairseq_deepnet.tools.evaluation.evaluate import texts_of
from fairseq_deepnet.tools.translation.engines import Engine, Hypothesis
from tests.support.evaluation import work_here

LANGUAGES = ["cs", "de", "en"]
MANY = DataFolder(Path("many"), {"languages": LANGUAGES, "directions": {}})


def write(place: Path, *names: str) -> None:
    for name in names:
        (place / name).write_text("a line\n", encoding="utf-8")


def test_a_direction_with_a_text_of_its_own_is_translated_from_that_alone(tmp_path: Path) -> None:
    write(tmp_path, "news.cs-en.cs", "news.cs-en.en", "news.en-cs.cs", "news.en-cs.en")
    sources = {str(pair): paths[0].name for pair, paths in texts_of(MANY, "news", tmp_path).items()}
    assert sources == {"cs-en": "news.cs-en.cs", "en-cs": "news.en-cs.en"}


@pytest.mark.parametrize(
    ("names", "error", "cause"),
    [
        ((), FileNotFoundError, "has no text of the news set"),
        (("news.cs-en.cs",), FileNotFoundError, "no en side of"),
        (("news.en-fr.en", "news.en-fr.fr"), ValueError, "the model does not know fr"),
    ],
)
def test_text_that_cannot_be_scored_is_refused(
    tmp_path: Path, names: tuple[str, ...], error: type[Exception], cause: str
) -> None:
    write(tmp_path, *names)
    with pytest.raises(error, match=cause):
        texts_of(MANY, "news", tmp_path)


def test_an_epoch_is_every_training_pair_once_in_each_direction(tmp_path: Path) -> None:
    directions = {"train": ["cs-en", "de-en", "en-cs", "en-de"]}
    lines = {"train": {"cs-en": 70, "de-en": 30}}
    record = {"languages": LANGUAGES, "directions": directions, "lines": lines}
    folder = DataFolder(tmp_path, record)
    assert folder.task_options()["virtual-data-size"] == "200"
    assert folder.task_options("cs-en")["virtual-data-size"] == "70"
    with pytest.raises(ValueError, match="no training text of en-fr"):
        folder.task_options("en-fr,cs-en")


class Inventor(Engine):
    """Gives sentences back."""

    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        return [[Hypothesis(line, 0.0)] for line in lines]


def test_translations_of_parts_are_in_the_order_of_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch, Inventor())
    job = job_of(tmp_path, "de-en")
    lines = ["a" * (7 * number % 50) + str(number) for number in range(1000)]
    for file in (job.source, job.reference):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    translate_all([job], {"beam": 5}, Inventor, threads=1, processes=2, gpus=0)
    assert list(read_lines(job.record.with_suffix(".txt"))) == lines
    record = json.loads(job.record.read_text(encoding="utf-8"))
    assert (record["chrf"], record["lines"], record["beam"]) == (pytest.approx(100), 1000, 5)
    assert job.is_done()


def job_of(place: Path, name: str, tokenizer: str | None = None) -> Any:
    """One line of Chinese on either side, to be scored as `name` says."""
    direction = Direction.parse(name)
    for language in direction:
        text = place / f"news.{name}.{language}"
        text.write_text("我喜欢吃红色的苹果。\n", encoding="utf-8")
    folder = DataFolder(place, {"languages": list(direction), "directions": {}})
    texts = texts_of(folder, "news", place)[direction]
    record = place / f"{direction}.json"
    return Job(direction, *texts, record, folder, "news", tokenizer, {"beam": 5})


def copied(job: Job) -> Translated:
    return Translated(list(read_lines(job.source)), 0, 0.0)


@pytest.mark.parametrize(
    ("name", "asked", "tokenizer"),
    [
        *[("de-zh", None, "zh"), ("zh-de", None, "13a"), ("de-zh", "13a", "13a")],
    ],
)
def test_a_direction_is_scored_with_the_tokenizer_of_its_target(
    tmp_path: Path, name: str, asked: str | None, tokenizer: str
) -> None:
    job = job_of(tmp_path, name, asked)
    scores = finish(job, {}, copied(job))
    assert f"|tok:{tokenizer}|" in scores["bleu_signature"]
    recorded = json.loads(job.record.read_text(encoding="utf-8"))
    assert {key: recorded[key] for key in scores} == scores


def test_sides_of_different_lengths_are_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, "de-en")
    job.source.write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"news\.de-en\.de has 2 lines and .*news\.de-en\.en 1"):
        job.lines()


@pytest.mark.parametrize("language", ["de", "en"])
def test_a_direction_whose_text_has_changed_is_not_done(tmp_path: Path, language: str) -> None:
    job = job_of(tmp_path, "de-en")
    assert not job.is_done()
    finish(job, {}, copied(job))
    assert job.is_done()
    (tmp_path / f"news.de-en.{language}").write_text("another line\n", encoding="utf-8")
    assert not job.is_done()


def test_a_score_of_moses_tokens_depends_on_tokens_and_binarised_text(tmp_path: Path) -> None:
    names = ("text/test.de", "text/test.en", "tokenised/test.en", "test.de-en.de.bin")
    for name in (*names, "test.de-en.de.idx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("as it was\n", encoding="utf-8")
    folder = DataFolder(tmp_path, {"source": "de", "target": "en", "tokenisation": "moses"})
    ((direction, texts),) = texts_of(folder, "test").items()
    job = Job(direction, *texts, tmp_path / "score.json", folder, "test", None, {})
    before = job.wanted()
    assert job.wanted() == before
    for path in job.files:
        path.write_text("changed\n", encoding="utf-8")
        assert job.wanted() != before, path
        path.write_text("as it was\n", encoding="utf-8")
    assert len(job.files) == 5


def test_an_engine_that_cannot_be_loaded_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch, ValueError("no such option"))
    with pytest.raises(ValueError, match="no such option"):
        translate_all([job_of(tmp_path, "de-en")], {}, Inventor, threads=1, processes=1, gpus=0)
