"""Bring the files of a corpus into a folder, each from the first of its addresses that is good.

A file is FILE.part until it is whole and right, and has its own name from then on.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, cast

from .checksums import Records, judge
from .fetch import SourceError, Transfer, UnreachableError
from .sources import File

_EVERY: Final = 10.0  # seconds between two lines about the same file


class DownloadError(Exception):
    """Why one file could not be had: what each URL said, or what is wrong with the file there."""

    def __init__(self, causes: Mapping[str, str] | str, unreachable: bool = False) -> None:
        super().__init__(causes)
        self.causes = {"": causes} if isinstance(causes, str) else dict(causes)
        self.unreachable = unreachable

    def __str__(self) -> str:
        """The URLs by cause, as many say the same."""
        places: dict[str, list[str]] = {}
        for url, cause in self.causes.items():
            places.setdefault(cause, []).append(url)
        return "; ".join(
            f"{' '.join(urls)}: {cause}".lstrip(": ") for cause, urls in places.items()
        )


def log(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"[download] {text}\n")  # at one go: several threads speak
    sys.stderr.flush()


def size_of(count: float) -> str:
    """1500000 -> "1.5 MB"."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


class Progress:
    """Says when a file is begun or taken up, and how far it is every few seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._said = self._from = 0.0
        self._start = 0

    def __call__(self, done: int, total: int | None, resumed: bool) -> None:
        now = time.monotonic()
        whole = f" of {size_of(total)}" if total is not None else ""
        if not self._from or done < self._start:
            self._from = self._said = now
            self._start = done
            log(f"{self.name}: " + (f"taken up at {size_of(done)}{whole}" if resumed else "begun"))
        elif now - self._said >= _EVERY:
            self._said = now
            speed = size_of((done - self._start) / max(now - self._from, 1e-3))
            log(f"{self.name}: {size_of(done)}{whole}, {speed} a second")


@contextmanager
def _exclusively(part: Path) -> Iterator[BinaryIO]:
    """FILE.part, opened to read and append, and locked against a second download of the same."""
    while True:
        with part.open("a+b") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DownloadError("another download of it is under way; wait for it") from error
            # Another process may have finished it, and given it its name, before we had the lock.
            if part.exists() and part.stat().st_ino == os.fstat(stream.fileno()).st_ino:
                yield cast(BinaryIO, stream)
                return


@dataclass
class Downloader:
    """Brings files of a corpus into `folder`, each from the first of its URLs that is good.

    `mirrors` are URL prefixes tried before the catalogue's, as PREFIX/CORPUS/FILE. With
    `only_mirrors` nothing else is asked, and what they serve is trusted on first use even where
    the catalogue knows a checksum, because a mirror of one's own may hold an edition of its own.
    """

    corpus: str
    folder: Path
    mirrors: tuple[str, ...] = ()
    only_mirrors: bool = False
    accept: bool = False
    timeout: float = 30.0
    wait: float = 1.0
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.records = Records(self.folder)

    def urls(self, file: File) -> list[str]:
        """Where to look for a file, in order, each place once."""
        places = [f"{mirror.rstrip('/')}/{self.corpus}/{file.name}" for mirror in self.mirrors]
        if not self.only_mirrors:
            places += [*file.urls, *self.extra.get(file.name, ())]
        return list(dict.fromkeys(places))

    def expected(self, file: File) -> File:
        """The catalogue's entry, without its checksums where they do not count."""
        return File(file.name, file.urls) if self.only_mirrors or self.accept else file

    def obtain(self, file: File) -> Path:
        """The path of a file that is there and right; downloads it if needed.

        Raises DownloadError with the cause for each URL, or InterruptedTransferError.
        """
        path = self.folder / file.name
        if path.is_file():
            return self._check_present(file, path)
        with _exclusively(path.with_name(f"{file.name}.part")) as stream:
            if path.is_file():
                return self._check_present(file, path)
            causes: dict[str, str] = {}
            unreachable = True
            for url in self.urls(file):
                try:
                    self._from(url, file, path, stream)
                    return path
                except SourceError as error:
                    unreachable &= isinstance(error, UnreachableError)
                    causes[url] = str(error)
                    log(f"{file.name}: {url}: {error}")
        raise DownloadError(causes, unreachable)

    def _check_present(self, file: File, path: Path) -> Path:
        record = self.records.read().get(file.name)
        try:
            digest, trust = judge(self.expected(file), path, record, self.accept)
        except ValueError as error:
            raise DownloadError(
                f"{path} is there, but {error}; remove it to download it again"
            ) from error
        if not record or self.accept:
            self.records.write(file.name, digest, "found in the folder", trust)
        log(f"{file.name}: there already, {size_of(digest.size)}, {trust}")
        return path

    def _from(
        self, url: str, file: File, path: Path, stream: BinaryIO, afresh: bool = False
    ) -> None:
        known = self.expected(file)
        part = path.with_name(f"{file.name}.part")
        transfer = Transfer(
            part,
            known.size,
            checked=bool(known.sha256 or known.md5),
            timeout=self.timeout,
            wait=self.wait,
            report=Progress(file.name),
            stop=self.stop,
        )
        record = self.records.read().get(file.name)
        resumed = transfer.fetch(url, stream)
        try:
            digest, trust = judge(known, part, record, self.accept)
        except ValueError as error:
            transfer.discard(stream)
            if afresh or not resumed:
                raise SourceError(f"refused, because {error}") from error
            log(f"{file.name}: what was continued does not fit together ({error}); starting afresh")
            self._from(url, file, path, stream, afresh=True)
            return
        os.fsync(stream.fileno())
        self.records.write(file.name, digest, url, trust)
        part.replace(path)
        transfer.forget()
        note = f", trusted on first use and recorded in {self.records.path}"
        log(
            f"{file.name}: {size_of(digest.size)}, SHA-256 {digest.sha256[:12]}..."
            + (note if trust == "first use" else f", {trust}")
        )
