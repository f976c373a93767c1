"""Reading and writing fairseq checkpoints: safely, and whole or not at all."""

from __future__ import annotations

import pickle
import re
import shutil
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from fairseq_deepnet.compat import literals  # its package allow-lists fairseq's own classes

_PERIODIC: Final = re.compile(
    r"checkpoint(\d+|_\d+_\d+)\.pt"
)  # checkpoint7.pt, checkpoint_7_2000.pt


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """A checkpoint on the CPU, its tensors mapped from the file, so that only what is used is read.

    Raises FileNotFoundError where there is none, ValueError for a file that is damaged, that holds
    other classes than fairseq's or options that would run code, or that is no checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} cannot be loaded safely: {_first_line(error)}") from error
    except (RuntimeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged or incomplete, or no checkpoint at all ({_first_line(error)});"
            " copy it again if it should be one"
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError(f"{path} is not a fairseq checkpoint: it holds no model")
    literals.check_state(state, path)
    return state


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def save_checkpoint(state: dict[str, Any], path: Path | str) -> None:
    """Write a checkpoint so that it is there whole or not at all."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    try:
        torch.save(state, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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
        load_checkpoint(last)
    except ValueError as damage:
        whole: dict[int, Path] = {}
        for path in [*periodic_checkpoints(folder), folder / "checkpoint_best.pt"]:
            try:
                state = load_checkpoint(path)
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
