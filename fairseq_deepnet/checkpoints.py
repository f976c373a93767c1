"""Reading and writing fairseq checkpoints: safely, and whole or not at all."""

from __future__ import annotations

import errno
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
"""Seconds before another attempt to write a checkpoint: file servers have their moments."""
_PERIODIC: Final = re.compile(
    r"checkpoint(\d+|_\d+_\d+)\.pt"
)  # checkpoint7.pt, checkpoint_7_2000.pt

_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, OSError)
"""What reading a damaged file raises."""


def checkpoint_globals() -> tuple[Any, ...]:
    """Return what fairseq's checkpoints hold beyond torch's classes, for the weights-only loader.

    Found by torch.serialization.get_unsafe_globals_in_checkpoint on checkpoints of every optimiser,
    scheduler and configuration style: the model's Namespace, and, with --eval-bleu, the integer
    arrays of the BLEU counts in the meters. Any other class stays refused.
    """
    array_rebuilder = np.zeros(0).__reduce__()[0]  # numpy moved it between its versions
    dtypes = {type(np.dtype(kind)) for kind in (np.int64, np.float64)}
    return Namespace, np.ndarray, np.dtype, array_rebuilder, *dtypes


torch.serialization.add_safe_globals(list(checkpoint_globals()))


def refuse_damaged(path: Path | str, weights: bool = True) -> None:
    """Compare the records in a checkpoint with their checksums, which torch.load does not.

    With `weights` all of it is read, at 1 to 3 GB/s; otherwise only what says what it holds.
    Checkpoints in torch's format of before 1.6 have no checksums.

    Raises ConfigurationError for a damaged file, and for one whose records are packed: torch never
    packs them, and a thousandth of their size on the disk could fill the memory.
    """
    with Path(path).open("rb") as stream:
        try:
            if not zipfile.is_zipfile(stream):
                return  # torch's own loader says what it is
            with zipfile.ZipFile(stream) as file:
                if any(record.compress_type != zipfile.ZIP_STORED for record in file.infolist()):
                    raise ConfigurationError(
                        f"{path} is packed, as no checkpoint is; unzip and"
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
            f"{path} is damaged ({damaged}: not what its checksums say); copy it again, or use"
            " another checkpoint"
        )


Receiver = Callable[[dict[str, Any]], dict[str, Any]]
_RECEIVERS: Final[list[Receiver]] = []
"""Of a trainer that takes checkpoints apart as fairseq loads them; the last counts."""


@contextmanager
def received_by(receiver: Receiver) -> Iterator[None]:
    """Let `receiver` take what fairseq loads; it returns the rest."""
    _RECEIVERS.append(receiver)
    try:
        yield
    finally:
        _RECEIVERS.pop()


def receiver() -> Receiver | None:
    """Return what takes the checkpoints that fairseq loads; None if fairseq does."""
    return _RECEIVERS[-1] if _RECEIVERS else None


Stamp = tuple[int, int, int]
_KNOWN: Final[dict[Path, tuple[Stamp, bool, dict[str, Any]]]] = {}
"""Of files that this process has read: what they were then, whether all of it was compared with its
checksums, and the options of the training."""


def stamp_of(path: Path) -> Stamp:
    """Return what is another for a file that was written again."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_known_whole(path: Path | str) -> bool:
    """Return True if `load_checkpoint` has read all of this very file in this process."""
    stamp, entire, _ = _KNOWN.get(Path(path), (None, False, {}))
    return entire and stamp == stamp_of(Path(path))


def recorded_arguments(path: Path | str) -> Namespace | None:
    """Return `model_arguments` of a file, which is opened only if this process has not yet."""
    return model_arguments(_recorded(path))


def _recorded(path: Path | str) -> dict[str, Any]:
    if Path(path) not in _KNOWN or _KNOWN[Path(path)][0] != stamp_of(Path(path)):
        load_checkpoint(path)
    return _KNOWN[Path(path)][2]


def load_checkpoint(path: Path | str, entire: bool = False) -> dict[str, Any]:
    """Return a checkpoint on the CPU, its tensors mapped from the file: only what is used is read.

    With `entire`, all of it is read first and compared with its checksums.

    Raises FileNotFoundError where there is none, ValueError for a file that is damaged, that holds
    other classes than fairseq's or options that would run code, or that is no checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    stamp = stamp_of(path)
    refuse_damaged(path, weights=entire)
    with naming_damage(path):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ConfigurationError(f"{path} is not a fairseq checkpoint: it holds no model")
    literals.check_state(state, path)
    _KNOWN[path] = stamp, entire, {"cfg": state.get("cfg"), "args": state.get("args")}
    return state


def refuse_not_finite(state: Mapping[str, Any], path: object) -> None:
    """Raise ConfigurationError if a checkpoint's weights are NaN or infinite.

    They are those of a diverged training: a model with them computes only NaN.
    """
    for name, weight in (state.get("model") or {}).items():
        is_real = isinstance(weight, torch.Tensor) and weight.is_floating_point()
        if is_real and not bool(torch.isfinite(weight).all()):
            raise ConfigurationError(
                f"{path}: {name} is not finite: the training has diverged; use a checkpoint from"
                " before"
            )


@contextmanager
def naming_damage(path: Path | str) -> Iterator[None]:
    """Turn what torch raises over a damaged file into a ConfigurationError of one line.

    What the file system refuses (there is no such file, no permission) stays as it is.
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
            f"{path} is damaged or incomplete, or no checkpoint at all ({_first_line(error)});"
            " copy it again if it should be one"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def save_checkpoint(state: dict[str, Any], path: Path | str) -> None:
    """Write a checkpoint so that it is there whole or not at all.

    Raises ConfigurationError if it cannot be written.
    """
    path = Path(path)
    try:
        with whole(path) as part, part.open("wb") as stream:
            torch.save(state, stream)
    except (OSError, RuntimeError) as error:
        # torch's writer covers the file's own error with one of its own
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        raise not_written(path, reason) from error


def save_with_retries(state: dict[str, Any], path: Path) -> None:
    """Save a checkpoint; try again after a pause unless the disk is full."""
    for pause in PAUSES:
        try:
            save_checkpoint(state, path)
            return
        except DiskFullError:
            raise  # no pause helps, and the state of a deep model takes minutes to write
        except ConfigurationError as error:
            logger.warning("%s; trying again in %s seconds", error, pause)
            time.sleep(pause)
    save_checkpoint(state, path)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint so that the copy is there whole or not at all; errors as in saving.

    Never a hard link: `cp other.pt checkpoint_last.pt`, as people type it, would write through it
    into every file that it is linked with.
    """
    try:
        with whole(target) as part:
            shutil.copyfile(source, part)
    except OSError as error:
        raise not_written(target, error) from error


class DiskFullError(ConfigurationError):
    """A checkpoint did not fit on the disk."""


def not_written(path: Path, error: OSError) -> ConfigurationError:
    """Return the error of a checkpoint that could not be written."""
    text = f"{path} was not written: {error.strerror}"
    rest = "Files that were there before are whole"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ConfigurationError(f"{text}. {rest}")
    free = shutil.disk_usage(path.parent).free
    text += f" ({free:,} bytes are free); free some in {path.parent}, and the same command resumes"
    return DiskFullError(f"{text}. {rest}")


def model_arguments(state: Mapping[str, Any]) -> Namespace | None:
    """Return the model's arguments, as new or old fairseq keeps them; None where there are none."""
    model = (state.get("cfg") or {}).get("model") or state.get("args")
    if not model:
        return None
    return Namespace(**(model if isinstance(model, dict) else vars(model)))


def num_updates(state: dict[str, Any]) -> int:
    """Return the updates that a checkpoint's model has been trained for."""
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def periodic_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that fairseq wrote after an epoch or a number of updates."""
    return sorted(path for path in folder.glob("checkpoint*.pt") if _PERIODIC.fullmatch(path.name))


def last_of(trainer: Any) -> Path:
    """Return the checkpoint_last.pt of a trainer, under the name that --checkpoint-suffix gives."""
    name = LAST.replace(".pt", f"{trainer.checkpoint_suffix}.pt")
    return Path(trainer.cfg.checkpoint.save_dir) / name
