"""Subwords with sentencepiece: train a model, encode and decode text, write fairseq's dictionary.

The dictionary follows the model's vocabulary: piece i of sentencepiece (which counts <unk>, <s> and
</s> as 0, 1, 2) is symbol i + 1 of fairseq (which counts <s>, <pad>, </s>, <unk> as 0 to 3).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import sentencepiece

from fairseq_deepnet.files import whole, write_text
from fairseq_deepnet.tools.corpora.text import Recipe, normalise, raw_lines, read_lines

UNKNOWN = "<unk>"
FAIRSEQ_SPECIALS = frozenset({"<s>", "<pad>", "</s>", UNKNOWN})
# fixed, because the result of unigram training depends on it
_TRAINING_THREADS = 16
_CHUNK = 10_000
_ENDS = re.compile("[\r\n]")
_MAX_LINE_BYTES = 16_384


def _explain(message: str, recipe: Recipe) -> str:
    """Return cause and remedy of an error of sentencepiece."""
    if high := re.search(r"Vocabulary size too high \(\d+\)\..*<= (\d+)", message):
        return (
            f"a vocabulary of {recipe.vocab_size} is too large for this text: the largest possible"
            f" is {high[1]}; set VOCAB_SIZE (--vocab-size), for a small corpus far below it"
        )
    if low := re.search(r"smaller than required_chars\. (\d+) vs (\d+)", message):
        return (
            f"a vocabulary of {recipe.vocab_size} is too small: the characters alone need"
            f" {low[2]}; set VOCAB_SIZE (--vocab-size) higher, or CHARACTER_COVERAGE below"
            f" {recipe.character_coverage}"
        )
    return f"sentencepiece cannot train on this text: {' '.join(message.split())}"


def allot(lines: dict[str, int], budget: int, temperature: float) -> dict[str, int]:
    """Return how many lines of each language the subword model is trained on.

    A language with n lines gets a share of `budget` in proportion to n^(1/temperature), at most n;
    the others share the rest. A temperature of 1 keeps the proportions of the text.
    """
    taken: dict[str, int] = {}
    waiting = {language: count ** (1 / temperature) for language, count in lines.items()}
    left = budget
    while waiting:
        total = math.fsum(waiting.values())
        small = [name for name, share in waiting.items() if left * share / total >= lines[name]]
        if not small:
            return taken | {name: int(left * share / total) for name, share in waiting.items()}
        for name in small:
            taken[name] = lines[name]
            left -= lines[name]
            del waiting[name]
    return taken


def spread(lines: Iterable[str], wanted: int, total: int) -> Iterator[str]:
    """Yield `wanted` of `total` lines, evenly spread."""
    for number, line in enumerate(lines):
        if (number + 1) * wanted // total > number * wanted // total:
            yield line


def train_model(
    files: Iterable[Path], prefix: Path, recipe: Recipe, sample: Iterable[str] | None = None
) -> None:
    """Train one model on all `files` together; write PREFIX.model and PREFIX.vocab.

    Deterministic in the text and the recipe. Raises ValueError for a vocabulary size that the text
    does not allow, naming the largest or smallest possible.

    Args:
        sample: lines to train on instead of `recipe.sample` lines, evenly spread over the files.
    """
    # Written from memory: into a file of its own naming, sentencepiece would also write its path.
    model = io.BytesIO()
    files = list(files)
    text: Iterable[str] = sample or (line for path in files for line in read_lines(path))
    total = 0 if sample else sum(1 for path in files for _ in raw_lines(path))
    if total > recipe.sample:  # sentencepiece would draw other lines in every process
        text = spread(text, recipe.sample, total)
    lines = map(normalise, text)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for line in lines if line),
            model_writer=model,
            model_type=recipe.subwords,
            vocab_size=recipe.vocab_size,
            character_coverage=recipe.character_coverage,
            byte_fallback=recipe.byte_fallback,
            input_sentence_size=recipe.sample,
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_LINE_BYTES,
            num_threads=_TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(_explain(str(error), recipe)) from error
    with whole(Path(f"{prefix}.model")) as part:
        part.write_bytes(model.getvalue())
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = "".join(
        f"{trained.id_to_piece(index)}\t{trained.get_score(index):g}\n"
        for index in range(trained.get_piece_size())
    )
    write_text(Path(f"{prefix}.vocab"), vocabulary)


def load_model(path: Path) -> sentencepiece.SentencePieceProcessor:
    """Load a trained model; FileNotFoundError without the file, ValueError for another file."""
    if not path.is_file():
        raise FileNotFoundError(f"no sentencepiece model at {path}")
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise ValueError(f"{path} is not a sentencepiece model") from error


def fairseq_symbols(model: sentencepiece.SentencePieceProcessor) -> list[str]:
    """Return the pieces that fairseq's dictionary lists, in the order of the model's vocabulary."""
    pieces = [
        model.id_to_piece(index)
        for index in range(model.get_piece_size())
        if not (model.is_control(index) or model.is_unknown(index))
    ]
    for piece in pieces:
        if piece in FAIRSEQ_SPECIALS or len(piece.split()) != 1:
            raise ValueError(
                f"the piece {piece!r} of the model is a symbol of fairseq or has a space"
            )
    return pieces


def write_dictionary(model: sentencepiece.SentencePieceProcessor, path: Path) -> None:
    """Write fairseq's dict.LANGUAGE.txt in the order of the model; all counts are 1."""
    text = "".join(f"{piece} 1\n" for piece in fairseq_symbols(model))
    write_text(path, text)


def encode_lines(
    model: sentencepiece.SentencePieceProcessor, lines: Iterable[str], workers: int
) -> Iterator[str]:
    """Yield each line as pieces separated by spaces, encoded by `workers` threads.

    A literal "</s>" becomes <unk>, as fairseq would end the sentence there.
    """
    normalised = (normalise(line) for line in lines)
    while chunk := list(islice(normalised, _CHUNK)):
        for pieces in model.encode(chunk, out_type=str, num_threads=workers):
            if not FAIRSEQ_SPECIALS.isdisjoint(pieces):
                pieces = [UNKNOWN if piece in FAIRSEQ_SPECIALS else piece for piece in pieces]
            yield " ".join(pieces)


def decode_line(model: sentencepiece.SentencePieceProcessor, line: str) -> str:
    """Return the text of a line of pieces, without line ends that bytes may spell."""
    return _ENDS.sub(" ", str(model.decode(line.split())))
