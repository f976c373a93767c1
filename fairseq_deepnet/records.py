"""JSON records, and digests that detect changed files.

Records are written atomically. For a damaged record, `read_record` raises a ValueError that names
the file and a remedy.
"""

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

from .files import PACKAGE, shown, write_text

ENVIRONMENT: Final = "environment.json"
"""Record of a run's data, versions and devices."""

Keys = Mapping[str, type | tuple[type, ...]]
"""Required keys of a record, with the types of their values."""


def strict(value: Any, digits: int = 17) -> Any:
    """Return a value that strict JSON can store, with "nan" or "inf" for non-finite numbers."""
    if isinstance(value, dict):
        return {key: strict(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)
    return value


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_record(path: Path, required: Keys | None = None, remedy: str = "") -> dict[str, Any]:
    """Return a JSON object from a file; raise ValueError if it is damaged or lacks a required key.

    Args:
        remedy: advice for a damaged record, such as "remove it to ...".
    """
    try:
        content = json.loads(path.read_bytes())
        fault = fault_of(content, required or {})
    except (ValueError, RecursionError) as error:
        fault = f"it is not JSON ({error})"
    if fault:
        raise ValueError(f"{shown(path)} is damaged: {fault}{f'; {remedy}' if remedy else ''}")
    return dict(content)


def fault_of(content: Any, required: Keys) -> str:
    """Return why a value is not a valid record with these keys, or an empty string if it is."""
    if not isinstance(content, Mapping):
        return "it is not a JSON object"
    wrong = [key for key, kind in required.items() if not isinstance(content.get(key), kind)]
    return f"{wrong[0]!r} is missing or of another type" if wrong else ""


def record_of(path: Path, request: Any, remedy: str) -> dict[str, Any] | None:
    """Return the record in a file if its entry "request" equals `request`, otherwise None."""
    record = read_record(path, remedy=remedy) if path.is_file() else {}
    return record if record.get("request") == request else None


def refuse_changed(folder: Path, files: Any, names: Iterable[str], record: Path) -> None:
    """Raise ValueError for the first file that has changed or disappeared since it was recorded.

    Args:
        files: SHA-256 digests by file name, read from the file `record`.
        names: names of the files to compare; names that are not in `files` are skipped.
    """
    if not isinstance(files, Mapping):
        return
    for name in names:
        recorded = files.get(name)
        path = folder / name
        if recorded is None:
            continue
        if not path.is_file():
            raise ValueError(
                f"{shown(path)} is missing, although {shown(record)} lists it: select the recorded"
                " data, or copy it again"
            )
        if _known_sha256(path, path.stat().st_size, path.stat().st_mtime_ns) != recorded:
            raise ValueError(
                f"{shown(path)} differs from the file recorded in {shown(record)}"
                f" (SHA-256 {str(recorded)[:12]}...): select the recorded data, or copy it again"
            )


@functools.lru_cache(maxsize=1024)
def _known_sha256(path: Path, size: int, modified: int) -> str | None:
    """Return a file's digest, which is computed once per process unless the file changes."""
    return sha256(path)


def sha256(path: Path) -> str | None:
    """Return a file's SHA-256 digest, or None if there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def short_digest(text: str) -> str:
    """Return the first eight digits of a text's SHA-256 digest."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def fingerprint(path: Path) -> dict[str, Any]:
    """Return the size and digest of a file, by which its copies can be recognised."""
    status = path.stat()
    return {
        "bytes": status.st_size,
        "sha256": _known_sha256(path, status.st_size, status.st_mtime_ns),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of the software that affects results; None for missing packages."""
    names = ("fairseq_deepnet", "fairseq-fixed", "torch", "numpy", "sentencepiece", "sacrebleu")
    return {"python": platform.python_version()} | {name: installed(name) for name in names}


def installed(name: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def now() -> str:
    """Return the current time, formatted for records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def made_now() -> dict[str, Any]:
    """Return the software versions, the commit and the current time, for a record."""
    return {"versions": versions(), "git": git_revision(), "made": now()}


def git_revision() -> str | None:
    """Return the clone's commit, with `+changes` if files are modified; None outside a clone."""
    if not (PACKAGE.parent / ".git").exists():
        return None  # an installed package may lie inside another repository
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--abbrev=40", "--dirty=+changes"]
    try:
        result = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
