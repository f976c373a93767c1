"""Safe reading and atomic writing of fairseq checkpoints."""

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
_LANGTOKS = ("encoder-langtok", "decoder-langtok", "lang-tok-style", "lang-tok-replacing-bos-eos")
PAUSES: Final = (2.5, 2.5)
"""Seconds to wait for file servers to recover before the second and third attempt to write."""
# such as checkpoint7.pt and checkpoint_7_2000.pt
_PERIODIC: Final = re.compile(r"checkpoint(\d+|_\d+_\d+)\.pt")
_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, OSError)
"""Exceptions that may be raised when a damaged file is read."""

# Checkpoints contain Namespace for model arguments and, with --eval-bleu, numpy's BLEU counts.
# torch.serialization.get_unsafe_globals_in_checkpoint lists nothing else for any optimiser,
# scheduler or form of configuration (cfg or args). torch refuses all other classes.
_REBUILD: Any = np.zeros(0).__reduce__()[0]  # its module differs between versions of numpy
_DTYPES: Final = (type(np.dtype(np.int64)), type(np.dtype(np.float64)))
torch.serialization.add_safe_globals([Namespace, np.ndarray, np.dtype, _REBUILD, *_DTYPES])


def refuse_damaged(path: Path | str, weights: bool = True) -> None:
    """Verify a checkpoint's checksums, which torch.load ignores.

    If `weights` is True, the whole file is read, at 1 to 3 GB/s; otherwise, only its pickled
    structure is read. Files written by torch before 1.6 have no checksums and are not verified.

    Raises:
        ConfigurationError: if the file is damaged or compressed. torch never compresses
            checkpoints, and a small compressed file could expand to fill the memory.
    """
    with Path(path).open("rb") as stream:
        try:
            if not zipfile.is_zipfile(stream):
                return  # torch's loader will report the problem
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
RECEIVERS: Final[list[Receiver]] = []
"""Functions that could process a checkpoint that fairseq loads; only the last one is called."""


@contextmanager
def received_by(receiver: Receiver) -> Iterator[None]:
    """Make fairseq use the return value of `receiver(checkpoint)` for each checkpoint it loads."""
    RECEIVERS.append(receiver)
    try:
        yield
    finally:
        RECEIVERS.pop()


def load_checkpoint(path: Path | str, entire: bool = False) -> dict[str, Any]:
    """Return a checkpoint with CPU tensors that are mapped from the file and read when used.

    If `entire` is True, the whole file is read first to verify its checksums.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file is damaged or not a checkpoint, if it contains classes that fairseq
            does not save, or if its options would run code.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    refuse_damaged(path, weights=entire)
    with naming_damage(path):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ConfigurationError(f"{path} is not a fairseq checkpoint: it contains no model")
    literals.check_state(state, path)
    return state


def refuse_not_finite(state: Mapping[str, Any], path: object) -> None:
    """Raise ConfigurationError if a checkpoint's weights are NaN or infinite.

    Such weights come from a diverged run, and a model with these weights outputs only NaN.
    """
    for name, weight in (state.get("model") or {}).items():
        is_real = isinstance(weight, torch.Tensor) and weight.is_floating_point()
        if is_real and not bool(torch.isfinite(weight).all()):
            raise ConfigurationError(
                f"{path}: {name} is not finite: the run has diverged; use an earlier checkpoint"
            )


@contextmanager
def naming_damage(path: Path | str) -> Iterator[None]:
    """Convert torch's errors about a damaged file into a one-line ConfigurationError.

    File-system errors, such as FileNotFoundError and PermissionError, propagate unchanged.
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
    """Write a checkpoint atomically; raise ConfigurationError if it cannot be written."""
    path = Path(path)
    try:
        with whole(path) as part, part.open("wb") as stream:
            torch.save(state, stream)
    except (OSError, RuntimeError) as error:
        # torch's writer replaces the file system's error with another one
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        raise not_written(path, reason) from error


def save_with_retries(state: dict[str, Any], path: Path) -> None:
    """Save a checkpoint; if this fails, try again after each pause in PAUSES."""
    for pause in PAUSES:
        try:
            save_checkpoint(state, path)
            return
        except DiskFullError:
            raise  # a pause does not help
        except ConfigurationError as error:
            logger.warning("%s; trying again in %s seconds", error, pause)
            time.sleep(pause)
    save_checkpoint(state, path)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint atomically; raise ConfigurationError if it cannot be written.

    If the copy were a hard link, `cp other.pt checkpoint_last.pt` would also overwrite the source.
    """
    try:
        with whole(target) as part:
            shutil.copyfile(source, part)
    except OSError as error:
        raise not_written(target, error) from error


class DiskFullError(ConfigurationError):
    """Error for a checkpoint that could not be written because the disk is full."""


def not_written(path: Path, error: OSError) -> ConfigurationError:
    """Return the error for a checkpoint that could not be written."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (DiskFullError if is_full else ConfigurationError)(
        f"{path} was not written: {error.strerror}. Existing files are intact; rerun to resume"
    )


def model_arguments(state: Mapping[str, Any]) -> Namespace | None:
    """Return the model arguments in a checkpoint of any fairseq version, or None if it has none."""
    model = (state.get("cfg") or {}).get("model") or state.get("args")
    if not model:
        return None
    return Namespace(**(model if isinstance(model, dict) else vars(model)))


def language_tokens(task: Mapping[str, Any]) -> list[str]:
    """Return a multilingual task's options for language tokens, which inference needs as well."""
    if main := (task.get("langtoks") or {}).get("main"):  # from --langtoks or the other options
        task = {**task, "encoder_langtok": main[0], "decoder_langtok": bool(main[1])}
    values = ((f"--{name}", task.get(name.replace("-", "_"))) for name in _LANGTOKS)
    return [name if value is True else f"{name}={value}" for name, value in values if value]


def num_updates(state: dict[str, Any]) -> int:
    """Return the number of updates after which a checkpoint was saved."""
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def periodic_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that fairseq wrote after epochs or at update intervals."""
    return sorted(path for path in folder.glob("checkpoint*.pt") if _PERIODIC.fullmatch(path.name))


def last_of(trainer: Any) -> Path:
    """Return the path of a trainer's checkpoint_last.pt, with --checkpoint-suffix in its name."""
    name = LAST.replace(".pt", f"{trainer.checkpoint_suffix}.pt")
    return Path(trainer.cfg.checkpoint.save_dir) / name
