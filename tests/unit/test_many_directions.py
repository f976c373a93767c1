"""Which texts are translated into which languages, before any model is loaded."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.records import write_record
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import many_directions
from fairseq_deepnet.tools.evaluation.many_directions import (
    finish,
    make_jobs,
    texts_in,
    texts_of_folder,
)
from fairseq_deepnet.tools.translation.engine import Engine, Hypothesis

LANGUAGES = ["cs", "de", "en"]
MANY = DataFolder(Path("many"), {"languages": LANGUAGES, "directions": {}})


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
    found = texts_in(tmp_path, "news", MANY, [])
    assert [str(text.direction) for text in found] == ["cs-en", "en-cs"]
    assert found[1].source.name == "news.cs-en.en"
    assert found[1].reference.name == "news.cs-en.cs"


def test_a_direction_with_a_text_of_its_own_is_translated_from_that_alone(tmp_path: Path) -> None:
    write(tmp_path, "news.cs-en.cs", "news.cs-en.en", "news.en-cs.cs", "news.en-cs.en")
    found = {str(text.direction): text for text in texts_in(tmp_path, "news", MANY, [])}
    assert sorted(found) == ["cs-en", "en-cs"]
    assert len(texts_in(tmp_path, "news", MANY, [])) == 2
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
        texts_in(tmp_path, "news", MANY, [])


def test_a_direction_that_is_named_and_has_no_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "news.de-en.de", "news.de-en.en")
    (found,) = texts_in(tmp_path, "news", MANY, ["en-de"])
    assert str(found.direction) == "en-de"
    with pytest.raises(ValueError, match="has no news text of cs-en, cs-de"):
        texts_in(tmp_path, "news", MANY, ["de-en", "cs-en", "cs-de"])


def test_packed_text_is_read_too(tmp_path: Path) -> None:
    write(tmp_path, "news.cs-en.cs")
    (tmp_path / "news.cs-en.en.gz").write_bytes(gzip.compress(b"zwei\nZeilen\n"))
    found = {str(text.direction): text for text in texts_in(tmp_path, "news", MANY, [])}
    assert list(found) == ["cs-en", "en-cs"]
    assert list(read_lines(found["en-cs"].source)) == ["zwei", "Zeilen"]
    (tmp_path / "news.cs-en.cs.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"both .* exist"):
        texts_in(tmp_path, "news", MANY, [])


def test_a_model_of_one_pair_translates_in_one_direction(tmp_path: Path) -> None:
    """Its other language is none that it reads."""
    write(tmp_path, "news.de-en.de", "news.de-en.en")
    folder = DataFolder(tmp_path, {"source": "de", "target": "en"})
    (found,) = texts_in(tmp_path, "news", folder, [])
    assert str(found.direction) == "de-en"
    with pytest.raises(ValueError, match="of en-de, and the model translates de-en alone"):
        texts_in(tmp_path, "news", folder, ["en-de"])


def test_what_was_not_trained_is_zero_shot(folder: DataFolder, tmp_path: Path) -> None:
    jobs = make_jobs(folder, texts_of_folder(folder, "test", []), "13a", tmp_path, {})
    assert {str(job.direction) for job in jobs if job.zero_shot} == {"cs-de", "de-cs"}
    assert {job.tokenizer for job in jobs} == {"13a"}
    with pytest.raises(ValueError, match="no test text of en-fr"):
        texts_of_folder(folder, "test", ["en-fr"])


def test_an_epoch_is_every_training_pair_once_in_each_direction(folder: DataFolder) -> None:
    assert folder.task_options()["virtual-data-size"] == "200"
    assert folder.task_options("cs-en")["virtual-data-size"] == "70"
    with pytest.raises(ValueError, match="no training text of en-fr"):
        folder.task_options("en-fr,cs-en")
    assert Direction("en", "cs") in folder.directions("train")


class Copier:
    """Gives sentences back as they are, for their translations."""

    cut = 0

    def translate(self, sentences: list[str], direction: Direction) -> list[str]:
        return sentences


class Inventor(Engine):
    """Makes up a translation of nothing, as models do."""

    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        return [[Hypothesis(line.strip() or "made up", 0.0)] for line in lines]


def test_a_blank_line_has_an_empty_translation_in_its_place(tmp_path: Path) -> None:
    job = job_of(tmp_path, "de-en")
    lines = ["", "one", "  ", "\u200b", "two"]
    job.source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    job.reference.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    finish(job, Inventor())
    hypotheses = list(read_lines(job.record.with_suffix(".txt")))
    assert hypotheses == ["", "one", "", "", "two"]


def job_of(place: Path, name: str, tokenizer: str | None = None) -> Any:
    """One line of Chinese on either side, to be scored as `name` says."""
    direction = Direction.parse(name)
    for language in direction:
        text = place / f"news.{name}.{language}"
        text.write_text("我喜欢吃红色的苹果。\n", encoding="utf-8")
    folder = DataFolder(place, {"languages": list(direction), "directions": {}})
    texts = texts_in(place, "news", folder, [name])
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


def test_translating_that_is_cut_off_leaves_no_summary_that_says_all_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, "de-en")
    job.out.mkdir()
    write_record(job.out / "summary.json", {"complete": True, "expected": 1})

    class Killed(BaseException):
        pass

    def no_processes(*args: object) -> None:
        raise Killed

    monkeypatch.setattr(many_directions, "ProcessPoolExecutor", no_processes)
    with pytest.raises(Killed):
        many_directions.translate_all([job], Copier, threads=1, processes=1, gpus=0)
    summary = json.loads((job.out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["complete"], summary["expected"]) == (False, 1)
