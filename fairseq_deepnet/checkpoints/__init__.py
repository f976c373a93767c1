"""Reading and writing fairseq checkpoints: safely, and whole or not at all."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from fairseq_deepnet import compat as _compat  # noqa: F401  (allow-lists fairseq's own classes)


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """A checkpoint on the CPU, its tensors mapped from the file, so that only what is used is read.

    Raises FileNotFoundError where there is none, ValueError for a file that is damaged, that holds
    other classes than fairseq's, or that is no checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        first_line = str(error).strip().splitlines()[0]
        raise ValueError(f"{path} cannot be loaded safely: {first_line}") from error
    except (RuntimeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged or incomplete ({str(error).strip().splitlines()[0]}); "
            "remove it or copy it again"
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError(f"{path} is not a fairseq checkpoint: it holds no model")
    return state


def save_checkpoint(state: dict[str, Any], path: Path | str) -> None:
    """Write a checkpoint so that it is there whole or not at all."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    try:
        torch.save(state, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def num_updates(state: dict[str, Any]) -> int:
    """Updates that a checkpoint's model has been trained for."""
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))
