"""Binarised data in fairseq's mmap format, and dictionaries of whitespace-separated words.

A sentencepiece model encodes text directly as piece IDs, which a table maps to fairseq's token
indices. Subwords of Moses tokens are looked up in a fairseq dictionary instead.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fairseq_deepnet.tools.corpora.subwords import fairseq_symbols, load_model
from fairseq_deepnet.tools.corpora.text import Chunk, chunks, map_in_order, normalise

_SPECIAL = 4  # <s>, <pad>, </s> and <unk> begin every fairseq dictionary
_END, _UNKNOWN = 2, 3


def binarise(vocabulary: Path, text: Path, out: Path, workers: int = 1) -> dict[str, int]:
    """Binarise a text file (plain or .gz) to OUT.bin and OUT.idx, as fairseq-preprocess does.

    Returns the numbers of sentences, tokens (including </s>) and unknown tokens. The files do not
    depend on `workers`, the number of processes.

    Args:
        vocabulary: a sentencepiece model (.model), whose pieces get the indices that they have in
            the dictionary from `subwords.write_dictionary`, or a fairseq dictionary of words.
    """
    from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype

    modified = vocabulary.stat().st_mtime_ns
    dtype = best_fitting_int_dtype(_numbering(vocabulary, modified)[1])
    work = partial(_number, path=text, vocabulary=vocabulary, modified=modified)
    sizes: list[int] = []
    unknown = 0
    with Path(f"{out}.bin").open("wb") as stream:
        for lines in map_in_order(work, chunks([text]), workers):
            tokens = np.concatenate(lines)
            stream.write(tokens.astype(dtype).tobytes())
            sizes += map(len, lines)
            unknown += int((tokens == _UNKNOWN).sum())
    with MMapIndexedDataset.Index.writer(f"{out}.idx", dtype) as index:
        index.write(sizes)
    return {"sentences": len(sizes), "tokens": sum(sizes), "unknown": unknown}


@functools.lru_cache(maxsize=2)
def _numbering(
    vocabulary: Path, modified: int
) -> tuple[Callable[[Iterable[str]], list[np.ndarray]], int]:
    """Return a function that encodes lines as fairseq's token indices, and the dictionary size."""
    if vocabulary.suffix != ".model":
        from fairseq.data import Dictionary

        words = Dictionary.load(str(vocabulary))

        def look_up(lines: Iterable[str]) -> list[np.ndarray]:
            return [np.array([*map(words.index, line.split()), _END]) for line in lines]

        return look_up, len(words)
    model = load_model(vocabulary)
    symbols = fairseq_symbols(model)
    position = {piece: number for number, piece in enumerate(symbols, _SPECIAL)}
    pieces = map(model.id_to_piece, range(model.get_piece_size()))
    numbers = np.array([position.get(piece, _UNKNOWN) for piece in pieces])
    numbers[model.eos_id()] = _END

    def encode(lines: Iterable[str]) -> list[np.ndarray]:
        encoded = model.encode([*map(normalise, lines)], out_type=int, add_eos=True)
        return [numbers[line] for line in encoded]

    return encode, _SPECIAL + len(symbols)


def _number(chunk: Chunk, path: Path, vocabulary: Path, modified: int) -> list[np.ndarray]:
    return _numbering(vocabulary, modified)[0](line for (line,) in chunk.decode([path]))


def write_word_dictionary(texts: Sequence[Path], out: Path, workers: int = 1) -> int:
    """Write a dictionary of the words in `texts`, as fairseq-preprocess does; return its size."""
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for word, count in count_words(texts, workers).items():
        dictionary.add_symbol(word, count)
    dictionary.finalize(padding_factor=8)
    dictionary.save(str(out))
    return len(dictionary)


def count_words(texts: Sequence[Path], workers: int = 1) -> Counter[str]:
    """Return the number of occurrences of each whitespace-separated word in text files."""
    counts: Counter[str] = Counter()
    for text in texts:
        for words in map_in_order(partial(_count_words, path=text), chunks([text]), workers):
            counts.update(words)
    return counts


def _count_words(chunk: Chunk, path: Path) -> Counter[str]:
    return Counter(word for (line,) in chunk.decode([path]) for word in line.split())


@functools.lru_cache(maxsize=16)
def unigram_nll(data: Path, target: str | None, symbols: int) -> float | None:
    """Return a unigram model's cross-entropy in bits per token, or None if data are missing.

    The model has the token frequencies of the training set, with add-one smoothing over all V
    symbols. Its cross-entropy is measured on the target side of the validation set:

        H = - sum_v valid(v) / |valid| * log2((train(v) + 1) / (|train| + V))

    Args:
        data: bilingual or monolingual data folder.
        target: code of the target language; None for a monolingual folder.
        symbols: V, the size of the dictionary, including special symbols.
    """
    from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl

    name = rf"\.([^.]+-{target}|{target}-[^.]+)\.{target}" if target else ""
    counts = []
    for split in (r"train\d*", "valid"):
        total = np.zeros(symbols, dtype=np.int64)
        for index in data.glob("*.idx"):
            if not re.fullmatch(split + name, index.stem):
                continue
            if infer_dataset_impl(str(index.with_suffix(""))) != "mmap":
                return None
            dtype = MMapIndexedDataset.Index(str(index)).dtype
            with index.with_suffix(".bin").open("rb") as stream:
                while len(tokens := np.fromfile(stream, dtype, 1 << 24)):
                    part = np.bincount(tokens, minlength=symbols)
                    if len(part) > symbols:
                        return None
                    total += part
        if not total.sum():
            return None
        counts.append(total)
    train, valid = counts
    probability = (train + 1) / (train.sum() + symbols)
    return float(-(valid * np.log2(probability)).sum() / valid.sum())
