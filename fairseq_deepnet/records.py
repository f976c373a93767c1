"""JSON records of this project, read with the keys that a reader needs; files that must not change.

A record is written whole (files.write_json). One that was cut off or edited into something else is
a ValueError that names the file and the remedy, never a traceback.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from .files import PACKAGE, shown, write_json

Keys = Mapping[str, type | tuple[type, ...]]
"""Key that a record must have -> type of its value."""
NUMBER: Final = (int, float)


def strict(value: Any, digits: int = 17) -> Any:
    """Return a value as strict JSON holds it: what is not finite is a word, "nan" or "-inf"."""
    if isinstance(value, dict):
        return {key: strict(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)
    return value


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record as JSON, whole or not at all."""
    write_json(path, dict(content))


def read_record(path: Path, required: Keys | None = None, remedy: str = "") -> dict[str, Any]:
    """Read a JSON object that has the required keys; ValueError for anything else.

    Args:
        remedy: what a user can do about a damaged record: "remove it to ...".
    """
    try:
        content = json.loads(path.read_bytes())
        fault = lacking(content, required or {})
    except (ValueError, RecursionError) as error:
        fault = f"it is not JSON ({error})"
    if fault:
        raise ValueError(f"{shown(path)} is damaged: {fault}{f'; {remedy}' if remedy else ''}")
    return dict(content)


def lacking(content: Any, required: Keys) -> str:
    """Return what keeps a value from being a record with these keys; empty where nothing does."""
    if not isinstance(content, Mapping):
        return "it is not a JSON object"
    wrong = [key for key, kind in required.items() if not isinstance(content.get(key), kind)]
    return f"{wrong[0]!r} is missing or of another type" if wrong else ""


def record_of(path: Path, request: Any, remedy: str) -> dict[str, Any] | None:
    """Return the record in a file where it is of this request; None otherwise."""
    record = read_record(path, remedy=remedy) if path.is_file() else {}
    return record if record.get("request") == request else None


def refuse_changed(folder: Path, files: Any, names: Iterable[str], record: Path) -> None:
    """Raise ValueError for the first file that has changed since it was recorded, or is gone.

    Args:
        files: SHA-256 by name, as `record` has it; names that it does not hold are passed over.
        names: those to be compared.
    """
    if not isinstance(files, Mapping):
        return
    for name in names:
        recorded = files.get(name)
        path = folder / name
        if recorded is None:
            continue
        if not path.is_file():
            raise ValueError(f"{shown(path)} is gone, and {shown(record)} lists it; copy it again")
        if _known_sha256(path, path.stat().st_size, path.stat().st_mtime_ns) != recorded:
            raise ValueError(
                f"{shown(path)} is damaged or another file than {shown(record)} recorded"
                f" (SHA-256 {str(recorded)[:12]}...): copy it again from where it was made"
            )


@functools.lru_cache(maxsize=1024)
def _known_sha256(path: Path, size: int, modified: int) -> str | None:
    """Return the digest of a file, computed once per process for each version of the file."""
    return sha256(path)


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
    return {
        "bytes": status.st_size,
        "sha256": _known_sha256(path, status.st_size, status.st_mtime_ns),
    }


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
    """Return the versions, the commit and the time of a record."""
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
