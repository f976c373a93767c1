"""Binarised data, byte for byte as fairseq-preprocess writes it, and its unigram cross-entropy."""

from __future__ import annotations

import random
from math import log2
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

from fairseq_deepnet.tools.corpora import binarise
from fairseq_deepnet.tools.corpora.subwords import (
    encode_lines,
    load_model,
    train_model,
    write_dictionary,
)
from fairseq_deepnet.tools.corpora.text import Recipe, chunks, read_lines
from tests.support.corpus import fairseq_preprocess, write_lines

ODD = ["la  <unk> hundo", "", "a\u2028b\x85c", "manĝas ▁ <s> q", "x\x0b</s>\x0cy", "\x1c", "<pad>"]


def text(folder: Path, name: str, seed: int) -> Path:
    rng = random.Random(seed)
    words = [f"{stem}{end}" for stem in ("ka", "to", "manĝ") for end in ("do", "li", "as", "n")]
    lines = [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(120)]
    return write_lines(folder / name, lines + ODD)


def preprocessed(folder: Path, *options: str) -> Path:
    """Return the folder that the real command writes from train.eo and train.ia."""
    words = ["--source-lang=eo", "--target-lang=ia", f"--trainpref={folder / 'train'}"]
    fairseq_preprocess(*words, f"--destdir={folder / 'fairseq'}", *options)
    return folder / "fairseq"


def test_words_and_their_dictionary_equal_those_of_fairseq_preprocess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "__defaults__", (11,))
    source, target = text(tmp_path, "train.eo", 1), text(tmp_path, "train.ia", 2)
    expected = preprocessed(tmp_path)
    for language, words in {"eo": source, "ia": target}.items():
        dictionary, out = tmp_path / f"dict.{language}.txt", tmp_path / language
        binarise.write_word_dictionary([words], dictionary, workers=2)
        assert dictionary.read_bytes() == (expected / dictionary.name).read_bytes()
        counts = binarise.binarise(dictionary, words, out, workers=2)
        assert counts["sentences"] == 120 + len(ODD)
        for ending in ("bin", "idx"):
            content = (expected / f"train.eo-ia.{language}.{ending}").read_bytes()
            assert Path(f"{out}.{ending}").read_bytes() == content


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_raw_text_is_binarised_as_by_encoding_and_fairseq_preprocess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(chunks, "__defaults__", (11,))
    raw = text(tmp_path, "raw", 1)
    train_model(read_lines(raw), tmp_path / "spm", Recipe(subwords=kind, vocab_size=36))
    test = write_lines(tmp_path / "test", [*ODD, "neniam vidita ☃ ĉiam", "kato"])
    model = load_model(tmp_path / "spm.model")
    for language in ("eo", "ia"):
        write_lines(tmp_path / f"train.{language}", list(encode_lines(model, read_lines(test), 1)))
    write_dictionary(model, tmp_path / "dict.txt")
    srcdict = f"--srcdict={tmp_path / 'dict.txt'}"
    expected = preprocessed(tmp_path, srcdict, "--joined-dictionary")
    counts = binarise.binarise(tmp_path / "spm.model", test, tmp_path / "out", workers=2)
    for ending in ("bin", "idx"):
        content = (expected / f"train.eo-ia.eo.{ending}").read_bytes()
        assert (tmp_path / f"out.{ending}").read_bytes() == content
    assert counts["unknown"] > 0


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path: Path) -> None:
    dictionary = write_lines(tmp_path / "dict.txt", [f"w{number} 1" for number in range(70_000)])
    text = write_lines(tmp_path / "test", ["w0 w69999", "w65531 w65532"])
    assert binarise.binarise(dictionary, text, tmp_path / "out")["tokens"] == 6
    data = MMapIndexedDataset(str(tmp_path / "out"))
    assert [line.tolist() for line in data] == [[4, 70_003, 2], [65_535, 65_536, 2]]
    assert np.dtype(data._index.dtype).itemsize == 4


def write_numbers(prefix: Path, *sentences: list[int]) -> None:
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for sentence in sentences:
        builder.add_item(torch.tensor(sentence))
    builder.finalize(f"{prefix}.idx")


def test_unigram_nll_is_the_cross_entropy_under_add_one_smoothed_frequencies(
    tmp_path: Path,
) -> None:
    for split, sentences in (("train", [[4, 4, 4, 5, 2], [4, 6, 2]]), ("valid", [[4, 7, 2]])):
        write_numbers(tmp_path / f"{split}.de-en.en", *sentences)
        write_numbers(tmp_path / f"{split}.de-en.de", [3, 3, 3])
    # train: 4 four times, 2 twice, 5 and 6 once, 8 tokens; valid: 4, 7, 2; 8 symbols
    expected = -(log2(5 / 16) + log2(1 / 16) + log2(3 / 16)) / 3
    assert binarise.unigram_nll(tmp_path, "en", 8) == pytest.approx(expected, rel=1e-12)
    assert binarise.unigram_nll(tmp_path, "de", 8) == pytest.approx(-log2(4 / 11))
    assert binarise.unigram_nll(tmp_path, "fr", 8) is None
    # further parts of the training set count, further validation sets do not
    write_numbers(tmp_path / "train1.de-en.en", [7, 7, 7])
    for other in ("valid1", "train_of_another"):
        write_numbers(tmp_path / f"{other}.de-en.en", [5, 5, 5])
    binarise.unigram_nll.cache_clear()
    expected = -(log2(5 / 19) + log2(4 / 19) + log2(3 / 19)) / 3
    assert binarise.unigram_nll(tmp_path, "en", 8) == pytest.approx(expected, rel=1e-12)
