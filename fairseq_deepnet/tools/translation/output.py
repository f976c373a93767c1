"""Where translations go: standard output, or a file that is there when it is complete.

Until then it is FILE.part, and FILE.part.json says what it is the beginning of: what is done is
never lost, and the same translation can go on from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_deepnet.files import naming, shown, write_json
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.translation.stream import Windows


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.part.json")


def interrupted(path: Path, request: dict[str, Any], resume: bool) -> dict[str, Any] | None:
    """What is recorded of an interrupted translation that is to go on; None where there is none.

    Raises ValueError where there is one and nobody said that it is to be resumed, and for one of
    another request: other input, model or search.
    """
    part, record = _part(path), _record(path)
    lines = part.read_bytes().count(b"\n") if part.is_file() else 0
    if not lines:
        return None
    if not resume:
        raise ValueError(
            f"{shown(part)} holds {lines:,} lines of a translation that was interrupted: go on "
            "from there with --resume, or remove it"
        )
    shape = {"request": dict, "lines": int, "digest": str}
    began = read_record(record, shape, f"remove it and {part.name}") if record.is_file() else {}
    if began.get("request") != json.loads(json.dumps(request)) or began["lines"] > lines:
        raise _another(path)
    return dict(began)


def _shorten(part: Path, lines: int) -> None:
    """Leave so many lines: what follows is not recorded, and may be half a line."""
    with part.open("rb") as stream:
        length = sum(map(len, islice(stream, lines)))
    os.truncate(part, length)


def _another(path: Path) -> ValueError:
    return ValueError(
        f"{shown(_part(path))} is the beginning of another translation (other input, model or "
        "search); remove it"
    )


class Output:
    """Lines of text.

    Arguments:
        path: None: standard output
        request: all that decides the translation but the lines themselves
        resume: go on after the lines that an interrupted one left
    """

    def __init__(self, path: Path | None, request: dict[str, Any], resume: bool) -> None:
        self.path, self.request = path, request
        self.done = 0
        """Lines that are translated."""
        self.expected = ""
        self.digest = hashlib.sha256()
        """Of the input's lines so far: standard input has no name and no date."""
        self.stream: BinaryIO = sys.stdout.buffer
        if path is None:
            return
        if not path.parent.is_dir():
            raise FileNotFoundError(f"--out {path}: there is no folder {path.parent}")
        began = interrupted(path, request, resume)
        if began is not None:
            self.done, self.expected = began["lines"], began["digest"]
            _shorten(_part(path), self.done)
        self.stream = _part(path).open("ab" if self.done else "wb")
        if not self.done:
            self._note()

    def still_to_do(self, windows: Windows) -> Windows:
        """The windows after the lines that are done.

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
        if self.path is not None and self.digest.hexdigest() != self.expected:
            raise _another(self.path)

    def write(self, lines: Iterable[str], sources: int) -> None:
        """The lines of so many lines of input, at once on disk or screen."""
        with naming(_part(self.path) if self.path is not None else Path("standard output")):
            self.stream.write("".join(f"{line}\n" for line in lines).encode())
            self.stream.flush()
        self.done += sources
        self._note()

    def _note(self) -> None:
        """Record what is done, after it is."""
        if self.path is not None:
            record = {"lines": self.done, "digest": self.digest.hexdigest()}
            write_json(_record(self.path), {"request": self.request, **record})

    def finish(self) -> None:
        """All is written: the file gets its name."""
        if self.path is not None:
            self.stream.close()
            _part(self.path).replace(self.path)
            _record(self.path).unlink(missing_ok=True)
