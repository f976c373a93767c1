"""What a result came from: versions, commit, digests of files; and files that are there whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_DISTRIBUTIONS: Final = (
    "fairseq_deepnet",
    "fairseq-fixed",
    "torch",
    "numpy",
    "sentencepiece",
    "sacrebleu",
)


def shown(path: Path) -> str:
    """A path as a person would write it: relative to the project where it lies inside."""
    resolved = path.resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else str(resolved)


def inside_project(path: Path | str) -> Path:
    """A path as given where it is absolute or there; otherwise meant from the project's root."""
    path = Path(path)
    return path if path.is_absolute() or path.exists() else ROOT / path


def say(text: str) -> None:
    """A line for people, on standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the file system name a file, which that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file that is to be there whole or not at all; its name comes at the end."""
    part = path.with_name(path.name + ".part")
    try:
        with naming(path):
            yield part
            put_in_place(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


def put_in_place(part: Path, path: Path) -> None:
    """Give a file that is written out its name; what had it is replaced, and never half a file.

    The bytes are on the disk before the name is, so that a power cut leaves the old file or the new
    one; a process that reads or maps the old one goes on with it.
    """
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems have no such thing
            os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, content: object) -> None:
    """The same for JSON."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str | None:
    """Digest of a (small) file; None where it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def fingerprint(path: Path) -> dict[str, Any]:
    """Enough to see that a (large) file is another one than before."""
    status = path.stat()
    return {"file": shown(path), "bytes": status.st_size, "modified": status.st_mtime_ns}


def versions() -> dict[str, str | None]:
    """Versions of what a result depends on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_revision() -> str | None:
    """The project's commit, with `+changes` where files differ from it; None outside git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty=+changes"]
    try:
        result = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
