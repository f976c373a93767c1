"""Files: written whole or not at all, locked, and named as a person would name them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

PACKAGE: Final = Path(__file__).resolve().parent
"""This package, for fairseq's --user-dir: valid from every working directory."""
_IS_CLONE: Final = (PACKAGE.parent / "configs" / "base.yaml").is_file()
ROOT: Final = PACKAGE.parent if _IS_CLONE else Path.cwd()
"""Folder of runs/ and data/: the clone, or the working folder of an installed package."""
RESOURCES: Final = PACKAGE.parent if _IS_CLONE else PACKAGE
"""Folder of configs/ and data/sample/, which setup.py installs inside the package."""


def shown(path: Path) -> str:
    """Return a path as a person would write it: relative to the project where it lies inside."""
    resolved = path.resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else str(resolved)


def inside_project(path: Path | str) -> Path:
    """Return a path as given where it is absolute or there; otherwise, from the project's root."""
    path = Path(path)
    return path if path.is_absolute() or path.exists() else ROOT / path


def say(text: str) -> None:
    """Print a line for people on standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make an error of the file system name a file, which that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield where to write a file that is to be there whole or not at all; it is renamed then."""
    part = path.with_name(path.name + ".part")
    try:
        with naming(path):
            yield part
            put_in_place(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end it takes the place of `folder`. Else it goes."""
    part = folder.with_name(folder.name + ".part")
    remove(part)
    part.mkdir(parents=True)
    try:
        yield part
        put_folder_in_place(part, folder)
    finally:
        remove(part)


def put_folder_in_place(part: Path, folder: Path) -> None:
    """Give a folder that is filled its name; what had it, a file or a folder, is removed last."""
    old = replaced(folder)
    remove(old)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    remove(old)


def replaced(folder: Path) -> Path:
    """Return the name of what a folder takes the place of, until it has: one that is nobody's."""
    return folder.with_name(f".{folder.name}.replaced")


def remove(path: Path) -> None:
    """Remove a file or a link, where there is one, or as much of a folder as can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


def put_in_place(part: Path, path: Path) -> None:
    """Give a file that is written out its name; what had it is replaced, and never half a file.

    The bytes are on the disk before the name is, so that a power cut leaves the old file or the new
    one; a process that reads or maps the old one keeps it.
    """
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems have no such thing
            os.fsync(folder)
    finally:
        os.close(folder)


def try_lock(file: IO[Any] | int) -> bool:
    """Lock an open file or folder for this process; False if another process has it locked.

    The lock goes with the process, however it ends. Raises OSError where there are no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read and append, and lock it; BlockingIOError if another process holds it.

    That process may remove or rename it: the file that is locked is the one of that name.
    """
    while True:
        with path.open("a+b") as file:
            if not try_lock(file):
                raise BlockingIOError(f"another process has locked {path}")
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                yield cast(BinaryIO, file)
                return


def write_json(path: Path, content: object) -> None:
    """Write a JSON file so that it is there whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
