"""Read the tar archives of strangers: file by file, within limits, to places of our own choice.

Nothing is unpacked to the name that an archive gives it, and links and devices are passed over: no
member can land outside, or lead there.
"""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from fairseq_deepnet.files import whole
from fairseq_deepnet.tools.corpora import limits

Files = Iterator[tuple[tarfile.TarInfo, BinaryIO]]


@contextmanager
def opened(path: Path) -> Iterator[Files]:
    """Open an archive (plain, .gz, .bz2, .xz) and yield its files, each with its content.

    The archive is read once, in its order: read a content before you ask for the next file. Raises
    ValueError for an archive that is damaged, or that unpacks to more than `limits` lets it.
    """
    try:
        with limits.open_archive(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            yield _files(path, stream, tar)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{path} is no whole tar archive ({error}); remove it and fetch it again"
        ) from error


def _files(path: Path, stream: BinaryIO, tar: tarfile.TarFile) -> Files:
    for member in limits.members(tar, path):
        if member.isfile():
            yield member, cast(BinaryIO, tar.extractfile(member))
    while stream.read(1 << 20):
        pass  # tarfile takes a cut archive for a whole one; the end of the packed file tells


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
