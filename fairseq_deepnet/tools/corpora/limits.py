"""How much a stranger's file may unpack to, and how long its lines may be.

306 KB of archive can hold 300 MB, and a line of 150 MB took 3.9 GB of memory to clean. The limits
are far above what corpora hold: text packs to a third or a tenth, OPUS-100 has some 600 files, the
longest line of Multi30k, Tatoeba and Flores-101 has 2,750 bytes. A variable raises each.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

LINE: Final = "DEEPNET_MAX_LINE"
UNPACKED: Final = "DEEPNET_MAX_UNPACKED"
MEMBERS: Final = "DEEPNET_MAX_MEMBERS"

MAX_LINE: Final = 1 << 20
MAX_RATIO: Final = 50
ALWAYS: Final = 64 << 20
"""What any file may unpack to, however small it is."""
MAX_MEMBERS: Final = 100_000

_UNITS: Final[Mapping[str, int]] = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_PACKED: Final[tuple[tuple[bytes, Callable[..., Any]], ...]] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\0", lzma.open),
    (b"\x5d\0\0", lzma.open),  # the older .lzma
)


def _set(variable: str) -> int | None:
    """A limit that the user set, as 300000000 or 300M; ValueError for what is no size."""
    said = os.environ.get(variable)
    if not said:
        return None
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)", said)
    if not found:
        raise ValueError(f"{variable} is {said!r}; a size such as 300M is expected")
    return int(found[1]) * _UNITS[found[2]]


def shown(size: float) -> str:
    """A size in words, as a variable takes it."""
    for unit in "TGMK":
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.0f}{unit}"
    return f"{size:.0f}"


def max_line() -> int:
    """Bytes that a line may have, with its end."""
    return _set(LINE) or MAX_LINE


def line_error(path: Path, number: int) -> ValueError:
    """What is raised for a line that is longer."""
    return ValueError(
        f"{path}, line {number}: longer than {shown(max_line())} bytes: is it text, a sentence a"
        f" line? {LINE}={shown(2 * max_line())} (or more) reads it"
    )


def max_unpacked(path: Path) -> int:
    """Bytes that a packed file may unpack to."""
    return _set(UNPACKED) or max(ALWAYS, MAX_RATIO * path.stat().st_size)


def unpacked_error(path: Path) -> ValueError:
    """What is raised for a file that unpacks to more."""
    return ValueError(
        f"{path} unpacks to more than {shown(max_unpacked(path))} bytes, from"
        f" {shown(path.stat().st_size)}: no text packs so well; where it is to be trusted,"
        f" {UNPACKED}=SIZE (such as 100G) lets it"
    )


class _Bounded(io.RawIOBase):
    """The unpacked bytes of a file, up to the limit."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path, self.stream, self.left = path, stream, max_unpacked(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = int(self.stream.readinto(buffer))  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno is not None:
                raise
            raise EOFError(str(error)) from error  # not the disk's error, but what is in the file
        self.left -= count
        if self.left < 0:
            raise unpacked_error(self.path)
        return count

    def close(self) -> None:
        self.stream.close()
        super().close()


def open_packed(path: Path, opener: Callable[..., Any] = gzip.open) -> BinaryIO:
    """Open a packed file for reading; reading raises ValueError beyond the limit.

    What is damaged raises EOFError, zlib.error or lzma.LZMAError.
    """
    bounded = _Bounded(path, opener(path, "rb"))
    return cast(BinaryIO, io.BufferedReader(bounded, 1 << 18))


def open_archive(path: Path) -> BinaryIO:
    """Open a tar archive, packed in any way that Python knows or not at all, as `open_packed`."""
    with path.open("rb") as stream:
        start = stream.read(6)
    for magic, opener in _PACKED:
        if start.startswith(magic):
            return open_packed(path, opener)
    return path.open("rb")


def members(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """The members of an archive that was opened so; ValueError before one that goes too far."""
    count, size = _set(MEMBERS) or MAX_MEMBERS, max_unpacked(path)
    for number, member in enumerate(archive, start=1):
        if number > count:
            raise ValueError(f"{path} has more than {count:,} members; {MEMBERS}=COUNT takes more")
        # what it says, not what there is: a sparse member holds nothing, and is written in full
        size -= member.size if member.isfile() else 0
        if size < 0:
            raise unpacked_error(path)
        yield member
