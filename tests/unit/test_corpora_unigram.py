"""The level of a model that knows only how frequent subwords are."""

from __future__ import annotations

from math import log2
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import indexed_dataset

from fairseq_deepnet.tools.corpora.binarise import unigram_nll


def write(prefix: Path, *sentences: list[int]) -> None:
    builder = indexed_dataset.MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for sentence in sentences:
        builder.add_item(torch.tensor(sentence))
    builder.finalize(f"{prefix}.idx")


def test_it_is_the_cross_entropy_under_add_one_smoothed_training_frequencies(
    tmp_path: Path,
) -> None:
    for split, sentences in (("train", [[4, 4, 4, 5, 2], [4, 6, 2]]), ("valid", [[4, 7, 2]])):
        write(tmp_path / f"{split}.de-en.en", *sentences)
        write(tmp_path / f"{split}.de-en.de", [3, 3, 3])
    # train: 4 four times, 2 twice, 5 and 6 once, 8 tokens; valid: 4, 7, 2; 8 symbols
    expected = -(log2(5 / 16) + log2(1 / 16) + log2(3 / 16)) / 3
    assert unigram_nll(tmp_path, "en", 8) == pytest.approx(expected, rel=1e-12)
    assert unigram_nll(tmp_path, "de", 8) == pytest.approx(-log2(4 / 11))
    assert unigram_nll(tmp_path, "fr", 8) is None
    # further parts of the training set count, further validation sets do not
    write(tmp_path / "train1.de-en.en", [7, 7, 7])
    for other in ("valid1", "train_of_another"):
        write(tmp_path / f"{other}.de-en.en", [5, 5, 5])
    unigram_nll.cache_clear()
    expected = -(log2(5 / 19) + log2(4 / 19) + log2(3 / 19)) / 3
    assert unigram_nll(tmp_path, "en", 8) == pytest.approx(expected, rel=1e-12)
