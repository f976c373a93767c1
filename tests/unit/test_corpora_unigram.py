"""The level of a model that knows only how frequent subwords are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import indexed_dataset

from fairseq_deepnet.tools.corpora.binarise import unigram_nll
from tests.support.shell import ROOT

SYMBOLS = 8
TRAIN = [[4, 4, 4, 5, 2], [4, 6, 2]]
VALID = [[4, 7, 2]]


def write(prefix: Path, sentences: Sequence[Sequence[int]], dtype: type = np.uint16) -> None:
    prefix.parent.mkdir(exist_ok=True)
    builder = indexed_dataset.MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for sentence in sentences:
        builder.add_item(torch.tensor(sentence))
    builder.finalize(f"{prefix}.idx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """German-English; the German side is another text."""
    folder = tmp_path / "data"
    for split, sentences in (("train", TRAIN), ("valid", VALID)):
        write(folder / f"{split}.de-en.en", sentences)
        write(folder / f"{split}.de-en.de", [[3, 3, 3]])
    return folder


def by_hand(seen: Sequence[int], predicted: Sequence[int]) -> float:
    """Bits a token: the mean of -log2((count + 1) / (tokens + V))."""
    return -sum(
        math.log2((seen.count(symbol) + 1) / (len(seen) + SYMBOLS)) for symbol in predicted
    ) / len(predicted)


def test_it_is_the_cross_entropy_under_the_training_frequencies_add_one_smoothed(
    data: Path,
) -> None:
    # train: 4 four times, 2 twice, 5 and 6 once, 8 tokens; valid: 4, 7, 2
    expected = -(math.log2(5 / 16) + math.log2(1 / 16) + math.log2(3 / 16)) / 3
    assert unigram_nll(data, "en", SYMBOLS) == pytest.approx(expected, rel=1e-12)
    assert by_hand([4, 4, 4, 5, 2, 4, 6, 2], [4, 7, 2]) == pytest.approx(expected)


def test_each_side_of_a_pair_has_its_own_level(data: Path) -> None:
    assert unigram_nll(data, "de", SYMBOLS) == pytest.approx(-math.log2(4 / 11))
    assert unigram_nll(data, "fr", SYMBOLS) is None


def test_further_parts_of_the_training_set_count_and_further_validation_sets_do_not(
    data: Path,
) -> None:
    write(data / "train1.de-en.en", [[7, 7, 7]])
    write(data / "valid1.de-en.en", [[5, 5, 5]])
    write(data / "train_of_another.de-en.en", [[5, 5, 5]])
    expected = by_hand([4, 4, 4, 5, 2, 4, 6, 2, 7, 7, 7], [4, 7, 2])
    assert unigram_nll(data, "en", SYMBOLS) == pytest.approx(expected)


def test_the_level_of_multi30k_english() -> None:
    data = ROOT / "data" / "multi30k.de-en"
    if not (data / "train.de-en.en.idx").is_file():
        pytest.skip("data/multi30k.de-en is not there: scripts/preprocess_multi30k.sh makes it")
    symbols = len((data / "dict.en.txt").read_text(encoding="utf-8").splitlines()) + 4
    level = unigram_nll(data, "en", symbols)
    assert level is not None
    assert 8.0 < level < 8.6
