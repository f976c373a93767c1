"""What a result came from: versions, commit, digests of files."""

from __future__ import annotations

import functools
import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from .files import PACKAGE, shown

_DISTRIBUTIONS: Final = (
    "fairseq_deepnet",
    "fairseq-fixed",
    "torch",
    "numpy",
    "sentencepiece",
    "sacrebleu",
)


def sha256(path: Path) -> str | None:
    """Return the digest of a file; None where it is not there."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fingerprint(path: Path) -> dict[str, Any]:
    """Return the identity of a file's content, which a copy of it shares."""
    status = path.stat()
    return {"bytes": status.st_size, "sha256": _digest(path, status.st_size, status.st_mtime_ns)}


@functools.lru_cache(maxsize=256)
def _digest(path: Path, size: int, modified: int) -> str | None:
    """Return the digest of a file, read once per process while size and time stay the same."""
    return sha256(path)


def stamp(path: Path) -> dict[str, Any]:
    """Return path, size and time of a file: enough to see that an input has changed."""
    status = path.stat()
    return {"file": shown(path), "bytes": status.st_size, "modified": status.st_mtime_ns}


def versions() -> dict[str, str | None]:
    """Return versions of what a result depends on; None for what is not installed."""
    return {"python": platform.python_version()} | {n: installed(n) for n in _DISTRIBUTIONS}


def installed(name: str) -> str | None:
    """Return the version of a distribution; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def now() -> str:
    """Return the time as records write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def made_now() -> dict[str, Any]:
    """Return what a record says of its making: versions, commit and time."""
    return {"versions": versions(), "git": git_revision(), "made": now()}


def git_revision() -> str | None:
    """Return the project's commit, with `+changes` where files differ from it; None outside git."""
    if not (PACKAGE.parent / ".git").exists():
        return None  # an installed package may lie inside another repository
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--abbrev=40", "--dirty=+changes"]
    try:
        result = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
