"""Fetch one URL into one FILE.part, and take up what an earlier try left.

A part is continued (HTTP Range) only where the server says that the file is still the one that was
begun: its ETag or Last-Modified and its length are kept in FILE.part.json. Otherwise it starts
afresh. That is most of the work here, and HTTP libraries leave it to their users; so urllib does
the rest. Proxies come from the standard variables (https_proxy, http_proxy, no_proxy), certificates
from the system (or SSL_CERT_FILE).
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from tqdm import tqdm

from fairseq_deepnet.records import read_record

_BLOCK: Final = 1 << 18
_AGENT: Final = "fairseq_deepnet/0.1 (deepnet download; Python urllib)"
_WORTH_ANOTHER_TRY: Final = {408, 425, 429, 500, 502, 503, 504}
_LONGEST_WAIT: Final = 60.0
_ATTEMPTS: Final = 6
"""Tries in a row without progress."""
_RESTARTS: Final = 3
_RANGE: Final = re.compile(r"bytes (?:(?P<start>\d+)-\d+|\*)/(?P<total>\d+)")
_PAGE: Final = re.compile(rb"\s*(<!doctype html|<html|<\?xml|<!--|<head)", re.IGNORECASE)


class SourceError(Exception):
    """This URL does not give the file; another may. The message is the cause, without the URL.

    Attributes:
        passing: the same URL is worth another try, after `wait` seconds if it says so.
        unreachable: there is no connection: no network, or a proxy that is not set.
    """

    def __init__(
        self,
        cause: str,
        passing: bool = False,
        wait: float | None = None,
        unreachable: bool = False,
    ) -> None:
        super().__init__(cause)
        self.passing, self.wait, self.unreachable = passing, wait, unreachable


class InterruptedTransferError(Exception):
    """The transfer was asked to stop."""


class _ChangedError(Exception):
    """What the server offers does not continue the part."""


def log(text: str) -> None:
    """Print a line on standard error, above the progress bars of other files."""
    tqdm.write(f"[download] {text}", file=sys.stderr)


def size_of(count: float) -> str:
    """Return a size for people: 1500000 -> "1.50MB"."""
    return f"{tqdm.format_sizeof(count)}B"


class _Log:
    """Where a progress bar writes if nobody watches: a line now and then."""

    def write(self, text: str) -> None:
        if text.strip():
            log(text.strip())

    def flush(self) -> None:
        pass


def progress_bar(name: str, done: int, total: int | None) -> Any:
    """Return a bar that has begun at `done` of `total` bytes; in a log file, a line every 10 s."""
    watched = sys.stderr.isatty()
    return tqdm(
        desc=name,
        initial=done,
        total=total,
        unit="B",
        unit_scale=True,
        leave=False,
        file=sys.stderr if watched else _Log(),
        mininterval=0.1 if watched else 10,
        delay=0.5 if watched else 10,
    )


@dataclass
class Transfer:
    """How to fetch one file.

    Args:
        part: where to.
        size: the file's length in bytes, where it is known beforehand.
        checked: whether a checksum will tell if the parts of two mirrors fit.
        timeout: seconds without an answer after which a try counts as failed.
        wait: seconds before the second try, doubled after each.
        stop: set by another thread to end the transfer.
    """

    part: Path
    size: int | None = None
    checked: bool = False
    timeout: float = 30.0
    wait: float = 1.0
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def _notes(self) -> Path:
        return self.part.with_name(self.part.name + ".json")

    def forget(self) -> None:
        """Remove what was noted about the part."""
        self._notes.unlink(missing_ok=True)

    def discard(self, stream: BinaryIO) -> None:
        """Empty the part and forget where it came from."""
        self.forget()
        stream.seek(0)
        stream.truncate()

    def fetch(self, url: str, stream: BinaryIO) -> bool:
        """Fill the part (`stream`, opened for reading and writing) from `url`.

        Return whether an earlier part was continued. What was received stays in the part when
        this raises SourceError or InterruptedTransferError.
        """
        furthest, fruitless, progress, restarts = _length(stream), 0, False, 0
        while True:
            try:
                return self._get(url, stream)
            except _ChangedError:
                self.discard(stream)
                furthest, restarts = 0, restarts + 1
                if restarts > _RESTARTS:
                    raise SourceError("the server contradicts itself about the file") from None
                continue
            except SourceError as error:
                if not error.passing:
                    raise
                fault = error
            except urllib.error.URLError as error:
                cause = str(getattr(error.reason, "strerror", None) or error.reason)
                fault = SourceError(cause, unreachable=True)
            except (OSError, http.client.HTTPException) as error:
                fault = SourceError(str(error) or type(error).__name__)
            if _length(stream) > furthest:
                furthest, fruitless, progress = _length(stream), 0, True
            else:
                fruitless += 1
            # A server that never answered is soon given up; one that did may have a bad minute.
            patience = _ATTEMPTS if progress or not fault.unreachable else 2
            if fruitless >= patience:
                raise fault
            pause = self.wait * 2.0 ** max(0, fruitless - 1) if fault.wait is None else fault.wait
            if self.stop.wait(min(pause, _LONGEST_WAIT)):
                raise InterruptedTransferError

    def _get(self, url: str, stream: BinaryIO) -> bool:
        """Make one request; return, as `fetch` does, once the whole file is there."""
        begun = _length(stream)
        notes = self._read_notes() if begun else {}
        if begun and not (notes and (notes.get("url") == url or self.checked)):
            raise _ChangedError
        headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
        if begun:
            headers["Range"] = f"bytes={begun}-"
        request = urllib.request.Request(url, headers=headers)
        try:
            # A new opener, as urlopen's own keeps the proxies that were set when it was first used.
            response = urllib.request.build_opener().open(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(error, begun, notes)
        with response:
            known = self._check(response, url, begun, notes)
            continued = response.status == 206
            if not continued:
                self.discard(stream)
            self._notes.write_text(json.dumps(known), encoding="utf-8")
            stream.seek(0, os.SEEK_END)
            self._copy(response, stream, known["length"], continued)
        return continued

    def _refused(self, error: urllib.error.HTTPError, begun: int, notes: dict[str, Any]) -> bool:
        """Raise what an answer of 400 and above means; return True if nothing is missing."""
        cause = f"{error.code} {error.reason}".strip()
        if error.code == 416 and begun:
            place = _RANGE.match(error.headers.get("Content-Range", ""))
            total = int(place["total"]) if place else notes.get("length")
            if begun == total and notes.get("length") in (None, total):
                return True
            raise _ChangedError
        if error.code in _WORTH_ANOTHER_TRY:
            after = error.headers.get("Retry-After", "")
            raise SourceError(cause, True, float(after) if after.isdigit() else None)
        raise SourceError(cause)

    def _check(self, response: Any, url: str, begun: int, notes: dict[str, Any]) -> dict[str, Any]:
        """Return what is known of the file that is offered, if it is the one wanted."""
        headers = response.headers
        if headers.get_content_type() == "text/html":
            raise SourceError("the server sends a web page instead of the file")
        length = headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        if response.status == 206:
            place = _RANGE.match(headers.get("Content-Range", ""))
            if not place or place["start"] is None or int(place["start"]) != begun:
                if not begun:
                    raise SourceError("the server sends a piece of the file that was not asked for")
                raise _ChangedError
            total = int(place["total"])
        known = {"url": url, "length": total}
        known |= {key: headers.get(key) for key in ("ETag", "Last-Modified")}
        if response.status == 206 and begun:
            same = ("length", "ETag", "Last-Modified") if notes.get("url") == url else ("length",)
            if any(known[key] != notes.get(key) for key in same):
                raise _ChangedError
        if self.size is not None and total is not None and total != self.size:
            raise SourceError(f"the file has {total:,} bytes instead of {self.size:,}")
        return known

    def _copy(self, response: Any, stream: BinaryIO, total: int | None, continued: bool) -> None:
        done, name = _length(stream), self.part.name.removesuffix(".part")
        whole = "its length is not known" if total is None else f"{size_of(total)} in all"
        log(f"{name}: {f'taken up at {size_of(done)}' if continued else 'begun'}, {whole}")
        with progress_bar(name, done, total) as bar:
            # what is there, be it little, so that a slow line loses nothing
            while block := response.read1(_BLOCK):
                if not done and _PAGE.match(block):
                    self.discard(stream)
                    raise SourceError("the server sends a web page instead of the file")
                stream.write(block)
                stream.flush()
                done += len(block)
                bar.update(len(block))
                if self.stop.is_set():
                    raise InterruptedTransferError
        if total is not None and done < total:
            raise SourceError(f"the connection ended after {done:,} of {total:,} bytes", True)
        if total is not None and done > total:
            self.discard(stream)
            raise SourceError(f"the server sent {done:,} bytes and had announced {total:,}")

    def _read_notes(self) -> dict[str, Any]:
        try:
            return read_record(self._notes)
        except (OSError, ValueError):
            return {}


def _length(stream: BinaryIO) -> int:
    return os.fstat(stream.fileno()).st_size
