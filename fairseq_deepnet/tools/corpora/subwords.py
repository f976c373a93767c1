"""Subwords with sentencepiece: train a model, encode and decode text, write fairseq's dictionary.

The dictionary follows the model's vocabulary: piece i of sentencepiece (which counts <unk>, <s> and
</s> as 0, 1, 2) is symbol i + 1 of fairseq (which counts <s>, <pad>, </s>, <unk> as 0 to 3).
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path

import sentencepiece

from fairseq_deepnet.files import whole, write_text
from fairseq_deepnet.tools.corpora.parallel import CHUNK, map_in_order
from fairseq_deepnet.tools.corpora.text import decode, normalise, numbered_chunks, read_lines

KINDS = ("bpe", "unigram")
UNKNOWN = "<unk>"
FAIRSEQ_SPECIALS = frozenset({"<s>", "<pad>", "</s>", UNKNOWN})
# Results of unigram training depend on the number of threads, so it is no knob of the machine.
_TRAINING_THREADS = 16
_CHUNK = 10_000
_ENDS = re.compile("[\r\n]")
_PROGRESS_EVERY = 1_000_000
_MAX_LINE_BYTES = 16_384


@dataclass(frozen=True)
class SubwordOptions:
    """How the model is trained.

    `sample` is the largest number of lines that training looks at; of longer text it is always the
    same sample, as sentencepiece draws it with a fixed seed.
    """

    kind: str = "bpe"
    vocab_size: int = 8000
    character_coverage: float = 1.0
    byte_fallback: bool = False
    sample: int = 2_000_000

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of subwords {self.kind!r}; choose from {KINDS}")
        if self.vocab_size < 4:
            raise ValueError(f"vocabulary size {self.vocab_size}; it must be at least 4")
        if not 0.9 <= self.character_coverage <= 1:
            raise ValueError(
                f"character coverage {self.character_coverage}; it must lie in [0.9, 1]"
            )
        if self.sample <= 100:
            raise ValueError(f"sample of {self.sample} lines; sentencepiece must see over 100")


def _explain(message: str, options: SubwordOptions) -> str:
    """One line with cause and remedy from what sentencepiece says of an impossible vocabulary."""
    high = re.search(r"Vocabulary size too high \(\d+\)\..*<= (\d+)", message)
    if high:
        return (
            f"a vocabulary of {options.vocab_size} is too large for this text: "
            f"the largest possible is {high[1]}"
        )
    if "!sentences_.empty()" in message:
        return "there is no text to train subwords on; give files with at least one word"
    low = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", message)
    if low:
        return (
            f"a vocabulary of {options.vocab_size} is too small: the characters alone need "
            f"{low[2]}; take more, or a character coverage below {options.character_coverage}"
        )
    return f"sentencepiece cannot train on this text: {' '.join(message.split())}"


def train_model(files: Iterable[Path], prefix: Path, options: SubwordOptions) -> None:
    """Train one model on all `files` together; write PREFIX.model and PREFIX.vocab.

    Deterministic in the text and the options. Raises ValueError for a vocabulary size that the text
    does not allow, naming the largest or smallest possible.
    """
    # Written from memory: into a file of its own naming, sentencepiece would also write its path.
    model = io.BytesIO()
    lines = (normalise(line) for path in files for line in read_lines(path))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for line in lines if line),
            model_writer=model,
            model_type=options.kind,
            vocab_size=options.vocab_size,
            character_coverage=options.character_coverage,
            byte_fallback=options.byte_fallback,
            input_sentence_size=options.sample,
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_LINE_BYTES,
            num_threads=_TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(_explain(str(error), options)) from error
    with whole(Path(f"{prefix}.model")) as part:
        part.write_bytes(model.getvalue())
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = "".join(
        f"{trained.id_to_piece(index)}\t{trained.get_score(index):g}\n"
        for index in range(trained.get_piece_size())
    )
    write_text(Path(f"{prefix}.vocab"), vocabulary)


def load_model(path: Path) -> sentencepiece.SentencePieceProcessor:
    """Load a trained model; ValueError or FileNotFoundError if that cannot be."""
    if not path.is_file():
        raise FileNotFoundError(f"no sentencepiece model at {path}")
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise ValueError(f"{path} is not a sentencepiece model") from error


def fairseq_symbols(model: sentencepiece.SentencePieceProcessor) -> list[str]:
    """The pieces that fairseq's dictionary lists, in the order of the model's vocabulary."""
    pieces = [
        model.id_to_piece(index)
        for index in range(model.get_piece_size())
        if not (model.is_control(index) or model.is_unknown(index))
    ]
    for piece in pieces:
        if piece in FAIRSEQ_SPECIALS or len(piece.split()) != 1:
            raise ValueError(f"the piece {piece!r} of the model means something else to fairseq")
    return pieces


def write_dictionary(model: sentencepiece.SentencePieceProcessor, path: Path) -> None:
    """Write fairseq's dict.LANGUAGE.txt; the counts say nothing, as the order is already given."""
    text = "".join(f"{piece} 1\n" for piece in fairseq_symbols(model))
    write_text(path, text)


def encode_lines(
    model: sentencepiece.SentencePieceProcessor, lines: Iterable[str], workers: int
) -> Iterator[str]:
    """Yield each line as its pieces, separated by spaces, encoded by `workers` threads at once.

    What the model does not know stays as it is, for fairseq to find unknown; except that a literal
    "</s>" must not become the end of the sentence, and so is <unk> at once.
    """
    normalised = (normalise(line) for line in lines)
    while chunk := list(islice(normalised, _CHUNK)):
        for pieces in model.encode(chunk, out_type=str, num_threads=workers):
            if not FAIRSEQ_SPECIALS.isdisjoint(pieces):
                pieces = [UNKNOWN if piece in FAIRSEQ_SPECIALS else piece for piece in pieces]
            yield " ".join(pieces)


def decode_line(model: sentencepiece.SentencePieceProcessor, line: str) -> str:
    """The text of one line of pieces; one line, even where bytes make up an end of line."""
    return _ENDS.sub(" ", str(model.decode(line.split())))


@cache
def _model_of_this_process(path: Path) -> sentencepiece.SentencePieceProcessor:
    return load_model(path)


def _encode_chunk(chunk: tuple[int, list[bytes]], source: Path, model: Path) -> bytes:
    """Work of one process on consecutive lines, the first of which has the given number."""
    lines = (decode(raw, source, number) for number, raw in enumerate(chunk[1], chunk[0]))
    encoded = encode_lines(_model_of_this_process(model), lines, workers=1)
    return "".join(f"{line}\n" for line in encoded).encode()


def encode_file(model: Path, source: Path, target: Path, workers: int) -> int:
    """Encode a text file (plain or .gz) into a plain one, with `workers` processes.

    Memory is bounded. Returns the number of lines.
    """
    load_model(model)  # a bad model is told before any text is read
    count = 0
    with whole(target) as part, part.open("wb") as stream:
        work = partial(_encode_chunk, source=source, model=model)
        for encoded in map_in_order(work, numbered_chunks(source, CHUNK), workers):
            stream.write(encoded)
            before, count = count, count + encoded.count(b"\n")
            if count // _PROGRESS_EVERY > before // _PROGRESS_EVERY:
                print(f"{source.name}: {count:,} lines encoded", file=sys.stderr, flush=True)
    return count


def _train(args: argparse.Namespace) -> int:
    options = SubwordOptions(
        kind=args.kind,
        vocab_size=args.vocab_size,
        character_coverage=args.character_coverage,
        byte_fallback=args.byte_fallback,
        sample=args.sample,
    )
    languages = (args.src, args.tgt)
    args.out.mkdir(parents=True, exist_ok=True)
    for language in languages:
        name = f"spm.{language}" if args.separate else "spm"
        sides = (language,) if args.separate else languages
        if args.separate or language == args.src:
            files = [Path(f"{args.text}.{side}") for side in sides]
            print(
                f"training {options.kind} of {options.vocab_size:,} pieces on {' + '.join(sides)}",
                file=sys.stderr,
                flush=True,
            )
            train_model(files, args.out / name, options)
        model = load_model(args.out / f"{name}.model")
        write_dictionary(model, args.out / f"dict.{language}.txt")
    return 0


def model_for(place: Path, name: str) -> Path:
    """The model for a file called NAME.LANGUAGE: `place` itself, or of the folder `place` that
    `deepnet subwords train` filled the language's own model or else the joint one."""
    if not place.is_dir():
        return place
    own = place / f"spm.{name.rsplit('.', 1)[-1]}.model"
    return own if own.is_file() else place / "spm.model"


def _encode(args: argparse.Namespace) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    for path in args.files:
        name = path.name.removesuffix(".gz")
        encode_file(model_for(args.model, name), path, args.out / name, args.workers)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet subwords train` and `deepnet subwords encode`."""
    parser.description = __doc__
    commands = parser.add_subparsers(required=True, metavar="train|encode")
    train = commands.add_parser("train", help="train a model and write fairseq's dictionaries")
    train.add_argument("--text", required=True, metavar="PREFIX", help="of PREFIX.LANGUAGE")
    train.add_argument("--src", required=True)
    train.add_argument("--tgt", required=True)
    train.add_argument("--out", required=True, type=Path, help="folder for models and dictionaries")
    train.add_argument("--kind", default=SubwordOptions.kind, help="bpe or unigram")
    train.add_argument("--vocab-size", type=int, default=SubwordOptions.vocab_size)
    train.add_argument("--separate", action="store_true", help="one model a language, not joint")
    train.add_argument(
        "--character-coverage", type=float, default=SubwordOptions.character_coverage
    )
    train.add_argument("--byte-fallback", action="store_true", help="unseen characters as bytes")
    train.add_argument("--sample", type=int, default=SubwordOptions.sample, help="lines at most")
    train.set_defaults(subwords_run=_train)
    encode = commands.add_parser("encode", help="encode text files, keeping their names")
    encode.add_argument("files", nargs="+", type=Path, help="plain or .gz")
    encode.add_argument("--model", required=True, type=Path, help="spm.model or its folder")
    encode.add_argument("--out", required=True, type=Path, help="folder for the encoded files")
    encode.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    encode.set_defaults(subwords_run=_encode)


def run(args: argparse.Namespace) -> int:
    """`deepnet subwords train|encode`."""
    return int(args.subwords_run(args))
