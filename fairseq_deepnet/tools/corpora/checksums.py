"""Is a downloaded file the right one? Checksums of the catalogue, or trust on first use.

What was found is kept in `checksums.json` beside the downloads: size, SHA-256, where the file came
from and why it was trusted. A file is checked against it ever after.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from . import limits
from .sources import File

NAME: Final = "checksums.json"
_GZIP: Final = (".gz", ".tgz")


@dataclass(frozen=True)
class Digest:
    """What a file on disk is: its size in bytes and its hexadecimal checksums."""

    size: int
    sha256: str
    md5: str


def measure(path: Path) -> Digest:
    """Read a file once, for its size and checksums."""
    sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            sha256.update(block)
            md5.update(block)
            size += len(block)
    return Digest(size, sha256.hexdigest(), md5.hexdigest())


def damage(path: Path, name: str) -> str | None:
    """What is visibly wrong with the file that is to be called `name`, or None.

    A gzip file is read to its end, where it holds its own checksum and length.
    """
    if path.stat().st_size == 0:
        return "it is empty"
    if name.endswith(_GZIP):
        try:
            with limits.open_packed(path) as stream:
                while stream.read(1 << 20):
                    pass
        except ValueError as error:
            return str(error)
        except (OSError, EOFError, zlib.error) as error:
            return f"it is not a whole gzip file ({error})"
    return None


class Records:
    """The file checksums.json of one folder. Several threads may share it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._lock = threading.Lock()

    def read(self) -> dict[str, dict[str, Any]]:
        """Name of a file -> size, sha256, source, trusted, checked; empty at first."""
        if not self.path.is_file():
            return {}
        try:
            records = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"{self.path} is not JSON ({error}); mend it, or remove it to trust anew"
            ) from error
        if not isinstance(records, dict) or not all(isinstance(x, dict) for x in records.values()):
            raise ValueError(f"{self.path} holds no records of files; remove it to trust anew")
        return records

    def write(self, name: str, digest: Digest, source: str, trusted: str) -> None:
        """Remember a file that was found to be right; `trusted` says by what."""
        with self._lock:
            records = self.read()
            records[name] = {
                "size": digest.size,
                "sha256": digest.sha256,
                "source": source,
                "trusted": trusted,
                "checked": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            new = self.path.with_name(f"{NAME}.part")
            text = json.dumps(dict(sorted(records.items())), indent=2) + "\n"
            with new.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            new.replace(self.path)


def judge(
    file: File, path: Path, record: dict[str, Any] | None, accept: bool = False
) -> tuple[Digest, str]:
    """The checksums of the file at `path`, and why it may be trusted.

    A record comes before the catalogue, as the catalogue may be older; `accept` overrules both.
    Raises ValueError with what is wrong: size, checksum or a damaged archive.
    """
    digest = measure(path)
    if not accept:
        if record and digest.sha256 != record.get("sha256"):
            raise ValueError(
                f"its SHA-256 is {digest.sha256[:12]}..., recorded in {NAME} is "
                f"{str(record.get('sha256'))[:12]}..."
            )
        if record:
            return digest, str(record.get("trusted"))
        if file.size is not None and digest.size != file.size:
            raise ValueError(f"it has {digest.size:,} bytes instead of {file.size:,}")
        for kind in ("sha256", "md5"):
            known, found = getattr(file, kind), getattr(digest, kind)
            if known and found != known:
                raise ValueError(
                    f"its {kind.upper()} is {found[:12]}... instead of the {known[:12]}... of "
                    f"{file.published}"
                )
            if known:
                return digest, f"{kind} published by {file.published}"
    if problem := damage(path, file.name):
        raise ValueError(problem)
    return digest, "told to accept" if accept else "first use"
