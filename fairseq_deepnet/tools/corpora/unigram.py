"""What a model reaches that knows how frequent each subword is, and nothing else."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

_CHUNK: Final = 1 << 22
"""Tokens counted at once: 32 MiB while numpy widens them."""


@functools.lru_cache(maxsize=16)
def unigram_nll(data: Path, target: str | None, symbols: int) -> float | None:
    """Bits a token of a unigram model: the cross-entropy of the validation set's target side under
    the training set's frequencies, add-one smoothed over all symbols.

        H = - sum_v valid(v) / |valid| * log2((train(v) + 1) / (|train| + V))

    Arguments:
        data: a data folder as fairseq-preprocess or scripts/preprocess*.sh leaves it
        target: the language to predict; None where there is only one, as for a language model
        symbols: V, the entries of its dictionary, special ones included

    None where the folder does not hold both sets of one pair (or one language) in fairseq's
    memory-mapped format: of many directions, which are sampled in other shares than they are stored
    in, no one level is true. The files are counted where they lie: 100 million tokens in seconds.
    """
    train, valid = _parts(data, "train", target), _parts(data, "valid", target)
    if not train or not valid:
        return None
    seen, predicted = _counts(train, symbols), _counts(valid[:1], symbols)
    if seen is None or predicted is None or not predicted.sum():
        return None
    probability = (seen + 1) / (seen.sum() + symbols)
    return float(-(predicted * np.log2(probability)).sum() / predicted.sum())


def _parts(data: Path, split: str, target: str | None) -> list[Path]:
    """The files of a split without their endings, and its further parts (train1, train2, ...)."""
    language = re.escape(target or "")
    pair = rf"\.([^.]+-{language}|{language}-[^.]+)\.{language}" if target else ""
    name = re.compile(rf"{split}\d*{pair}\.idx")
    return sorted(file.with_suffix("") for file in data.glob(f"{split}*.idx") if _is(name, file))


def _is(name: re.Pattern[str], file: Path) -> bool:
    return name.fullmatch(file.name) is not None


def _counts(prefixes: Sequence[Path], symbols: int) -> np.ndarray | None:
    """How often each symbol occurs: [V], int64; None for what is not memory-mapped or not V's."""
    from fairseq.data import indexed_dataset

    total = np.zeros(symbols, dtype=np.int64)
    for prefix in prefixes:
        if indexed_dataset.infer_dataset_impl(str(prefix)) != "mmap":
            return None
        index = indexed_dataset.MMapIndexedDataset.Index(f"{prefix}.idx")
        if not len(index):
            continue
        tokens = np.memmap(f"{prefix}.bin", dtype=index.dtype, mode="r")
        for start in range(0, len(tokens), _CHUNK):
            found = np.bincount(tokens[start : start + _CHUNK], minlength=symbols)
            if len(found) > symbols:
                return None
            total += found
    return total
