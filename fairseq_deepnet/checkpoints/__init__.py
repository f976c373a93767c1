"""Reading and writing fairseq checkpoints: safely, and whole or not at all."""

from __future__ import annotations

import pickle
import re
import shutil
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from fairseq_deepnet import compat as _compat  # noqa: F401  (allow-lists fairseq's own classes)
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.provenance import whole

_PERIODIC: Final = re.compile(
    r"checkpoint(\d+|_\d+_\d+)\.pt"
)  # checkpoint7.pt, checkpoint_7_2000.pt

_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError, OSError)
"""What reading a damaged file raises."""


def refuse_damaged(path: Path | str, weights: bool = True) -> None:
    """Compare the records in a checkpoint with their checksums, which torch.load does not.

    With `weights` all of it is read, at 1 to 3 GB/s; otherwise only what says what it holds.
    Checkpoints in torch's format of before 1.6 have no checksums.

    Raises ConfigurationError for a damaged file.
    """
    with Path(path).open("rb") as stream:
        try:
            if not zipfile.is_zipfile(stream):
                return  # torch's own loader tells what it is
            with zipfile.ZipFile(stream) as file:
                damaged = file.testzip() if weights else None
                for name in file.namelist() if not weights else ():
                    if name.endswith(".pkl"):
                        file.read(name)
        except _DAMAGE as error:
            damaged = _first_line(error)
    if damaged is not None:
        raise ConfigurationError(
            f"{path} is damaged ({damaged}: not what its checksums say); copy it again, or use"
            " another checkpoint"
        )


def load_checkpoint(path: Path | str, entire: bool = False) -> dict[str, Any]:
    """A checkpoint on the CPU, its tensors mapped from the file, so that only what is used is read.

    With `entire`, all of it is read first and compared with its checksums.

    Raises FileNotFoundError where there is none, ValueError for a file that is damaged, that holds
    other classes than fairseq's, or that is no checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    refuse_damaged(path, weights=entire)
    with telling_damage(path):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ConfigurationError(f"{path} is not a fairseq checkpoint: it holds no model")
    return state


@contextmanager
def telling_damage(path: Path | str) -> Iterator[None]:
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
    """Write a checkpoint so that it is there whole or not at all."""
    with whole(Path(path)) as part, part.open("wb") as stream:
        try:
            torch.save(state, stream)
        except RuntimeError as error:  # torch's word for a write that failed
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def model_arguments(state: Mapping[str, Any]) -> Namespace | None:
    """The model's arguments, as new or old fairseq keeps them; None where there are none."""
    model = (state.get("cfg") or {}).get("model") or state.get("args")
    if not model:
        return None
    return Namespace(**(model if isinstance(model, dict) else vars(model)))


def num_updates(state: dict[str, Any]) -> int:
    """Updates that a checkpoint's model has been trained for."""
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def periodic_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that fairseq wrote at the end of an epoch or after a number of updates."""
    return sorted(path for path in folder.glob("checkpoint*.pt") if _PERIODIC.fullmatch(path.name))


def mend_last(folder: Path) -> Path | None:
    """Replace a damaged checkpoint_last.pt by the latest whole checkpoint, and return that one.

    fairseq copies checkpoint_last.pt in place: a run that is killed meanwhile leaves half of it.
    Returns None where there is nothing to mend; raises ValueError where no other can be resumed.
    """
    last = folder / "checkpoint_last.pt"
    if not last.is_file():
        return None
    try:
        load_checkpoint(last, entire=True)
    except ValueError as damage:
        whole: dict[int, Path] = {}
        for path in [*periodic_checkpoints(folder), folder / "checkpoint_best.pt"]:
            try:
                state = load_checkpoint(path, entire=True)
            except (ValueError, FileNotFoundError):
                continue
            if state.get("last_optimizer_state") is not None:
                whole[num_updates(state)] = path
        if not whole:
            raise damage
        best = whole[max(whole)]
        part = last.with_name(last.name + ".part")
        shutil.copy(best, part)
        part.replace(last)
        return best
    return None
