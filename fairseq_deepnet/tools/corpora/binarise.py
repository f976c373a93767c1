"""Fairseq's binarised data (its mmap format) from text, and its dictionaries of words.

Processes share out the lines. sentencepiece numbers its pieces and fairseq its symbols in the same
order, so raw text becomes numbers directly. Words between spaces (byte-pair codes of Moses tokens)
are numbered by a dictionary.
Shapes: a chunk of N lines with K tokens in all is tokens [K] and sizes [N].
"""

from __future__ import annotations

import functools
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import sentencepiece

from fairseq_deepnet.files import write_text
from fairseq_deepnet.tools.corpora.parallel import map_in_order
from fairseq_deepnet.tools.corpora.subwords import fairseq_symbols, load_model
from fairseq_deepnet.tools.corpora.text import Chunk, chunks, normalise

SPECIALS: Final = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
"""First symbols of every dictionary of fairseq."""
_END, _UNKNOWN = SPECIALS["</s>"], SPECIALS["<unk>"]
_MAGIC: Final = b"MMIDIDX\x00\x00"
_AT_ONCE: Final = 1 << 24
_NUMBERS: Final = ((65_500, np.dtype(np.uint16), 8), (1 << 32, np.dtype(np.uint32), 9))
"""Size of the dictionary below which a type of number is taken, and its code in an index."""


class Counts(NamedTuple):
    """Sentences, tokens with one end of sentence each, and unknown tokens of a file."""

    sentences: int
    tokens: int
    unknown: int


class _Numbered(NamedTuple):
    """A chunk of lines as fairseq's numbers, each line with its </s>."""

    tokens: np.ndarray
    sizes: np.ndarray


def binarise_text(model: Path, text: Path, out: Path, workers: int = 1) -> Counts:
    """Write OUT.bin and OUT.idx from raw text (plain or .gz) and a sentencepiece model.

    The dictionary is that of `subwords.write_dictionary`. Memory is bounded, and the number of
    processes changes nothing in the result.
    """
    vocabulary = len(SPECIALS) + len(fairseq_symbols(load_model(model)))
    work = partial(_number_text, path=text, model=model, stamp=_stamp(model))
    return _write(map_in_order(work, chunks([text]), workers), out, vocabulary)


def binarise_words(dictionary: Path, text: Path, out: Path, workers: int = 1) -> Counts:
    """Write OUT.bin and OUT.idx from words between spaces and fairseq's dictionary of them."""
    stamp = _stamp(dictionary)
    work = partial(_number_words, path=text, dictionary=dictionary, stamp=stamp)
    vocabulary = len(_word_numbers(dictionary, stamp))
    return _write(map_in_order(work, chunks([text]), workers), out, vocabulary)


def write_word_dictionary(
    texts: Sequence[Path],
    out: Path,
    threshold: int = 0,
    size: int = -1,
    padding_factor: int = 8,
    workers: int = 1,
) -> None:
    """Write the dictionary that fairseq-preprocess makes of the words in some files.

    Words rarer than `threshold` are left out. The `size` (-1: any) counts fairseq's four special
    symbols; it is brought to a multiple of `padding_factor`.
    """
    counts = count_words(texts, workers)
    for special in SPECIALS:
        counts.pop(special, None)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if size > 0:
        ranked = ranked[: max(0, size - len(SPECIALS))]
    words = {word: count for word, count in ranked if count >= threshold}
    number = 0
    while (len(SPECIALS) + len(words)) % max(1, padding_factor):
        words.setdefault(f"madeupword{number:04d}", 0)
        number += 1
    write_text(out, "".join(f"{word} {count}\n" for word, count in words.items()))


def count_words(texts: Sequence[Path], workers: int = 1) -> Counter[str]:
    """Return how often each word between spaces occurs in some files."""
    counts: Counter[str] = Counter()
    for text in texts:
        for words in map_in_order(partial(_count_words, path=text), chunks([text]), workers):
            counts.update(words)
    return counts


def _count_words(chunk: Chunk, path: Path) -> Counter[str]:
    words: Counter[str] = Counter()
    for (line,) in chunk.decode([path]):
        words.update(line.split())
    return words


def _stamp(path: Path) -> tuple[int, int]:
    """Return what tells one file of a name from the next: a process may see both."""
    status = path.stat()
    return status.st_mtime_ns, status.st_ino


@functools.lru_cache(maxsize=2)
def _piece_numbers(
    model: Path, stamp: tuple[int, int]
) -> tuple[sentencepiece.SentencePieceProcessor, np.ndarray]:
    """Return a model and fairseq's number of every piece, by sentencepiece's: [pieces]."""
    processor = load_model(model)
    position = {piece: n for n, piece in enumerate(fairseq_symbols(processor), len(SPECIALS))}
    pieces = range(processor.get_piece_size())
    numbers = [position.get(processor.id_to_piece(index), _UNKNOWN) for index in pieces]
    numbers[processor.eos_id()] = _END
    return processor, np.array(numbers)


def _number_text(chunk: Chunk, path: Path, model: Path, stamp: tuple[int, int]) -> _Numbered:
    processor, numbers = _piece_numbers(model, stamp)
    lines = [normalise(line) for (line,) in chunk.decode([path])]
    pieces = processor.encode(lines, out_type=int, add_eos=True)
    tokens = numbers[np.concatenate([np.array(line) for line in pieces])]
    return _Numbered(tokens, np.array([len(line) for line in pieces], dtype=np.int32))


@functools.lru_cache(maxsize=2)
def _word_numbers(dictionary: Path, stamp: tuple[int, int]) -> dict[str, int]:
    """Return fairseq's number of every word of a dictionary."""
    lines = dictionary.read_text(encoding="utf-8").split("\n")[:-1]
    words = [line.rsplit(" ", 1)[0] for line in lines]
    return SPECIALS | {word: n for n, word in enumerate(words, len(SPECIALS))}


def _number_words(chunk: Chunk, path: Path, dictionary: Path, stamp: tuple[int, int]) -> _Numbered:
    numbers = _word_numbers(dictionary, stamp)
    tokens: list[int] = []
    sizes = []
    for (line,) in chunk.decode([path]):
        words = line.split()
        tokens += [numbers.get(word, _UNKNOWN) for word in words]
        tokens.append(_END)
        sizes.append(len(words) + 1)
    return _Numbered(np.array(tokens), np.array(sizes, dtype=np.int32))


def _write(numbered: Iterator[_Numbered], out: Path, vocabulary: int) -> Counts:
    """Write OUT.bin and OUT.idx."""
    dtype, code = next((kind, code) for limit, kind, code in _NUMBERS if vocabulary < limit)
    sizes = []
    unknown = 0
    with Path(f"{out}.bin").open("wb") as stream:
        for chunk in numbered:
            stream.write(chunk.tokens.astype(dtype).tobytes())
            sizes.append(chunk.sizes)
            unknown += int((chunk.tokens == _UNKNOWN).sum())
    lengths = np.concatenate(sizes)
    ends = lengths.astype(np.int64).cumsum() * dtype.itemsize
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
    with Path(f"{out}.idx").open("wb") as stream:
        stream.write(struct.pack("<9sQBQ", _MAGIC, 1, code, len(lengths)))
        stream.write(lengths.tobytes())
        stream.write(starts.tobytes())
    return Counts(len(lengths), int(lengths.sum()), unknown)


@functools.lru_cache(maxsize=16)
def unigram_nll(data: Path, target: str | None, symbols: int) -> float | None:
    """Return the bits per token of a model that only knows how frequent each subword is.

    The cross-entropy of the validation set's target side under the training set's frequencies,
    add-one smoothed over all V symbols:

        H = - sum_v valid(v) / |valid| * log2((train(v) + 1) / (|train| + V))

    Args:
        data: a folder of one pair or of one language; None is returned for any other.
        target: the language; None for a language model.
        symbols: V, special symbols included.
    """
    name = rf"\d*\.([^.]+-{target}|{target}-[^.]+)\.{target}" if target else r"\d*"
    train, valid = (
        [p for p in sorted(data.glob(f"{split}*.idx")) if re.fullmatch(split + name, p.stem)]
        for split in ("train", "valid")
    )
    if not train or not valid:
        return None
    seen, predicted = _count_symbols(train, symbols), _count_symbols(valid[:1], symbols)
    if seen is None or predicted is None or not predicted.sum():
        return None
    probability = (seen + 1) / (seen.sum() + symbols)
    return float(-(predicted * np.log2(probability)).sum() / predicted.sum())


def _count_symbols(indices: Sequence[Path], symbols: int) -> np.ndarray | None:
    """Count each symbol: [V], int64; None for data in another format or of another dictionary."""
    from fairseq.data import indexed_dataset

    total = np.zeros(symbols, dtype=np.int64)
    for index in indices:
        if indexed_dataset.infer_dataset_impl(str(index.with_suffix(""))) != "mmap":
            return None
        if not index.with_suffix(".bin").stat().st_size:
            continue
        dtype = indexed_dataset.MMapIndexedDataset.Index(str(index)).dtype
        tokens = np.memmap(index.with_suffix(".bin"), dtype=dtype, mode="r")
        for start in range(0, len(tokens), _AT_ONCE):
            counts = np.bincount(tokens[start : start + _AT_ONCE], minlength=symbols)
            if len(counts) > symbols:
                return None
            total += counts
    return total
