"""Where translations go: standard output, or a file that is there when it is complete.

Until then it is FILE.part, and FILE.part.json says what it is the beginning of: what is done is
never lost, and the same translation can go on from there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_deepnet.provenance import shown, write_json


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.part.json")


def lines_done(path: Path, request: dict[str, Any], resume: bool) -> int:
    """How many whole lines of an interrupted translation there are to go on from.

    Raises ValueError where there is one and nobody said that it is to be resumed, and for one of
    another request: other input, model or search.
    """
    part, record = _part(path), _record(path)
    if not part.is_file():
        return 0
    lines = part.read_bytes().count(b"\n") if part.stat().st_size else 0
    if not resume and lines:
        raise ValueError(
            f"{shown(part)} holds {lines:,} lines of a translation that was interrupted: go on "
            "from there with --resume, or remove it"
        )
    if not lines:
        return 0
    began = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else None
    if began != json.loads(json.dumps(request)):
        raise ValueError(
            f"{shown(part)} is the beginning of another translation (other input, model or "
            "search); remove it"
        )
    return lines


class Output:
    """Lines of text.

    Arguments:
        path: None: standard output
        request: all that decides the translation
        resume: go on after the lines that an interrupted one left
    """

    def __init__(self, path: Path | None, request: dict[str, Any], resume: bool) -> None:
        self.path = path
        self.done = 0
        self.stream: BinaryIO = sys.stdout.buffer
        if path is None:
            return
        if not path.parent.is_dir():
            raise FileNotFoundError(f"--output {path}: there is no folder {path.parent}")
        self.done = lines_done(path, request, resume)
        write_json(_record(path), request)
        part = _part(path)
        if self.done:
            content = part.read_bytes()
            os.truncate(part, content.rfind(b"\n") + 1)
        self.stream = part.open("ab" if self.done else "wb")

    def write(self, lines: Iterable[str]) -> None:
        """Lines, at once on disk or screen."""
        self.stream.write("".join(f"{line}\n" for line in lines).encode())
        self.stream.flush()

    def finish(self) -> None:
        """All is written: the file gets its name."""
        if self.path is not None:
            self.stream.close()
            _part(self.path).replace(self.path)
            _record(self.path).unlink(missing_ok=True)
