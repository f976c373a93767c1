"""Packed files of strangers: read within limits, and unpacked to places of our own choice.

306 KB of archive can hold 300 MB. The limits are far above what corpora hold: text packs to a
third or a tenth, OPUS-100 has some 600 files. A variable raises each. Nothing is unpacked to the
name that an archive gives it, and links and devices are passed over: no member can land outside.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from fairseq_deepnet.files import whole

UNPACKED: Final = "DEEPNET_MAX_UNPACKED"
MEMBERS: Final = "DEEPNET_MAX_MEMBERS"
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

Files = Iterator[tuple[tarfile.TarInfo, BinaryIO]]


def limit_of(variable: str, default: int) -> int:
    """Return a limit, which the user may set as 300M; ValueError for what is no size."""
    said = os.environ.get(variable)
    if not said:
        return default
    found = re.fullmatch(r"(\d{1,15})([KMGT]?)", said)
    if not found:
        raise ValueError(f"{variable} is {said!r}; a size such as 300M is expected")
    return int(found[1]) * _UNITS[found[2]] or default


def size_as_given(size: float) -> str:
    """Return a size as a variable takes it: 300M."""
    unit = next((unit for unit in "TGMK" if size >= _UNITS[unit]), "")
    return f"{size / _UNITS[unit]:.0f}{unit}"


def _max_unpacked(path: Path) -> int:
    return limit_of(UNPACKED, max(ALWAYS, MAX_RATIO * path.stat().st_size))


def _unpacked_error(path: Path) -> ValueError:
    return ValueError(
        f"{path} unpacks to more than {size_as_given(_max_unpacked(path))} bytes, from"
        f" {size_as_given(path.stat().st_size)}: no text packs so well; where it is to be trusted,"
        f" {UNPACKED}=SIZE (such as 100G) lets it"
    )


class _Bounded(io.RawIOBase):
    """The unpacked bytes of a file, up to the limit."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path, self.stream, self.left = path, stream, _max_unpacked(path)

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
            raise _unpacked_error(self.path)
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
    """Yield the members of an archive; ValueError before one that goes too far."""
    count, size = limit_of(MEMBERS, MAX_MEMBERS), _max_unpacked(path)
    for number, member in enumerate(archive, start=1):
        if number > count:
            raise ValueError(f"{path} has more than {count:,} members; {MEMBERS}=COUNT takes more")
        # what it says, not what there is: a sparse member holds nothing, and is written in full
        size -= member.size if member.isfile() else 0
        if size < 0:
            raise _unpacked_error(path)
        yield member


@contextmanager
def opened(path: Path) -> Iterator[Files]:
    """Open an archive (plain, .gz, .bz2, .xz) and yield its files, each with its content.

    The archive is read once, in its order: read a content before you ask for the next file. Raises
    ValueError for an archive that is damaged, or that unpacks to more than the limit.
    """
    try:
        with open_archive(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            yield _files(path, stream, tar)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{path} is no whole tar archive ({error}); remove it and fetch it again"
        ) from error


def _files(path: Path, stream: BinaryIO, tar: tarfile.TarFile) -> Files:
    for member in members(tar, path):
        if member.isfile():
            yield member, cast(BinaryIO, tar.extractfile(member))
    while stream.read(1 << 20):
        pass  # tarfile takes a cut archive for a whole one; the end of the packed file shows


def write(content: BinaryIO, place: Path) -> None:
    """Write a file's content to `place`, which appears only when complete."""
    with whole(place) as part, part.open("wb") as out:
        shutil.copyfileobj(content, out, 1 << 20)


def take(origin: Path, wanted: Mapping[str, Path]) -> None:
    """Write some files of an archive, or of the folder that it was unpacked to.

    Args:
        origin: the archive, which is read as far as needed, or a folder. There, a file may lie at
            its whole name or at the end of it ("dev/x.sgm" or "x.sgm").
        wanted: name within the archive -> file to write; it appears only when complete.

    Raises:
        ValueError: for an archive that is damaged or lacks a file.
    """
    missing = dict(wanted)
    if origin.is_dir():
        for name in wanted:
            if found := find_in_folder(origin, name):
                with found.open("rb") as text:
                    write(text, missing.pop(name))
    else:
        with opened(origin) as files:
            for member, content in files:
                if place := missing.pop(member.name.removeprefix("./"), None):
                    write(content, place)
                if not missing:
                    break
    if missing:
        names = ", ".join(sorted(missing))
        raise ValueError(f"{origin} has no {names}; give the published archive, whole")


def find_in_folder(folder: Path, name: str) -> Path | None:
    """Return the file called `name` of an unpacked archive; its first folders may be absent."""
    parts = Path(name).parts
    candidates = (folder.joinpath(*parts[start:]) for start in range(len(parts)))
    return next((path for path in candidates if path.is_file()), None)
