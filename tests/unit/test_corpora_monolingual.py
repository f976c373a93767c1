"""A data folder of one language: what is kept, what a second run does, fairseq reading it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_deepnet import cli
from fairseq_deepnet.tools.corpora import text_folders
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.corpora.subwords import load_model
from tests.support.runs import SENTENCES


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A training text with a line too many, valid with a blank line, test packed."""
    folder = tmp_path / "raw"
    folder.mkdir()
    write(folder / "train.en", [*SENTENCES, "", "  one   more\tline ", SENTENCES[0]])
    write(folder / "valid.en", [SENTENCES[1], "", "  not   changed"])
    with gzip.open(folder / "test.en.gz", "wt", encoding="utf-8") as stream:
        stream.write("Zażółć the dog.\n")
    return folder


def make(raw: Path, out: Path, *options: str, test: str = "test") -> int:
    prefixes = ("--train", str(raw / "train"), "--valid", str(raw / "valid"))
    words = ("--test", str(raw / test), "--out", str(out), "--vocab-size", "60", *options)
    return cli.main(["preprocess", "language", "--lang-code", "en", *prefixes, *words])


def text_of(out: Path, split: str) -> list[str]:
    return (out / "text" / f"{split}.en").read_text(encoding="utf-8").splitlines()


def test_training_lines_are_cleaned_and_of_the_others_only_blank_ones_go(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert make(raw, out) == 0
    assert text_of(out, "train") == [*SENTENCES, "one more line", SENTENCES[0]]
    assert text_of(out, "valid") == [SENTENCES[1], "  not   changed"]
    record = json.loads((out / "corpus.json").read_text(encoding="utf-8"))
    assert record["lines"] == {"train": 6, "valid": 2, "test": 1}
    assert record["cleaning"]["train"] == {"kept": 6, "dropped": {"empty": 1}}
    assert record["binarised"]["test"]["unknown"] == 2  # Z, and żółć in one
    assert "6 train, 2 valid, 1 test lines; 60 bpe subwords" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]


def test_fairseq_reads_the_text_back(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(raw, out)
    dictionary = Dictionary.load(str(out / "dict.txt"))
    data = data_utils.load_indexed_dataset(str(out / "train"), dictionary)
    model = load_model(out / "spm.model")
    lines = [model.decode(dictionary.string(line).split()) for line in data]
    assert lines == text_of(out, "train")
    assert all(line[-1] == dictionary.eos() for line in data)
    folder = DataFolder.open(out)
    assert folder.is_monolingual
    assert (folder.languages, folder.task_options()) == (["en"], {})
    assert folder.directions("train") == []


def test_a_second_run_has_nothing_to_do_and_other_settings_are_refused(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    make(raw, out)
    before = (out / "corpus.json").read_text(encoding="utf-8")
    assert make(raw, out) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert make(raw, out, "--vocab-size", "50") == 2
    assert "was made with other settings" in capsys.readouterr().err
    assert (out / "corpus.json").read_text(encoding="utf-8") == before
    assert make(raw, out, "--vocab-size", "50", "--force") == 0
    assert json.loads((out / "corpus.json").read_text(encoding="utf-8"))["vocab_size"] == 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]


def test_a_run_that_broke_off_goes_on_with_the_stages_that_are_there(
    raw: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"

    def full_disk(*_: object) -> None:
        raise ValueError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(text_folders.subwords, "train_model", full_disk)
        assert make(raw, out) == 2
    assert not out.exists()
    assert [path.name for path in (tmp_path / "out.part").iterdir() if path.is_dir()] == ["text"]
    assert make(raw, out) == 0
    assert "checking and cleaning the text: done before" in capsys.readouterr().err
    assert not (tmp_path / "out.part").exists()


def test_repeated_training_lines_go_if_asked(raw: Path, tmp_path: Path) -> None:
    make(raw, tmp_path / "out", "--drop-duplicates", "--max-words", "6")
    kept = text_of(tmp_path / "out", "train")
    assert kept == [line for line in [*SENTENCES, "one more line"] if len(line.split()) <= 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lang-code", "e n"), "it must be a language code"),
        (("--test", "NOWHERE"), "no en side of "),
        (("--subwords", "words"), "--subwords is 'words'; it must be bpe or unigram"),
        (("--vocab-size", "9000"), "too large for this text"),
        (("--train", "LATIN"), "line 2: not valid UTF-8"),
        (("--valid", "BLANK"), "no line of"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_unfinished(
    raw: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, str],
    message: str,
) -> None:
    (raw / "LATIN.en").write_bytes(b"plain\n\xe9t\xe9\n")
    write(raw / "BLANK.en", ["", " "])
    name, value = options
    value = str(raw / value) if value.isupper() else value
    assert make(raw, tmp_path / "out", name, value) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("out.part/*.part"))
