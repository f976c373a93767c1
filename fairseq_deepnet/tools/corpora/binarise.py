"""Fairseq's binarised data (its mmap format): written from text, and counted.

Processes share out the lines. sentencepiece numbers its pieces and fairseq its symbols in the same
order, so raw text becomes numbers at once. Words between spaces (byte-pair codes of Moses tokens)
go by a dictionary.
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
from fairseq_deepnet.tools.corpora.parallel import CHUNK, map_in_order
from fairseq_deepnet.tools.corpora.subwords import fairseq_symbols, load_model
from fairseq_deepnet.tools.corpora.text import decode, normalise, numbered_chunks

_SPECIALS: Final = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
"""How fairseq's dictionary begins."""
_END, _UNKNOWN = _SPECIALS["</s>"], _SPECIALS["<unk>"]
_MAGIC: Final = b"MMIDIDX\x00\x00"
_NUMBERS: Final = ((65_500, np.dtype(np.uint16), 8), (1 << 32, np.dtype(np.uint32), 9))
"""Size of the dictionary below which a type of number is taken, and its code in an index."""

_AT_ONCE: Final = 1 << 22
"""Tokens counted at once: 32 MiB while numpy widens them."""

LineChunk = tuple[int, list[bytes]]
"""The number of a line, from 1, and the lines from there on."""


class Counts(NamedTuple):
    """What was written: sentences, tokens with one end of sentence each, unknown tokens."""

    sentences: int
    tokens: int
    unknown: int


class _Numbered(NamedTuple):
    """A chunk of lines as fairseq's numbers, each line with its </s>."""

    tokens: np.ndarray
    sizes: np.ndarray
    unknown: int


def binarise_text(model: Path, text: Path, out: Path, workers: int = 1) -> Counts:
    """Write OUT.bin and OUT.idx from raw text (plain or .gz) and a sentencepiece model.

    The dictionary is that of `subwords.write_dictionary`. Memory is bounded, and the number of
    processes changes nothing in the result.
    """
    vocabulary = len(_SPECIALS) + len(fairseq_symbols(load_model(model)))
    work = partial(_number_text, path=text, model=model, stamp=_stamp(model))
    return _write(map_in_order(work, numbered_chunks(text, CHUNK), workers), out, vocabulary)


def binarise_words(dictionary: Path, text: Path, out: Path, workers: int = 1) -> Counts:
    """Write OUT.bin and OUT.idx from words between spaces and fairseq's dictionary of them."""
    stamp = _stamp(dictionary)
    work = partial(_number_words, path=text, dictionary=dictionary, stamp=stamp)
    vocabulary = len(_word_numbers(dictionary, stamp))
    return _write(map_in_order(work, numbered_chunks(text, CHUNK), workers), out, vocabulary)


def write_word_dictionary(
    texts: list[Path],
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
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(count_words(text, workers))
    for special in _SPECIALS:
        counts.pop(special, None)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if size > 0:
        ranked = ranked[: max(0, size - len(_SPECIALS))]
    words = {word: count for word, count in ranked if count >= threshold}
    number = 0
    while (len(_SPECIALS) + len(words)) % max(1, padding_factor):
        words.setdefault(f"madeupword{number:04d}", 0)
        number += 1
    write_text(out, "".join(f"{word} {count}\n" for word, count in words.items()))


def count_words(text: Path, workers: int = 1) -> Counter[str]:
    """Return how often each word between spaces occurs in a file."""
    counts: Counter[str] = Counter()
    work = partial(_count_words, path=text)
    for found in map_in_order(work, numbered_chunks(text, CHUNK), workers):
        counts.update(found)
    return counts


def _count_words(chunk: LineChunk, path: Path) -> Counter[str]:
    words: Counter[str] = Counter()
    for number, raw in enumerate(chunk[1], chunk[0]):
        words.update(decode(raw, path, number).split())
    return words


def _stamp(path: Path) -> tuple[int, int]:
    """Tell one file of a name from the next: a process may see both."""
    status = path.stat()
    return status.st_mtime_ns, status.st_ino


@functools.lru_cache(maxsize=2)
def _piece_numbers(
    model: Path, stamp: tuple[int, int]
) -> tuple[sentencepiece.SentencePieceProcessor, np.ndarray]:
    """Return a model and fairseq's number of every piece, by sentencepiece's: [pieces]."""
    processor = load_model(model)
    position = {piece: n for n, piece in enumerate(fairseq_symbols(processor), len(_SPECIALS))}
    pieces = range(processor.get_piece_size())
    numbers = [position.get(processor.id_to_piece(index), _UNKNOWN) for index in pieces]
    numbers[processor.eos_id()] = _END
    return processor, np.array(numbers)


def _number_text(chunk: LineChunk, path: Path, model: Path, stamp: tuple[int, int]) -> _Numbered:
    processor, numbers = _piece_numbers(model, stamp)
    lines = [normalise(decode(raw, path, number)) for number, raw in enumerate(chunk[1], chunk[0])]
    pieces = processor.encode(lines, out_type=int, add_eos=True)
    tokens = numbers[np.concatenate([np.array(line) for line in pieces])]
    sizes = np.array([len(line) for line in pieces], dtype=np.int32)
    return _Numbered(tokens, sizes, int((tokens == _UNKNOWN).sum()))


@functools.lru_cache(maxsize=2)
def _word_numbers(dictionary: Path, stamp: tuple[int, int]) -> dict[str, int]:
    """Return fairseq's number of every word of a dictionary."""
    lines = dictionary.read_text(encoding="utf-8").split("\n")[:-1]
    words = [line.rsplit(" ", 1)[0] for line in lines]
    return _SPECIALS | {word: n for n, word in enumerate(words, len(_SPECIALS))}


def _number_words(
    chunk: LineChunk, path: Path, dictionary: Path, stamp: tuple[int, int]
) -> _Numbered:
    numbers = _word_numbers(dictionary, stamp)
    tokens: list[int] = []
    sizes = []
    for number, raw in enumerate(chunk[1], chunk[0]):
        words = decode(raw, path, number).split()
        tokens += [numbers.get(word, _UNKNOWN) for word in words]
        tokens.append(_END)
        sizes.append(len(words) + 1)
    return _Numbered(np.array(tokens), np.array(sizes, dtype=np.int32), tokens.count(_UNKNOWN))


def _write(chunks: Iterator[_Numbered], out: Path, vocabulary: int) -> Counts:
    """Write OUT.bin and then OUT.idx: what has an index is complete."""
    dtype, code = next((kind, code) for limit, kind, code in _NUMBERS if vocabulary < limit)
    sizes = [np.empty(0, dtype=np.int32)]
    unknown = 0
    names = {ending: Path(f"{out}.{ending}") for ending in ("bin", "idx")}
    parts = {ending: Path(f"{out}.{ending}.part") for ending in names}
    with parts["bin"].open("wb") as stream:
        for chunk in chunks:
            stream.write(chunk.tokens.astype(dtype).tobytes())
            sizes.append(chunk.sizes)
            unknown += chunk.unknown
    lengths = np.concatenate(sizes)
    ends = lengths.astype(np.int64).cumsum() * dtype.itemsize
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])[: len(lengths)]
    with parts["idx"].open("wb") as stream:
        stream.write(struct.pack("<9sQBQ", _MAGIC, 1, code, len(lengths)))
        stream.write(lengths.tobytes())
        stream.write(starts.tobytes())
    for ending, part in parts.items():
        part.replace(names[ending])
    return Counts(len(lengths), int(lengths.sum()), unknown)


@functools.lru_cache(maxsize=16)
def unigram_nll(data: Path, target: str | None, symbols: int) -> float | None:
    """Return the bits a token of a model that knows how frequent each subword is, and nothing else.

    The cross-entropy of the validation set's target side under the training set's frequencies,
    add-one smoothed over all symbols:

        H = - sum_v valid(v) / |valid| * log2((train(v) + 1) / (|train| + V))

    `target` is None for a language model; `symbols` is V, special ones included. None where the
    folder does not hold both sets of one pair (or one language) in fairseq's
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
    """Return the files of a split and of its further parts (train1, ...), without endings."""
    language = re.escape(target or "")
    pair = rf"\.([^.]+-{language}|{language}-[^.]+)\.{language}" if target else ""
    name = re.compile(rf"{split}\d*{pair}\.idx")
    files = data.glob(f"{split}*.idx")
    return sorted(file.with_suffix("") for file in files if name.fullmatch(file.name))


def _counts(prefixes: Sequence[Path], symbols: int) -> np.ndarray | None:
    """Count each symbol: [V], int64; None for what is not memory-mapped or has others."""
    from fairseq.data import indexed_dataset

    total = np.zeros(symbols, dtype=np.int64)
    for prefix in prefixes:
        if indexed_dataset.infer_dataset_impl(str(prefix)) != "mmap":
            return None
        index = indexed_dataset.MMapIndexedDataset.Index(f"{prefix}.idx")
        if not len(index):
            continue
        tokens = np.memmap(f"{prefix}.bin", dtype=index.dtype, mode="r")
        for start in range(0, len(tokens), _AT_ONCE):
            found = np.bincount(tokens[start : start + _AT_ONCE], minlength=symbols)
            if len(found) > symbols:
                return None
            total += found
    return total
