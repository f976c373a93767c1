"""Test sentences in the training text: what is counted, and when it is counted anew."""

import gzip
import json
from pathlib import Path

import pytest

from fairseq_deepnet.tools.corpora.published import opus100
from fairseq_deepnet.tools.corpora.published.opus100 import (
    Question,
    count_overlap,
    report_overlap,
)

TEST = ["Yes.", "A dog runs.", "Yes.", "", "  No.\t", "Yes."]


@pytest.fixture
def question(tmp_path: Path) -> Question:
    (tmp_path / "test.en").write_text("\n".join(TEST) + "\n", encoding="utf-8")
    (tmp_path / "train.en").write_text("No.\nYes. Yes.\n Yes. \nYes.\n", encoding="utf-8")
    return Question("de-en", "en", str(tmp_path / "test"), str(tmp_path / "train"))


def test_every_test_sentence_counts_though_it_is_repeated(question: Question) -> None:
    """Three times Yes. and once No., of five that are not blank: each is a part of the score."""
    assert count_overlap(question) == (5, 4)


@pytest.mark.parametrize("changed", ["train", "test"])
def test_a_report_on_other_text_is_made_anew(
    question: Question, changed: str, tmp_path: Path
) -> None:
    report = tmp_path / "overlap.json"
    assert report_overlap([question], report).startswith("4 of 5 test sentences")
    text = "A dog runs.\n" if changed == "train" else "No.\nNever.\n"
    (tmp_path / f"{changed}.en").write_text(text, encoding="utf-8")
    expected = "1 of 5" if changed == "train" else "1 of 2"
    assert report_overlap([question], report).startswith(f"{expected} test sentences")
    sides = json.loads(report.read_text(encoding="utf-8"))["pairs"]["de-en"]
    assert sides["en"]["in_training_text"] == 1


def test_a_report_on_other_pairs_is_made_anew(question: Question, tmp_path: Path) -> None:
    """The same files, of which other questions are asked."""
    report = tmp_path / "overlap.json"
    report_overlap([question], report)
    turned = question._replace(pair="cs-en", test=question.train, train=question.test)
    assert report_overlap([turned], report).startswith("3 of 4 test sentences")
    assert list(json.loads(report.read_text(encoding="utf-8"))["pairs"]) == ["cs-en"]


def test_a_report_on_the_same_text_is_not_made_anew(
    question: Question, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "overlap.json"
    first = report_overlap([question], report)
    monkeypatch.setattr(opus100, "count_overlap", None)
    assert report_overlap([question], report) == first


def test_packed_text_is_counted_alike(question: Question, tmp_path: Path) -> None:
    plain = tmp_path / "train.en"
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert count_overlap(question) == (5, 4)
