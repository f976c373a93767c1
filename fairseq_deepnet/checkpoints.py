"""Safe reading and atomic writing of fairseq checkpoints."""

from __future__ import annotations

import logging
import pickle
import re
import shutil
import time
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from . import literals
from .errors import ConfigurationError
from .files import whole

logger = logging.getLogger(__name__)

LAST: Final = "checkpoint_last.pt"
PAUSES: Final = (2.5, 2.5)
"""Seconds before further attempts to write a checkpoint, as file servers fail at times."""
_PERIODIC: Final = re.compile(
    r"checkpoint(\d+|_\d+_\d+)\.pt"
)  # checkpoint7.pt, checkpoint_7_2000.pt

_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, OSError)
"""Exceptions raised while reading a damaged file."""


def checkpoint_globals() -> tuple[Any, ...]:
    """Return the classes in fairseq's checkpoints that torch's weights-only loader does not know.

    They were listed by torch.serialization.get_unsafe_globals_in_checkpoint for checkpoints of
    every optimiser, scheduler and configuration style: the model's Namespace and, with --eval-bleu,
    the integer arrays of BLEU counts in the meters. All other classes are refused.
    """
    array_rebuilder = np.zeros(0).__reduce__()[0]  # its module differs between versions of numpy
    dtypes = {type(np.dtype(kind)) for kind in (np.int64, np.float64)}
    return Namespace, np.ndarray, np.dtype, array_rebuilder, *dtypes


torch.serialization.add_safe_globals(list(checkpoint_globals()))


def refuse_damaged(path: Path | str, weights: bool = True) -> None:
    """Compare the records of a checkpoint with their checksums, which torch.load does not check.

    With `weights`, the whole file is read, at 1 to 3 GB/s; otherwise only its structure. Files in
    torch's format from before 1.6 have no checksums.

    Raises ConfigurationError for a damaged file and for a compressed one: torch never compresses,
    and a small compressed file could expand to fill the memory.
    """
    with Path(path).open("rb") as stream:
        try:
            if not zipfile.is_zipfile(stream):
                return  # torch's loader reports what it is
            with zipfile.ZipFile(stream) as file:
                if any(record.compress_type != zipfile.ZIP_STORED for record in file.infolist()):
                    raise ConfigurationError(
                        f"{path} is compressed, unlike checkpoints of torch; unzip it and"
                        " zip it without compression (zip -0) if you trust it"
                    )
                damaged = file.testzip() if weights else None
                for name in file.namelist() if not weights else ():
                    if name.endswith(".pkl"):
                        file.read(name)
        except ConfigurationError:
            raise
        except _DAMAGE as error:
            damaged = _first_line(error)
    if damaged is not None:
        raise ConfigurationError(
            f"{path} is damaged ({damaged}: wrong checksum); use an intact copy"
        )


Receiver = Callable[[dict[str, Any]], dict[str, Any]]
_RECEIVERS: Final[list[Receiver]] = []
"""Functions of trainers that take over checkpoints which fairseq loads; the last is active."""


@contextmanager
def received_by(receiver: Receiver) -> Iterator[None]:
    """Pass each checkpoint that fairseq loads to `receiver`, and use what it returns."""
    _RECEIVERS.append(receiver)
    try:
        yield
    finally:
        _RECEIVERS.pop()


def receiver() -> Receiver | None:
    """Return the active receiver, or None if fairseq handles the checkpoint itself."""
    return _RECEIVERS[-1] if _RECEIVERS else None


Stamp = tuple[int, int, int]
_READ: Final[dict[Path, tuple[Stamp, bool, dict[str, Any]]]] = {}
"""Files read by this process: their stamp, whether all checksums were compared, and the options
recorded in them.
"""


def stamp_of(path: Path) -> Stamp:
    """Return the inode, size and modification time of a file; they change when it is rewritten."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_verified(path: Path | str) -> bool:
    """Return True if `load_checkpoint` has verified all of this version of the file."""
    stamp, entire, _ = _READ.get(Path(path), (None, False, {}))
    return entire and stamp == stamp_of(Path(path))


def recorded_arguments(path: Path | str) -> Namespace | None:
    """Return `model_arguments` of a file, opening it only if this process has not read it yet."""
    path = Path(path)
    if path not in _READ or _READ[path][0] != stamp_of(path):
        load_checkpoint(path)
    return model_arguments(_READ[path][2])


def load_checkpoint(path: Path | str, entire: bool = False) -> dict[str, Any]:
    """Return a checkpoint on the CPU, with tensors mapped from the file and read when used.

    With `entire`, the whole file is read first and compared with its checksums.

    Raises FileNotFoundError if the file does not exist, and ValueError if it is damaged, contains
    classes other than fairseq's or options that would run code, or is not a checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    stamp = stamp_of(path)
    refuse_damaged(path, weights=entire)
    with naming_damage(path):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ConfigurationError(f"{path} is not a fairseq checkpoint: it contains no model")
    literals.check_state(state, path)
    _READ[path] = stamp, entire, {"cfg": state.get("cfg"), "args": state.get("args")}
    return state


def refuse_not_finite(state: Mapping[str, Any], path: object) -> None:
    """Raise ConfigurationError if a checkpoint's weights are NaN or infinite.

    Such weights come from a diverged run, and a model with them computes only NaN.
    """
    for name, weight in (state.get("model") or {}).items():
        is_real = isinstance(weight, torch.Tensor) and weight.is_floating_point()
        if is_real and not bool(torch.isfinite(weight).all()):
            raise ConfigurationError(
                f"{path}: {name} is not finite: the run has diverged; use an earlier checkpoint"
            )


@contextmanager
def naming_damage(path: Path | str) -> Iterator[None]:
    """Convert torch's errors about a damaged file into a ConfigurationError of one line.

    Errors of the file system, such as a missing file or permission, pass unchanged.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except pickle.UnpicklingError as error:
        raise ConfigurationError(f"{path} cannot be loaded safely: {_first_line(error)}") from error
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise ConfigurationError(
            f"{path} is damaged, incomplete or not a checkpoint ({_first_line(error)})"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def save_checkpoint(state: dict[str, Any], path: Path | str) -> None:
    """Write a checkpoint atomically.

    Raises ConfigurationError if it cannot be written.
    """
    path = Path(path)
    try:
        with whole(path) as part, part.open("wb") as stream:
            torch.save(state, stream)
    except (OSError, RuntimeError) as error:
        # torch's writer hides the file's error behind another
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        raise not_written(path, reason) from error


def save_with_retries(state: dict[str, Any], path: Path) -> None:
    """Save a checkpoint, trying again after a pause."""
    for pause in PAUSES:
        try:
            save_checkpoint(state, path)
            return
        except ConfigurationError as error:
            logger.warning("%s; trying again in %s seconds", error, pause)
            time.sleep(pause)
    save_checkpoint(state, path)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint atomically; errors as in `save_checkpoint`.

    It is never a hard link: a later `cp other.pt checkpoint_last.pt` would write through the link
    into every linked file.
    """
    try:
        with whole(target) as part:
            shutil.copyfile(source, part)
    except OSError as error:
        raise not_written(target, error) from error


def not_written(path: Path, error: OSError) -> ConfigurationError:
    """Return the error for a checkpoint that could not be written."""
    free = shutil.disk_usage(path.parent).free
    return ConfigurationError(
        f"{path} was not written: {error.strerror} ({free:,} bytes are free). Existing files are"
        " intact; rerun to resume"
    )


def model_arguments(state: Mapping[str, Any]) -> Namespace | None:
    """Return the model's arguments in the format of old or new fairseq, or None without any."""
    model = (state.get("cfg") or {}).get("model") or state.get("args")
    if not model:
        return None
    return Namespace(**(model if isinstance(model, dict) else vars(model)))


def num_updates(state: dict[str, Any]) -> int:
    """Return the number of updates of a checkpoint."""
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def periodic_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that fairseq wrote at ends of epochs and intervals of updates."""
    return sorted(path for path in folder.glob("checkpoint*.pt") if _PERIODIC.fullmatch(path.name))


def last_of(trainer: Any) -> Path:
    """Return a trainer's checkpoint_last.pt, with the suffix of --checkpoint-suffix."""
    name = LAST.replace(".pt", f"{trainer.checkpoint_suffix}.pt")
    return Path(trainer.cfg.checkpoint.save_dir) / name
