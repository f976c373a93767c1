"""Training and use of sentencepiece models, and fairseq dictionaries of their pieces.

A dictionary lists the pieces in the model's order. sentencepiece places them after <unk>, <s> and
</s>, and fairseq after <s>, <pad>, </s> and <unk>, so a piece's index is its sentencepiece ID + 1.
"""

import io
import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import sentencepiece

from fairseq_deepnet.files import whole, write_text
from fairseq_deepnet.tools.corpora.text import Recipe, normalise

UNKNOWN = "<unk>"
FAIRSEQ_SPECIALS = frozenset({"<s>", "<pad>", "</s>", UNKNOWN})


def allot(lines: dict[str, int], budget: int, temperature: float) -> dict[str, int]:
    """Return how many lines of each language are used to train the subword model.

    A language with n lines gets a share of `budget` proportional to n^(1/temperature), but at most
    n lines; other languages share the excess. A temperature of 1 keeps the languages' proportions.
    """
    shares: dict[str, int] = {}
    waiting = {language: count ** (1 / temperature) for language, count in lines.items()}
    remaining = budget
    while waiting:
        total = math.fsum(waiting.values())
        small = [
            name for name, share in waiting.items() if remaining * share / total >= lines[name]
        ]
        if not small:
            return shares | {
                name: int(remaining * share / total) for name, share in waiting.items()
            }
        for name in small:
            shares[name] = lines[name]
            remaining -= lines[name]
            del waiting[name]
    return shares


def spread(lines: Iterable[str], count: int, total: int) -> Iterator[str]:
    """Yield `count` of the `total` lines, at even intervals."""
    for number, line in enumerate(lines):
        if (number + 1) * count // total > number * count // total:
            yield line


def train_model(text: Iterable[str], prefix: Path, recipe: Recipe) -> None:
    """Train a sentencepiece model on lines of text, and write PREFIX.model and PREFIX.vocab.

    If the text has at most `recipe.sample` lines, the model depends only on the text and the
    recipe; from longer text, sentencepiece draws a sample that differs between processes. Raises
    ValueError if the text is too small or has too many different characters for the vocabulary.
    """
    model = io.BytesIO()  # a model that sentencepiece writes to a file contains the file's path
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
            max_sentence_length=16_384,
            num_threads=16,  # the result of unigram training depends on this number
            minloglevel=2,
        )
    except RuntimeError as error:
        # the message begins with a line of source code, and states the possible vocabulary size
        reason = " ".join(str(error).split()).rpartition("] ")[2]
        raise ValueError(
            f"sentencepiece cannot learn {recipe.vocab_size} subwords (VOCAB_SIZE, --vocab-size):"
            f" {reason}"
        ) from error
    with whole(Path(f"{prefix}.model")) as part:
        part.write_bytes(model.getvalue())
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = "".join(
        f"{trained.id_to_piece(index)}\t{trained.get_score(index):g}\n"
        for index in range(trained.get_piece_size())
    )
    write_text(Path(f"{prefix}.vocab"), vocabulary)


def load_model(path: Path) -> sentencepiece.SentencePieceProcessor:
    """Load a sentencepiece model.

    Raises FileNotFoundError if the file does not exist, and ValueError if it is not a model.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no sentencepiece model at {path}")
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise ValueError(f"{path} is not a sentencepiece model") from error


def fairseq_symbols(model: sentencepiece.SentencePieceProcessor) -> list[str]:
    """Return the pieces that a fairseq dictionary of the model lists, in the model's order."""
    pieces = [
        model.id_to_piece(index)
        for index in range(model.get_piece_size())
        if not (model.is_control(index) or model.is_unknown(index))
    ]
    for piece in pieces:
        if piece in FAIRSEQ_SPECIALS or len(piece.split()) != 1:
            raise ValueError(f"the model's piece {piece!r} is a fairseq symbol or contains a space")
    return pieces


def write_dictionary(model: sentencepiece.SentencePieceProcessor, path: Path) -> None:
    """Write a fairseq dictionary of the model's pieces, in the model's order, with counts of 1."""
    write_text(path, "".join(f"{piece} 1\n" for piece in fairseq_symbols(model)))


def encode_lines(
    model: sentencepiece.SentencePieceProcessor, lines: Iterable[str], workers: int
) -> Iterator[str]:
    """Yield each line as pieces separated by spaces, encoded by `workers` threads.

    A literal "</s>" becomes <unk>, because fairseq would end the sentence there.
    """
    normalised = map(normalise, lines)
    while chunk := list(islice(normalised, 10_000)):
        for pieces in model.encode(chunk, out_type=str, num_threads=workers):
            if not FAIRSEQ_SPECIALS.isdisjoint(pieces):
                pieces = [UNKNOWN if piece in FAIRSEQ_SPECIALS else piece for piece in pieces]
            yield " ".join(pieces)


def decode_line(model: sentencepiece.SentencePieceProcessor, line: str) -> str:
    """Decode a line of pieces to text, and replace line ends in the text with spaces."""
    return re.sub("[\r\n]", " ", str(model.decode(line.split())))
