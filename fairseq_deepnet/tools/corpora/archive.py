"""Archives, read once and in their order; nothing is unpacked to the name that an archive gives."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from fairseq_deepnet.files import whole

_OPENERS: Final[dict[str, Any]] = {
    **dict.fromkeys((".gz", ".tgz"), gzip.open),
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
Files = Iterator[tuple[tarfile.TarInfo, BinaryIO]]


@contextmanager
def opened(path: Path) -> Iterator[Files]:
    """Open a tar archive (plain, .gz, .bz2, .xz) and yield its files, each with its content.

    Read a content before you ask for the next file. Links and devices are left out. Raises
    ValueError for a damaged archive.
    """
    try:
        with (
            _OPENERS.get(path.suffix, open)(path, "rb") as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            yield _files(stream, tar)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} is not a complete archive ({error}); download it again"
        ) from error


def _files(stream: BinaryIO, tar: tarfile.TarFile) -> Files:
    for member in tar:
        if member.isfile():
            yield member, cast(BinaryIO, tar.extractfile(member))
    while stream.read(1 << 20):
        pass  # tarfile takes a truncated archive for a whole one; the end of the stream tells


def write(content: BinaryIO, place: Path) -> None:
    """Write a file's content to `place`, which appears only when it is complete."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with whole(place) as part, part.open("wb") as out:
        shutil.copyfileobj(content, out, 1 << 20)


def take(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Write the members named in `wanted` to their places; ValueError if one is missing."""
    missing = dict(wanted)
    with opened(archive) as files:
        for member, content in files:
            if place := missing.pop(member.name.removeprefix("./"), None):
                write(content, place)
            if not missing:
                return
    raise ValueError(f"{archive} has no {', '.join(sorted(missing))}; download it again")
