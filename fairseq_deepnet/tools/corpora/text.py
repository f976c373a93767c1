"""Lines of text files, read the way `wc -l` counts them.

A line ends at "\\n" and nowhere else. Python's own text mode also splits at a lone "\\r", and
`str.splitlines` at U+2028, U+0085, "\\x0b" and others: with either of them the two sides of a
corpus drift apart at the first such character. A line has a limit, as one of 150 MB took 3.9 GB of
memory to clean; the longest of Multi30k, Tatoeba and Flores-101 has 2,750 bytes.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from fairseq_deepnet.tools.corpora.archive import limit_of, open_packed, size_as_given

MAX_LINE: Final = 1 << 20
_LINE: Final = "DEEPNET_MAX_LINE"
CHUNK_BYTES: Final = 32 << 20
"""What a chunk of lines holds at most, and some lines more: several are in memory at once."""
_AT_ONCE: Final = 256

# Everything that Python or fairseq takes for a space (fairseq splits at \s and str.split), and what
# sentencepiece takes for one: zero-width space, byte-order mark, and its own mark for spaces.
_SPACES = re.compile("[\\s\\x1c-\\x1f\\x85\\u200b\\ufeff\\u2581]+")
_CONTROLS = re.compile("[\\x00-\\x08\\x0e-\\x1b\\x7f-\\x84\\x86-\\x9f\\u00ad]")


def max_line() -> int:
    """Return the bytes that a line may have, with its end."""
    return limit_of(_LINE, MAX_LINE)


def line_error(path: Path, number: int) -> ValueError:
    """Return what is raised for a line that is longer."""
    return ValueError(
        f"{path}, line {number}: longer than {size_as_given(max_line())} bytes: is it text, a"
        f" sentence a line? {_LINE}={size_as_given(2 * max_line())} (or more) reads it"
    )


def find_side(prefix: str | Path, language: str) -> Path:
    """Return the file of one side of a corpus: PREFIX.LANGUAGE, or the same with .gz.

    Raises FileNotFoundError if neither is there, ValueError if both are.
    """
    plain = Path(f"{prefix}.{language}")
    packed = Path(f"{prefix}.{language}.gz")
    if plain.is_file() and packed.is_file():
        raise ValueError(f"both {plain} and {packed} exist: remove or rename one of them")
    for path in (plain, packed):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no {language} side of {prefix}: neither {plain} nor {packed} exists; mend the prefix"
        " (TRAIN, VALID, TEST, or the line of the table)"
    )


def open_bytes(path: Path) -> BinaryIO:
    """Open a plain or gzipped file (by its name's ending) for reading bytes.

    Reading raises ValueError where a gzipped file unpacks to more than it may.
    """
    return open_packed(path) if path.suffix == ".gz" else path.open("rb")


def text_sha256(path: Path) -> str:
    """Return the SHA-256 of a text: of the unpacked bytes where it ends in .gz."""
    try:
        with open_bytes(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read whole: {error}; fetch it again") from error


def raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, plain or .gz, as bytes with their ends.

    Raises ValueError naming the file for what is not gzip or is cut short, and for a line that is
    too long: it is not read to its end.
    """
    number, limit = 0, max_line()
    try:
        with open_bytes(path) as stream:
            while raw := stream.readline(limit + 1):
                number += 1
                if len(raw) > limit:
                    raise line_error(path, number)
                yield raw
    except (EOFError, zlib.error) as error:
        raise ValueError(
            f"{path}: not a complete gzip file (after line {number}): {error}; fetch it again"
        ) from error


def decode(raw: bytes, path: Path, number: int, errors: str = "strict") -> str:
    """Return the text of line `number` (from 1), without its end ("\\n" or "\\r\\n").

    A byte-order mark at the start of the file is removed. Raises ValueError naming the file and the
    line for what is not UTF-8, unless `errors` is "replace".
    """
    try:
        line = raw.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}: not valid UTF-8 (byte {error.start + 1} of it); "
            f"convert the file first, as in: iconv -f ISO-8859-1 -t UTF-8"
        ) from error
    line = line.removesuffix("\n").removesuffix("\r")
    return line.removeprefix("\ufeff") if number == 1 else line


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or .gz; errors as of `raw_lines` and `decode`."""
    for number, raw in enumerate(raw_lines(path), start=1):
        yield decode(raw, path, number)


def _take(sides: Sequence[Iterator[bytes]], size: int) -> list[list[bytes]]:
    """Return the next lines of each side: `size`, fewer where they are long or a side ends."""
    taken: list[list[bytes]] = [[] for _ in sides]
    held = wanted = 0
    while wanted < size and held < CHUNK_BYTES and all(len(part) == wanted for part in taken):
        count = min(_AT_ONCE, size - wanted)
        wanted += count
        for part, side in zip(taken, sides, strict=True):
            lines = list(islice(side, count))
            part += lines
            held += sum(map(len, lines))
    return taken


def numbered_chunks(path: Path, size: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield `size` lines at a time (fewer where they are long), with the number of the first."""
    lines, start = raw_lines(path), 1
    while chunk := _take([lines], size)[0]:
        yield start, chunk
        start += len(chunk)


class PairChunk(NamedTuple):
    """Consecutive lines of both sides of a corpus, as bytes, to be sent to another process."""

    start: int
    """Number of the first line, from 1."""
    source: list[bytes]
    target: list[bytes]

    def decode(self, source: Path, target: Path) -> Iterator[tuple[str, str]]:
        """Yield the pairs as text; the paths are for the errors."""
        for number, (left, right) in enumerate(
            zip(self.source, self.target, strict=True), self.start
        ):
            yield decode(left, source, number), decode(right, target, number)


def pair_chunks(source: Path, target: Path, size: int) -> Iterator[PairChunk]:
    """Yield both sides, chunk by chunk; ValueError if they differ in length or are empty."""
    sides = raw_lines(source), raw_lines(target)
    start = 1
    while True:
        left, right = _take(sides, size)
        if len(left) != len(right):
            counts = [start - 1 + len(side) for side in (left, right)]
            for index, side in enumerate(sides):
                counts[index] += sum(1 for _ in side)
            raise ValueError(
                f"the sides differ in length: {source} has {counts[0]} lines, {target} has "
                f"{counts[1]}; line i of one must translate line i of the other"
            )
        if not left:
            break
        yield PairChunk(start, left, right)
        start += len(left)
    if start == 1:
        raise ValueError(f"{source} and {target} are empty; give files with at least one line")


def is_blank(line: str) -> bool:
    """Return True if a line shows nothing: spaces, controls, marks of direction and the like."""
    return all(
        unicodedata.category(character)[0] in "CZ" or character in "\u2581\ufffd"
        for character in line
    )


def normalise(line: str) -> str:
    """Return a line in Unicode NFC, with single plain spaces between words and no controls."""
    # NFC last: removing a control character can bring a letter and its accent together.
    return unicodedata.normalize("NFC", _CONTROLS.sub("", _SPACES.sub(" ", line)).strip())
