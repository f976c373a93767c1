"""The record in a split checkpoint (`--use-sharded-state`) of the files with its weights.

A light module: every reader of checkpoints imports it. `split_files` reads and writes the files.
"""

from __future__ import annotations

import pickle
import re
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from ..errors import ConfigurationError
from ..records import lacking

SPLIT: Final = "split_files"
"""Key of a checkpoint whose weights and optimiser state lie in other files: docs/sharding.md."""
_RECORD: Final = {
    "folder": str,
    "files": dict,
    "shapes": dict,
    "trained": list,
    "block": int,
    "half": str,
    "flat": bool,
}
"""What stands under that key; the files' lengths and checksums by name."""
_READERS: Final = 8
"""Threads that compare these files with their checksums: storage is faster than one."""
ROWS: Final = "split"
"""Folder of these files, in that of the checkpoint or above it."""
_ROWS_NAME: Final = re.compile(r"update_\d+_\d+")
_ROWS_FILE: Final = re.compile(r"__\d+_\d+\.distcp|\.metadata(\.tmp)?|\.nfs.*")
_UNREADABLE: Final = (
    *(zipfile.BadZipFile, zlib.error, pickle.UnpicklingError),
    *(RuntimeError, EOFError, ValueError, OSError, KeyError, TypeError),
)
"""What reading a damaged file raises."""


def check_split(path: Path | str, state: Mapping[str, Any], allowed: bool, entire: bool) -> None:
    """Raise ConfigurationError for a split checkpoint that is not `allowed`, or not whole."""
    if SPLIT not in state:
        return
    if not allowed:
        raise ConfigurationError(
            f"{path} is split, its weights lie in other files; make one file of it first: deepnet"
            f" join {path}"
        )
    record, again = state[SPLIT], "copy it again, or use another checkpoint"
    fault = (
        lacking(record, _RECORD)
        or lacking(record["files"], dict.fromkeys(record["files"], list))
        or lacking(record["shapes"], dict.fromkeys(record["shapes"], list))
    )
    if fault or not record["shapes"].keys() >= {*record["trained"]}:
        raise ConfigurationError(
            f"{path} is damaged: {fault or 'it trains what has no shape'}; {again}"
        )
    folder = rows_folder(path, state)
    files = {folder / Path(name).name: told for name, told in record["files"].items()}

    def is_whole(file: Path) -> bool:
        size, known = files[file]
        return file.stat().st_size == size and not (entire and checksum(file) != known)

    for file in files:
        if not file.is_file():
            raise ConfigurationError(f"{path} is split, and its {file} is gone; {again}")
    with ThreadPoolExecutor(_READERS) as readers:
        for file, fine in zip(files, readers.map(is_whole, files), strict=True):
            if not fine:
                raise ConfigurationError(f"{path} is split, and its {file} is damaged; {again}")


def rows_folder(path: Path | str, state: Mapping[str, Any]) -> Path:
    """Return the folder with the weights of a split checkpoint; that, or its folder, may have been
    moved further down, or be a link.
    """
    name, files = Path(state[SPLIT]["folder"]).name, (Path(path).resolve(), Path(path).absolute())
    places = [above / ROWS / name for file in files for above in file.parents]
    return next((place for place in places if place.is_dir()), places[0])


def remove_unused_rows(folder: Path, only: Path | None = None) -> Path | None:
    """Remove from a folder of checkpoints the files of split ones that are there no more; with
    `only`, this folder of them at the most. What cannot be removed stays.

    By names: several folders may have one of the same name, but links may lead anywhere.

    Returns a checkpoint that cannot be read, because of which nothing was removed; or None.
    """
    if not (folder / ROWS).is_dir():
        return None
    used = set()
    for path in {*folder.rglob("*.pt"), *folder.glob("*/*.pt")}:  # which follows links to folders
        try:
            used.add(_rows_named_in(path))
        except _UNREADABLE:
            return path
    for rows in (folder / ROWS).iterdir():
        if rows.name not in used and (only is None or rows.name == only.name) and _is_ours(rows):
            shutil.rmtree(rows, ignore_errors=True)
    return None


def _is_ours(rows: Path) -> bool:
    """Return True for a folder that a split checkpoint's files are in, and nothing else."""
    if not _ROWS_NAME.fullmatch(rows.name) or rows.is_symlink() or not rows.is_dir():
        return False
    return all(_ROWS_FILE.fullmatch(path.name) for path in rows.iterdir())


def _rows_named_in(path: Path) -> str | None:
    """Return the name of the folder that a split checkpoint means; None for an ordinary one, whose
    many tensors are not looked at.
    """
    if zipfile.is_zipfile(path):  # others are damaged, or older than torch 1.6
        with zipfile.ZipFile(path) as file:
            (pickled,) = (name for name in file.namelist() if name.endswith("data.pkl"))
            if SPLIT.encode() not in file.read(pickled):
                return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state[SPLIT]["folder"] if SPLIT in state else None


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file's bytes."""
    crc = 0
    with path.open("rb") as stream:
        while part := stream.read(2**24):
            crc = zlib.crc32(part, crc)
    return crc
