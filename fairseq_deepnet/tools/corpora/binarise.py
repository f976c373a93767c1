"""Text straight to fairseq's binarised data, without subwords on disk in between.

sentencepiece numbers its pieces and fairseq its symbols in the same order, so a table of numbers
is all that lies between the two.
"""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from fairseq.data import indexed_dataset

from fairseq_deepnet.tools.corpora.subwords import fairseq_symbols
from fairseq_deepnet.tools.corpora.text import normalise, read_lines

_SPECIALS = 4  # fairseq's dictionary begins with <s>, <pad>, </s>, <unk>
_END, _UNKNOWN = 2, 3
_CHUNK = 20_000


@dataclasses.dataclass(frozen=True)
class Counts:
    """What was written: sentences, tokens with one end of sentence each, unknown tokens."""

    sentences: int
    tokens: int
    unknown: int


def fairseq_numbers(model: sentencepiece.SentencePieceProcessor) -> np.ndarray:
    """fairseq's number of every piece, by sentencepiece's: [pieces], int64."""
    position = {piece: index for index, piece in enumerate(fairseq_symbols(model), _SPECIALS)}
    size = model.get_piece_size()
    return np.array([position.get(model.id_to_piece(index), _UNKNOWN) for index in range(size)])


def binarise(model: sentencepiece.SentencePieceProcessor, text: Path, out: Path) -> Counts:
    """Write OUT.bin and OUT.idx (fairseq's mmap format) from a file of raw text.

    Arguments:
        model: the sentencepiece model; its dictionary is that of `subwords.write_dictionary`
        text: UTF-8, plain or .gz, one sentence a line
        out: path without its ending

    Memory is bounded. OUT.idx appears last, so that what has one is complete.
    """
    numbers = fairseq_numbers(model)
    dtype = indexed_dataset.best_fitting_int_dtype(len(numbers) + _SPECIALS)
    part = out.with_name(out.name + ".part")
    builder = indexed_dataset.MMapIndexedDatasetBuilder(f"{part}.bin", dtype=dtype)
    sentences = tokens = unknown = 0
    lines = (normalise(line) for line in read_lines(text))
    while chunk := list(islice(lines, _CHUNK)):
        for pieces in model.encode(chunk, out_type=int):
            line = np.append(numbers[pieces], _END) if pieces else np.array([_END])
            builder.add_item(torch.from_numpy(line))
            sentences += 1
            tokens += len(line)
            unknown += int((line == _UNKNOWN).sum())
    builder.finalize(f"{part}.idx")
    for ending in ("bin", "idx"):
        Path(f"{part}.{ending}").replace(f"{out}.{ending}")
    return Counts(sentences, tokens, unknown)
