"""fairseq's commands read files without a look at what is in them; here they are looked at.

A flipped bit in a checkpoint is another weight, in a dictionary or binarised text another word, and
a file that was cut is a traceback of ten lines, or none. Each file is compared with what was
recorded when it was made, as far as anything was: a checkpoint with its own checksums, the files of
a data folder with its corpus.json, the words of a dictionary with what the model was trained with.
"""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import fairseq.checkpoint_utils
import fairseq.data.data_utils
import fairseq.trainer
import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import _code_to_dtype

from ..checkpoints import (
    is_known_whole,
    naming_damage,
    recorded_arguments,
    refuse_damaged,
)
from ..dictionaries import RECORD
from ..errors import ConfigurationError
from ..files import say
from ..records import read_record, refuse_changed
from ..sharding.split_record import check_split
from ..wrapping import wrap

_HEADER = np.dtype([("magic", "S9"), ("version", "<u8"), ("dtype", "u1"), ("count", "<u8")])


def apply() -> None:
    """Wrap what reads checkpoints, dictionaries and binarised text."""
    checkpoints = fairseq.checkpoint_utils
    wrap(checkpoints, "load_checkpoint_to_cpu")(_checked_checkpoint)
    wrap(checkpoints, "load_model_ensemble_and_task")(_checked_ensemble)
    wrap(fairseq.data.data_utils, "load_indexed_dataset")(_checked_dataset)
    wrap(Dictionary, "add_from_file")(_checked_dictionary)
    wrap(fairseq.trainer.Trainer, "load_checkpoint")(_checked_resume)


def _checked_checkpoint(
    load: Any, path: str, *args: Any, split: bool = False, **kwargs: Any
) -> Any:
    """Read a checkpoint whose records are as their checksums say; a split one where asked."""
    with naming_damage(path):
        whole = is_known_whole(path)
        if not whole:
            refuse_damaged(path)
        state = load(path, *args, **kwargs)
        check_split(path, state, split, entire=not whole)
        return state


def _checked_ensemble(load: Any, filenames: list[str], *args: Any, **kwargs: Any) -> Any:
    """Load models that fit the dictionaries and options at hand."""
    try:
        return load(filenames, *args, **kwargs)
    except RuntimeError as error:
        reason = _misfit(error)
        if not reason:
            raise
        raise ConfigurationError(
            f"{', '.join(filenames)} does not fit the data folder's dictionaries or the options:"
            f" {reason}"
        ) from error


def _misfit(error: BaseException | None) -> str:
    """Return what torch first says of weights that do not fit a model; empty for another error."""
    while error is not None and "loading state_dict" not in str(error):
        error = error.__context__
    line = ([] if error is None else str(error).strip().splitlines()[1:]) or [""]
    for words, text in (("Missing key(s)", "it lacks"), ("Unexpected key(s)", "no place for")):
        if words in line[0]:
            first, *others = re.findall(r'"([^"]+)"', line[0])
            return f"{text} {first}" + (f" and {len(others)} more" if others else "")
    return line[0].strip()


def _checked_resume(load: Any, trainer: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    """Load a checkpoint whose training had the dictionaries at hand."""
    path = Path(filename)
    if path.is_file() and trainer.data_parallel_rank == 0:
        before = getattr(recorded_arguments(path), RECORD, None) or {}
        now = getattr(trainer.cfg.model, RECORD, None) or {}
        others = [side for side in before if side in now and before[side] != now[side]]
        if others:
            text = f"{path} was trained with another {others[0]} dictionary than the data folder's"
            if not (args[0] if args else kwargs.get("reset_optimizer")):
                raise ConfigurationError(
                    f"{text}; train on the folder it belongs to, or begin anew with its weights:"
                    " --finetune-from-model"
                )
            say(f"fairseq_deepnet: warning: {text}: its embeddings are taken for other words")
    try:
        return load(trainer, filename, *args, **kwargs)
    except Exception as error:
        if "Cannot load model parameters" not in str(error):
            raise
        if reason := _misfit(error):
            raise ConfigurationError(
                f"{filename} does not fit the model that the options describe: {reason}"
                " (--arch, --residual-scheme, layers, widths and dictionary)"
            ) from error
        raise error.__context__ or error from None  # which fairseq's text hides


def _checked_dictionary(load: Any, dictionary: Any, file: Any) -> Any:
    """Read a dictionary as corpus.json recorded it, every line a word and its count."""
    if not isinstance(file, str):
        return load(dictionary, file)
    path = Path(file)
    _refuse_changed(path.parent, [path.name])
    try:
        return load(dictionary, file)
    except OSError:
        raise
    except Exception as error:  # of a wrong encoding fairseq raises no narrower class
        reason = next(iter(str(error).splitlines()), "")
        raise ConfigurationError(f"{path} is damaged, or no dictionary: {reason}") from error


def _checked_dataset(
    load: Any, path: str, dictionary: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Open binarised text as corpus.json recorded it; without a record, of the right shape.

    One process of a training does it: all of them read the same files, at 1 GB/s.
    """
    distributed = torch.distributed
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        folder, name = Path(path).parent, Path(path).name
        combine = args[1] if len(args) > 1 else kwargs.get("combine", False)
        for number in itertools.count():
            part = f"{name}{number or ''}"
            files = [f"{part}.idx", f"{part}.bin"]
            known = _refuse_changed(folder, files)  # which says, too, what is gone
            if not any((folder / file).is_file() for file in files):
                break
            if not known:
                fault = misshapen(folder / part, dictionary)
                if fault:
                    raise ConfigurationError(f"{folder / part}.{fault}; make the data folder anew")
            if not combine:
                break
    return load(path, dictionary, *args, **kwargs)


def _refuse_changed(folder: Path, names: list[str]) -> bool:
    """Compare files with their folder's corpus.json; False where it does not record them all."""
    record = folder / "corpus.json"
    if not record.is_file():
        return False
    status = record.stat()
    try:
        files = _recorded(record, status.st_size, status.st_mtime_ns)
        refuse_changed(folder, files, names, record)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return all(name in files for name in names)


@functools.lru_cache(maxsize=16)
def _recorded(record: Path, size: int, modified: int) -> dict[str, str]:
    remedy = "copy it again, or make the folder anew"
    return read_record(record, remedy=remedy).get("files") or {}


def misshapen(path: Path, dictionary: Any) -> str:
    """Return what is wrong with binarised text (fairseq's mmap kind), by what its parts say.

    Args:
        path: without the endings.
        dictionary: whose numbers it holds, or None.

    Returns its first fault, after the ending of the file; empty where there is none.
    """
    index, text = path.with_name(f"{path.name}.idx"), path.with_name(f"{path.name}.bin")
    if not (index.is_file() and text.is_file()):
        return f"{'bin' if index.is_file() else 'idx'} is gone, and its other half is there"
    with index.open("rb") as stream:
        raw = stream.read(_HEADER.itemsize)
    if raw.startswith(b"TNTIDX"):
        return ""  # the kind of before, which fairseq checks
    if len(raw) < _HEADER.itemsize:
        return "idx is damaged: it ends within its header"
    header = np.frombuffer(raw, _HEADER)[0]
    kind = _code_to_dtype.get(int(header["dtype"]))
    count = int(header["count"])
    if header["magic"] != b"MMIDIDX" or header["version"] != 1 or kind is None:
        return "idx is damaged, or no index of fairseq's"
    if index.stat().st_size != _HEADER.itemsize + 12 * count:
        return f"idx is damaged: {count:,} sentences are not what its length says"
    if not count:
        return ""
    sizes = np.memmap(index, "<i4", "r", _HEADER.itemsize, count)
    starts = np.memmap(index, "<i8", "r", _HEADER.itemsize + 4 * count, count)
    width = np.dtype(kind).itemsize
    whole = int(starts[0]) == 0 and bool((np.diff(starts) == sizes[:-1] * np.int64(width)).all())
    if not whole or int(sizes.min()) < 1:
        return "idx is damaged: sentences do not follow one another"
    if text.stat().st_size != int(starts[-1]) + int(sizes[-1]) * width:
        return "bin is cut, or belongs to another .idx: its length is another"
    tokens = np.memmap(text, kind, "r")
    if dictionary is not None and np.issubdtype(tokens.dtype, np.integer):
        largest = int(tokens.max())
        if largest >= len(dictionary) or int(tokens.min()) < 0:
            return f"bin holds word {largest}, and the dictionary has {len(dictionary):,}"
    return ""
