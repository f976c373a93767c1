"""Atomic writing and locking of files, and the project's folders."""

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

PACKAGE: Final = Path(__file__).resolve().parent
"""Absolute path of this package, for fairseq's --user-dir."""
_IS_CLONE: Final = (PACKAGE.parent / "configs" / "base.yaml").is_file()
ROOT: Final = PACKAGE.parent if _IS_CLONE else Path.cwd()
"""Parent of runs/ and data/: the clone, or the working folder if the package is installed."""
RESOURCES: Final = PACKAGE.parent if _IS_CLONE else PACKAGE
"""Parent of configs/ and data/sample/, which setup.py installs inside the package."""


def shown(path: Path) -> str:
    """Return a path as text: relative to ROOT if the path is inside ROOT, otherwise absolute.

    Configs and records name folders in this form. Paths on the command line are relative to the
    working folder.
    """
    resolved = path.resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else str(resolved)


def say(text: str) -> None:
    """Print a line to standard error, because standard output is for results."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def naming(path: Path, part: Path | None = None) -> Iterator[None]:
    """Add `path` to any OSError on `part` or without a file name, as when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, part and str(part)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _temporary(path: Path) -> Path:
    """Return an unused hidden name in the same folder; a killed process may leave such a file."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path; unless an error occurs, the file there replaces `path` atomically."""
    part = _temporary(path)
    if path.exists() and not path.is_file():  # a folder, or a device such as /dev/null
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    try:
        with naming(path, part):
            yield part
            put_in_place(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; unless an error occurs, it then replaces `folder`."""
    part = _temporary(folder)
    part.mkdir(parents=True)
    try:
        yield part
        put_folder_in_place(part, folder)
    finally:
        remove(part)


def put_folder_in_place(part: Path, folder: Path) -> None:
    """Rename a complete folder to its final name, and remove any previous folder of this name."""
    old = folder.with_name(f".{folder.name}.replaced")
    remove(old)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    remove(old)


def remove(path: Path) -> None:
    """Remove a file or link if it exists, or as much of a folder as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")


def put_in_place(part: Path, path: Path) -> None:
    """Rename a complete file to its final name, atomically replacing any previous file.

    The bytes are flushed to disk before the rename, so a power cut leaves either the old or the new
    file. Processes that have opened or mapped the old file continue to read the old bytes.
    """
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not supported by some file systems
            os.fsync(folder)
    finally:
        os.close(folder)


def try_lock(file: IO[Any] | int) -> bool:
    """Lock an open file or folder; return False if another process holds the lock.

    The lock is released when the file is closed or the process ends.

    Raises:
        OSError: if the file system does not support locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading and appending, and lock it.

    Another process may remove or rename the file before this process can lock it. In that case,
    the file that is now at `path` is locked instead (a new one if there is none).

    Raises:
        BlockingIOError: if another process holds the lock.
    """
    while True:
        with path.open("a+b") as file:
            if not try_lock(file):
                raise BlockingIOError(f"another process has locked {path}")
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                yield cast(BinaryIO, file)
                return
