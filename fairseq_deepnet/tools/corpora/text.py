"""Recipes for data folders, and reading, cleaning and parallel processing of lines of text.

A line ends only at "\\n". Python's text mode also splits at a lone "\\r", and `str.splitlines` at
U+2028, U+0085, "\\x0b" and others. Either would misalign the two sides of a corpus.
"""

import difflib
import gzip
import multiprocessing
import re
import signal
import unicodedata
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from fairseq_deepnet.ended import end_with_parent

T = TypeVar("T")
R = TypeVar("R")

# Characters that Python, fairseq or sentencepiece treats as white space, including the zero-width
# space, the byte-order mark and sentencepiece's symbol for a space.
_SPACES = re.compile("[\\s\\x1c-\\x1f\\x85\\u200b\\ufeff\\u2581]+")
_CONTROLS = re.compile("[\\x00-\\x08\\x0e-\\x1b\\x7f-\\x84\\x86-\\x9f\\u00ad]")
# In scripts without spaces, each Han or Kana character counts as a word, and so do up to four
# characters of Thai, Lao, Burmese or Khmer (about the mean word length).
_HAN_KANA = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_THAI_KHMER = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(f"[{_HAN_KANA}]|[{_THAI_KHMER}]{{1,4}}|[^\\s{_HAN_KANA}{_THAI_KHMER}]+")


def find_side(prefix: str | Path, language: str) -> Path:
    """Return the path of PREFIX.LANGUAGE or PREFIX.LANGUAGE.gz, whichever exists.

    Raises FileNotFoundError if neither exists, and ValueError if both exist.
    """
    paths = [Path(f"{prefix}.{language}{end}") for end in ("", ".gz")]
    files = [path for path in paths if path.is_file()]
    if not files:
        names = [path.name for path in paths[0].parent.glob("*")]
        near = difflib.get_close_matches(paths[0].name, names, 3)
        hint = f"; similar names in that folder: {', '.join(near)}" if near else ""
        raise FileNotFoundError(f"there is no {paths[0]}[.gz]{hint}")
    if len(files) > 1:
        raise ValueError(f"both {files[0]} and {files[1]} exist: remove or rename one of them")
    return files[0]


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a plain or .gz file as bytes, including line ends.

    Raises ValueError if a .gz file is damaged.
    """
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as stream:
            yield from stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not a complete gzip file ({error}); fetch it again") from error


def decode(raw: bytes, path: Path, number: int, errors: str = "strict") -> str:
    """Return the text of line `number` (from 1), without its end ("\\n" or "\\r\\n").

    A byte-order mark at the start of the file is removed. Unless `errors` is "replace", a line that
    is not valid UTF-8 raises ValueError, which names the file and the line.
    """
    try:
        line = raw.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "ISO-8859-1"
        raise ValueError(
            f"{path}, line {number}: not valid UTF-8 (byte {error.start + 1} of the line); "
            f"convert the file first, for example with: iconv -f {encoding} -t UTF-8"
        ) from error
    line = line.removesuffix("\n").removesuffix("\r")
    return line.removeprefix("\ufeff") if number == 1 else line


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or .gz, without line ends.

    Raises ValueError in the same cases as `raw_lines` and `decode`.
    """
    for number, raw in enumerate(raw_lines(path), start=1):
        yield decode(raw, path, number)


class Chunk(NamedTuple):
    """Consecutive lines of one or more parallel files, as bytes to be sent to another process."""

    start: int  # number of the first line, from 1
    sides: list[list[bytes]]

    def decode(self, paths: Sequence[Path]) -> Iterator[tuple[str, ...]]:
        """Yield, for each line, a tuple of the text of all sides; error messages name the file."""
        for number, lines in enumerate(zip(*self.sides, strict=True), self.start):
            yield tuple(decode(raw, path, number) for raw, path in zip(lines, paths, strict=True))


def chunks(paths: Sequence[Path], size: int = 10_000) -> Iterator[Chunk]:
    """Yield chunks of `size` lines per file; 10,000 lines need about a second and a few MB.

    Raises ValueError if the files differ in length or are empty.
    """
    sides = [raw_lines(path) for path in paths]
    start = 1
    while True:
        chunk = Chunk(start, [list(islice(side, size)) for side in sides])
        counts = [start - 1 + len(lines) for lines in chunk.sides]
        if len(set(counts)) > 1:
            counts = [
                count + sum(1 for _ in side) for count, side in zip(counts, sides, strict=True)
            ]
            lengths = ", ".join(
                f"{path} has {n} lines" for path, n in zip(paths, counts, strict=True)
            )
            raise ValueError(
                f"the sides differ in length: {lengths}; line i of one side must translate line i"
                " of the other"
            )
        if not chunk.sides[0]:
            break
        yield chunk
        start += len(chunk.sides[0])
    if start == 1:
        raise ValueError(f"{' and '.join(map(str, paths))}: no text; give at least one line")


def is_blank(line: str) -> bool:
    """Return True if a line has no visible character."""
    return all(
        unicodedata.category(character)[0] in "CZ" or character in "\u2581\ufffd"
        for character in line
    )


def normalise(line: str) -> str:
    """Return a line in Unicode NFC, with single plain spaces and without control characters."""
    # NFC comes last because removing a control character can join a letter and its accent.
    return unicodedata.normalize("NFC", _CONTROLS.sub("", _SPACES.sub(" ", line)).strip())


@dataclass(frozen=True)
class Recipe:
    """Options that, together with the text, determine the content of a data folder.

    `deepnet preprocess --help` explains most of them.

    Attributes:
        kind: "pair" (one pair, sentencepiece), "pairs" (many pairs, with language tokens),
            "language" (text in one language) or "moses" (one pair, Moses tokens).
        languages: codes such as "de en"; empty for all languages of a table or a corpus.
        max_ratio: maximum ratio of the word counts of both sides. A ratio of 4 can be correct:
            "Cvičí jógu." is "Elle est en train de faire du yoga." in French.
        follows: the fairseq recipe that a Moses folder follows. "iwslt14" and "wmt14" replace
            U+2019 with a plain apostrophe in the valid and test splits. "wmt14" also splits at
            hyphens (`@-@`), normalises the punctuation of training text, and applies the limits to
            subwords instead of tokens, after pairs have been held out.
        corpus: name of the published corpus; empty for other text.
    """

    kind: str = "pair"
    languages: str = ""
    joint: bool = True
    subwords: str = "bpe"
    vocab_size: int = 8000
    character_coverage: float = 1.0
    byte_fallback: bool = False
    sample: int = 2_000_000
    temperature: float = 5.0
    max_words: int = 250
    max_ratio: float = 5.0
    lowercase: bool = False
    merges: int = 10_000
    hold_out: int = 0
    follows: str = ""
    corpus: str = ""

    def options(self) -> dict[str, Any]:
        """Return the options that have an effect on this kind of folder."""
        names = {"kind", "corpus", "languages", "max_words"}
        if self.kind == "moses":
            names |= {"joint", "max_ratio", "lowercase", "merges", "hold_out", "follows"}
        else:
            names |= {"subwords", "vocab_size", "character_coverage", "byte_fallback", "sample"}
            own = {"pair": {"joint", "max_ratio"}, "pairs": {"temperature", "max_ratio"}}
            names |= own.get(self.kind, set())
        return {name: getattr(self, name) for name in sorted(names)}


def count_words(line: str) -> int:
    """Count whitespace-separated words, or their equivalents in scripts without spaces."""
    return len(_WORD.findall(line))


def why_dropped(source: str, target: str, recipe: Recipe) -> str | None:
    """Return the reason to drop a normalised training pair, or None to keep it."""
    if is_blank(source) or is_blank(target):
        return "empty"
    shorter, longer = sorted((count_words(source), count_words(target)))
    if longer > recipe.max_words:
        return "too long"
    if longer > recipe.max_ratio * shorter:
        return "length ratio"
    return None


def map_in_order(function: Callable[[T], R], chunks: Iterable[T], workers: int = 1) -> Iterator[R]:
    """Yield `function(chunk)` for every chunk, in order, computed by `workers` processes.

    At most 2 x `workers` chunks and results are in memory. A single chunk is processed without
    starting processes. `function` must be picklable. The first exception in a worker is raised.
    """
    iterator = iter(chunks)
    first = list(islice(iterator, 2))
    if workers <= 1 or len(first) < 2:
        yield from map(function, chain(first, iterator))
        return
    waiting: deque[Future[R]] = deque()
    # a spawned interpreter would import the whole package once per worker
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(
        workers, context, initializer=end_with_parent, initargs=(signal.SIGKILL,)
    )
    try:
        for chunk in chain(first, iterator):
            waiting.append(pool.submit(function, chunk))
            if len(waiting) >= 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
