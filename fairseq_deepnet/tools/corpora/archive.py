"""Take a few files out of a tar archive, or out of a folder that one was unpacked to."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.corpora import limits


def take(origin: Path, wanted: Mapping[str, Path]) -> None:
    """Write the members of `origin` to their places; each appears only when complete.

    Arguments:
        origin: a folder, or a tar archive (plain, .gz, .bz2, .xz), which is read once, not unpacked
        wanted: name within the archive -> file to write

    In a folder, a member may lie at its whole name or at the end of it ("dev/x.sgm" or "x.sgm").
    Raises ValueError for an archive that is damaged or lacks a member.
    """
    missing = dict(wanted)
    if origin.is_dir():
        for name, place in wanted.items():
            found = find_in_folder(origin, name)
            if found is not None:
                shutil.copyfile(found, _part(place))
                _part(place).replace(place)
                del missing[name]
    else:
        _stream(origin, missing)
    if missing:
        names = ", ".join(sorted(missing))
        raise ValueError(f"{origin} has no {names}; give the published archive, whole")


def find_in_folder(folder: Path, name: str) -> Path | None:
    """The file called `name` of an unpacked archive; its first folders may be absent."""
    parts = Path(name).parts
    for start in range(len(parts)):
        path = folder.joinpath(*parts[start:])
        if path.is_file():
            return path
    return None


def _stream(origin: Path, missing: dict[str, Path]) -> None:
    """Read the archive as far as needed, and take out of `missing` what was found."""
    try:
        with (
            limits.open_archive(origin) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            for member in limits.members(archive, origin):
                name = member.name.removeprefix("./")
                if name not in missing or not member.isfile():
                    continue
                content = archive.extractfile(member)
                assert content is not None
                place = missing[name]
                with _part(place).open("wb") as out:
                    shutil.copyfileobj(content, out, 1 << 20)
                _part(place).replace(place)
                del missing[name]
                if not missing:
                    break
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{origin} is no whole tar archive ({error}); remove it and fetch it again"
        ) from error


def _part(place: Path) -> Path:
    return place.with_name(place.name + ".part")


def fingerprint(origin: Path) -> dict[str, Any]:
    """Enough to see that an archive or folder is another one than before."""
    status = origin.stat()
    size = None if origin.is_dir() else status.st_size
    return {"path": str(origin.resolve()), "bytes": size, "modified": status.st_mtime_ns}


def make_once(
    out: Path, origin: object, write: Callable[[Path, Path], dict[str, int]]
) -> dict[str, int]:
    """Make the folder OUT by `write(scratch folder, OUT to be)`, and return the counts it returns.

    `origin` says what OUT is made from, in terms of JSON: where OUT is there and was made from the
    same, nothing is done. OUT appears only when complete. Raises ValueError for a folder that was
    not made by this function, which is never touched.
    """
    record = out / "extracted.json"
    if record.is_file():
        content = read_record(record, {"from": object, "lines": dict}, "remove its folder")
        if content["from"] == json.loads(json.dumps(origin)):
            return dict(content["lines"])
    elif out.exists():
        raise ValueError(f"{out} exists and holds something else; remove it or give another folder")
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory(dir=part) as scratch:
            lines = write(Path(scratch), part)
        content = {"from": origin, "lines": lines}
        (part / record.name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(out, ignore_errors=True)
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return lines
