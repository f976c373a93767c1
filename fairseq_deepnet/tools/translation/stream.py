"""Lines that stream through an engine: read in windows, translated, written in their order.

A file fills every window. Of a pipe or a terminal a window is what has come when nothing more comes
for a moment: a fast pipe fills windows, too, and a sentence that somebody types is translated at
once. Within a window lines are sorted by length and cut into batches by the engine.

Translations go to standard output, or to a file that is there when it is complete. Until then it is
FILE.part, and FILE.part.json says what it is the beginning of: what is done is never lost, and the
same translation can go on from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from fairseq_deepnet.files import naming, shown, write_json
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.corpora.text import (
    MAX_LINE,
    decode,
    is_blank,
    line_error,
    raw_lines,
)
from fairseq_deepnet.tools.training.progress import clock
from fairseq_deepnet.tools.translation.engine import Engine, Hypothesis

STANDARD_INPUT: Final = Path("-")
_NAMED: Final = Path("standard input")
_READ: Final = 65536
_HELD: Final = 32 << 20
"""Bytes of a window of lines, at most."""
Windows = Iterator[list[str]]
LineDecoder = Callable[[bytes, Path, int], str]


class Utf8Mender:
    """Reads lines that are not all UTF-8: U+FFFD stands for what is not."""

    def __init__(self) -> None:
        self.count = 0
        """Lines that were mended."""
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
        """Say what was mended, in one line."""
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


class LineCounter:
    """Shows how many lines are done: a line every few seconds, on a terminal the same line again,
    nothing of what takes a few seconds.

    Args:
        done: lines that were there before.
    """

    def __init__(
        self,
        screen: TextIO,
        done: int = 0,
        seconds: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.screen, self.now = screen, now
        self.rewrites = screen.isatty()
        self.pause = seconds / 10 if self.rewrites else seconds
        self.before = self.count = done
        self.started = self.shown = now()

    def add(self, lines: int = 1) -> None:
        """Count so many more as done."""
        now = self.now()
        self.count += lines
        if now - self.shown >= self.pause:
            self.show()

    def show(self) -> None:
        """Show how many lines are done."""
        self.shown = self.now()
        taken = self.shown - self.started
        rate = (self.count - self.before) / taken if taken else 0.0
        line = f"{self.count:,} lines, {rate:,.1f} lines/s, {clock(taken)}"
        self.screen.write(f"\r{line}" if self.rewrites else f"{line}\n")
        self.screen.flush()

    def close(self) -> None:
        """End what was shown with a last line."""
        if self.shown != self.started:
            self.show()
            self.screen.write("\n" * self.rewrites)
            self.screen.flush()


class Output:
    """Lines of text.

    Args:
        path: None: standard output.
        request: all that decides the translation but the lines themselves.
        resume: go on after the lines that an interrupted one left.
    """

    def __init__(self, path: Path | None, request: dict[str, Any], resume: bool) -> None:
        self.path, self.request = path, request
        self.done = 0
        """Lines that are translated."""
        self.expected = ""
        self.digest = hashlib.sha256()
        """Of the input's lines so far: standard input has no name and no date."""
        self.stream: BinaryIO = sys.stdout.buffer
        self.part = self.record = Path("standard output")
        if path is None:
            return
        if not path.parent.is_dir():
            raise FileNotFoundError(f"--out {path}: there is no folder {path.parent}")
        self.part = path.with_name(f"{path.name}.part")
        self.record = path.with_name(f"{path.name}.part.json")
        if self.part.is_file() and (lines := self.part.read_bytes().count(b"\n")):
            self._go_on(lines, resume)
        self.stream = self.part.open("ab" if self.done else "wb")
        if not self.done:
            self._note()

    def _go_on(self, lines: int, resume: bool) -> None:
        """Take up an interrupted translation of so many lines.

        Raises ValueError where nobody said that it is to be resumed, and for one of another
        request: other input, model or search.
        """
        if not resume:
            raise ValueError(
                f"{shown(self.part)} holds {lines:,} lines of a translation that was interrupted:"
                " go on from there with --resume, or remove it"
            )
        shape = {"request": dict, "lines": int, "digest": str}
        remedy = f"remove it and {self.part.name}"
        began = read_record(self.record, shape, remedy) if self.record.is_file() else {}
        if began.get("request") != json.loads(json.dumps(self.request)) or began["lines"] > lines:
            raise self._another()
        self.done, self.expected = began["lines"], began["digest"]
        with self.part.open("rb") as stream:
            length = sum(map(len, islice(stream, self.done)))
        # what follows is not recorded, and may be half a line
        os.truncate(self.part, length)

    def _another(self) -> ValueError:
        return ValueError(
            f"{shown(self.part)} is the beginning of another translation (other input, model or "
            "search); remove it"
        )

    def still_to_do(self, windows: Windows) -> Windows:
        """Yield the windows after the lines that are done.

        Raises ValueError where those are not the lines that were translated.
        """
        skip = self.done
        for window in windows:
            if skip:
                self._read(window[:skip])
                window, skip = window[skip:], max(0, skip - len(window))
                if not skip:
                    self._refuse_others()
            self._read(window)
            if window:
                yield window
        if skip:
            self._refuse_others()

    def _read(self, lines: Sequence[str]) -> None:
        self.digest.update("".join(f"{line}\n" for line in lines).encode())

    def _refuse_others(self) -> None:
        if self.digest.hexdigest() != self.expected:
            raise self._another()

    def write(self, lines: Iterable[str], sources: int) -> None:
        """Write the lines of so many lines of input, at once on disk or screen."""
        with naming(self.part):
            self.stream.write("".join(f"{line}\n" for line in lines).encode())
            self.stream.flush()
        self.done += sources
        self._note()

    def _note(self) -> None:
        """Record what is done, after it is."""
        if self.path is not None:
            record = {"lines": self.done, "digest": self.digest.hexdigest()}
            write_json(self.record, {"request": self.request, **record})

    def finish(self) -> None:
        """Give the file its name, as all is written."""
        if self.path is not None:
            self.stream.close()
            self.part.replace(self.path)
            self.record.unlink(missing_ok=True)
