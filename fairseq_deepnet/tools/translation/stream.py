"""Lines that stream through an engine: read in windows, translated, written in their order.

A file fills every window. Of a pipe or a terminal a window is what has come when nothing more comes
for a moment: a fast pipe fills windows, too, and a sentence that somebody types is translated at
once. Within a window lines are sorted by length and cut into batches by the engine.

Translations go to standard output, or to a file that is there when it is complete; until then it is
FILE.part, which a second start does not overwrite.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from fairseq_deepnet.files import naming, shown
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.corpora.text import (
    MAX_LINE,
    decode,
    is_blank,
    line_error,
    raw_lines,
)
from fairseq_deepnet.tools.translation.engine import Engine, Hypothesis

STANDARD_INPUT: Final = Path("-")
_NAMED: Final = Path("standard input")
_READ: Final = 65536
_HELD: Final = 32 << 20
"""Bytes of a window of lines, at most."""
Windows = Iterator[list[str]]
LineDecoder = Callable[[bytes, Path, int], str]


class Utf8ReplacingDecoder:
    """Reads lines that are not all UTF-8: U+FFFD stands for what is not."""

    def __init__(self) -> None:
        self.count = 0
        """Lines with bytes that were replaced."""
        self.first = ""

    def __call__(self, raw: bytes, path: Path, number: int) -> str:
        """Return a line's text."""
        try:
            return decode(raw, path, number)
        except ValueError:
            self.first = self.first or f"{path}, line {number}"
            self.count += 1
            return decode(raw, path, number, "replace")

    def message(self) -> str:
        """Report the lines with replaced bytes, in one line."""
        return (
            f"{self.count:,} line{'s' * (self.count > 1)} not valid UTF-8: U+FFFD stands for what"
            f" is not (first: {self.first}); --strict stops there"
        )


def windows_of(
    files: Sequence[Path], size: int, idle: float = 0.2, text: LineDecoder = decode
) -> Windows:
    """Yield windows of at most `size` lines, file after file; "-" is standard input.

    Args:
        idle: seconds without another line after which what has come is a window
        text: of a line's bytes, its file and its number; `decode` raises ValueError for what is not
            UTF-8, with file and line, once the lines before it are given
    """
    if files == [STANDARD_INPUT]:
        return live_windows(sys.stdin.fileno(), size, idle, text)
    if STANDARD_INPUT in files:
        raise ValueError("standard input (-) is read alone, not beside files")
    lines = (
        text(raw, path, number)
        for path in files
        for number, raw in enumerate(raw_lines(path), start=1)
    )
    return full_windows(lines, size)


def full_windows(lines: Iterable[str], size: int) -> Windows:
    """Yield `size` lines at a time, fewer where they are long; what comes before an error is given
    before the error is raised.
    """
    window: list[str] = []
    failure, held = None, 0
    try:
        for line in lines:
            window.append(line)
            held += len(line)
            if len(window) == size or held >= _HELD:
                yield window
                window, held = [], 0
    except ValueError as error:
        failure = error
    if window:
        yield window
    if failure is not None:
        raise failure


def live_windows(descriptor: int, size: int, idle: float, text: LineDecoder = decode) -> Windows:
    """Yield lines as they come from a pipe or a terminal, waiting for company no longer than `idle`
    seconds; errors as of `full_windows`.
    """
    number, rest, ended = 0, b"", False
    waiting: list[bytes] = []
    limit, too_long = MAX_LINE, False
    while waiting or not ended:
        while not ended and len(waiting) < size:
            if waiting and not select.select([descriptor], [], [], idle)[0]:
                break
            read = os.read(descriptor, _READ)
            *whole, rest = (rest + read).split(b"\n")
            waiting += whole
            too_long = len(rest) > limit
            ended = not read or too_long
            if ended and rest and not too_long:
                waiting.append(rest)
        window, waiting = waiting[:size], waiting[size:]
        start, number = number + 1, number + len(window)
        yield from full_windows(
            (text(raw, _NAMED, position) for position, raw in enumerate(window, start)), size
        )
    if too_long:
        raise line_error(_NAMED, number + 1)


def translated(
    engine: Engine, windows: Iterable[list[str]], direction: Direction, nbest: int = 1
) -> Iterator[list[list[Hypothesis]]]:
    """Yield for each window the translations of its lines; an empty line's are empty."""
    for window in windows:
        filled = [number for number, line in enumerate(window) if not is_blank(line)]
        found = [[Hypothesis("", 0.0)] * nbest for _ in window]
        if filled:
            results = engine.hypotheses([window[number] for number in filled], direction)
            for number, hypotheses in zip(filled, results, strict=True):
                found[number] = hypotheses
        yield found


class Output:
    """Lines of text on standard output, or in a file that has its name once it is complete."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.done = 0
        """Lines of input that are translated."""
        self.stream: BinaryIO = sys.stdout.buffer
        self.part = Path("standard output")
        if path is None:
            return
        if not path.parent.is_dir():
            raise FileNotFoundError(f"--out {path}: there is no folder {path.parent}")
        self.part = path.with_name(f"{path.name}.part")
        if self.part.is_file() and (lines := self.part.read_bytes().count(b"\n")):
            raise ValueError(
                f"{shown(self.part)} holds {lines:,} lines of a translation that was interrupted:"
                " rename it to keep them and translate what is left, or remove it"
            )
        self.stream = self.part.open("wb")

    def write(self, lines: Iterable[str], sources: int) -> None:
        """Write the lines of so many lines of input, at once on disk or screen."""
        with naming(self.part):
            self.stream.write("".join(f"{line}\n" for line in lines).encode())
            self.stream.flush()
        self.done += sources

    def finish(self) -> None:
        """Give the file its name, as all is written."""
        if self.path is not None:
            self.stream.close()
            self.part.replace(self.path)
