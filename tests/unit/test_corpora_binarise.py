"""Binarised data: what fairseq-preprocess would have written, to the byte."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.options import get_preprocessing_parser
from fairseq_cli import preprocess

from fairseq_deepnet.tools.corpora import binarise
from fairseq_deepnet.tools.corpora.subwords import (
    encode_lines,
    load_model,
    train_model,
    write_dictionary,
)
from fairseq_deepnet.tools.corpora.text import Recipe, chunks, read_lines

ODD = ["la  <unk> hundo", "", "a\u2028b\x85c", "manĝas ▁ <s> q", "x\x0b</s>\x0cy", "\x1c", "<pad>"]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return path


def text(folder: Path, name: str, seed: int) -> Path:
    rng = random.Random(seed)
    words = [f"{one}{other}" for one in ("ka", "to", "manĝ") for other in ("do", "li", "as", "n")]
    lines = [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(120)]
    return write(folder / name, lines + ODD)


def fairseq_preprocess(folder: Path, *options: str) -> Path:
    """The folder that the real command makes of train.eo and train.ia."""
    out = folder / "fairseq"
    words = ["--source-lang=eo", "--target-lang=ia", f"--trainpref={folder / 'train'}"]
    handlers = list(preprocess.logger.handlers)
    preprocess.main(get_preprocessing_parser().parse_args([*words, f"--destdir={out}", *options]))
    preprocess.logger.handlers[:] = handlers
    return out


@pytest.mark.parametrize("chunk", [10_000, 11])
def test_words_and_their_dictionary_are_as_fairseq_preprocess_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(chunks, "__defaults__", (chunk,))
    source, target = text(tmp_path, "train.eo", 1), text(tmp_path, "train.ia", 2)
    expected = fairseq_preprocess(tmp_path)
    for language, words in {"eo": source, "ia": target}.items():
        dictionary, out = tmp_path / f"dict.{language}.txt", tmp_path / language
        binarise.write_word_dictionary([words], dictionary, workers=2)
        assert dictionary.read_bytes() == (expected / dictionary.name).read_bytes()
        counts = binarise.binarise(dictionary, words, out, workers=2)
        assert counts.sentences == 120 + len(ODD)
        for ending in ("bin", "idx"):
            made = (expected / f"train.eo-ia.{language}.{ending}").read_bytes()
            assert Path(f"{out}.{ending}").read_bytes() == made


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_raw_text_becomes_what_encoding_and_fairseq_preprocess_make_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(chunks, "__defaults__", (11,))
    raw = text(tmp_path, "raw", 1)
    train_model(read_lines(raw), tmp_path / "spm", Recipe(subwords=kind, vocab_size=36))
    test = write(tmp_path / "test", [*ODD, "neniam vidita ☃ ĉiam", "kato"])
    model = load_model(tmp_path / "spm.model")
    for language in ("eo", "ia"):
        write(tmp_path / f"train.{language}", list(encode_lines(model, read_lines(test), 1)))
    write_dictionary(model, tmp_path / "dict.txt")
    srcdict = f"--srcdict={tmp_path / 'dict.txt'}"
    expected = fairseq_preprocess(tmp_path, srcdict, "--joined-dictionary")
    counts = binarise.binarise(tmp_path / "spm.model", test, tmp_path / "out", workers=2)
    for ending in ("bin", "idx"):
        made = (expected / f"train.eo-ia.eo.{ending}").read_bytes()
        assert (tmp_path / f"out.{ending}").read_bytes() == made
    assert counts.unknown > 0


def test_a_large_vocabulary_takes_wider_numbers(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(70_000)]
    dictionary = write(tmp_path / "dict.txt", [f"{word} 1" for word in words])
    test = write(tmp_path / "test", ["w0 w69999", "w65531 w65532"])
    assert binarise.binarise(dictionary, test, tmp_path / "out").tokens == 6
    data = MMapIndexedDataset(str(tmp_path / "out"))
    numbers = Dictionary.load(str(dictionary))
    assert [line.tolist() for line in data] == [
        [numbers.index(word) for word in line.split()] + [numbers.eos()]
        for line in read_lines(test)
    ]
    assert np.dtype(data._index.dtype).itemsize == 4
