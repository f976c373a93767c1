"""What an export was made from; whether it is up to date; putting it in its place, whole."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from fairseq_deepnet.files import put_folder_in_place, remove, say, shown, try_lock
from fairseq_deepnet.provenance import fingerprint, installed, made_now, sha256
from fairseq_deepnet.records import read_record, refuse_changed
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export.layout import HUGGINGFACE, RECORD, SHAPE, is_exported
from fairseq_deepnet.tools.export.stock import required_arguments, scheme_name
from fairseq_deepnet.tools.trained_model import TrainedModel

_EDITIONS: Final = {HUGGINGFACE: 2}
"""Of a format, 1 at first: counted up where the same request leads to other files."""


def make_request(model: TrainedModel, form: str, **more: Any) -> dict[str, Any]:
    """Return all that decides an export; where it is as recorded, there is nothing to do."""
    sources = [fingerprint(path) for path in model.sources]
    return {"format": form, "edition": _EDITIONS.get(form, 1), "checkpoints": sources, **more}


def subword_files(data: DataFolder) -> dict[str, str]:
    """Return each language's sentencepiece model (a Moses folder's codes), by file name.

    Raises FileNotFoundError where there is none.
    """
    paths = {language: data.subword_model(language) for language in data.languages}
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(
                f"{shown(path)} is missing, without which raw text cannot be read; --data FOLDER"
                " names another data folder"
            )
    return {language: path.name for language, path in paths.items()}


def data_digests(data: DataFolder) -> dict[str, str | None]:
    """Return digests of all that decides how raw text goes into its models and comes out again."""
    names = {*subword_files(data).values(), *(path.name for path in data.path.glob("dict*.txt"))}
    names |= {"languages.txt"} if data.is_multilingual else set()
    return {name: sha256(data.path / name) for name in sorted(names)}


def describe(model: TrainedModel, state: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of an export by itself: where its model came from, and when."""
    making = made_now()
    making["versions"] |= {"ctranslate2": installed("ctranslate2")}
    return {
        "format": request["format"],
        "checkpoint": shown(model.path),
        "averaged": model.averaged,
        "num_updates": num_updates(state),
        "scheme": scheme_name(required_arguments(state)),
        "request": request,
        **making,
    }


def may_write(output: Path, request: dict[str, Any], force: bool) -> bool:
    """Return True if an export is to be written; False if the one that is there is up to date.

    An export of ours that is out of date is replaced.

    Raises:
        ValueError: for what this command did not write. `force` has it replaced all the same: a
            file, an empty folder or another CTranslate2 model, but no folder of anything else.
    """
    if not output.exists():
        return True
    found = _recorded(output)
    if found is not None:
        if force or found["request"] != request:
            return True
        fault = _damage(output)
        if fault:
            say(fault)
        return bool(fault)
    if output.is_dir() and any(output.iterdir()) and not is_exported(output):
        raise ValueError(
            f"{shown(output)} is a folder of something else, which even --force does not replace:"
            " choose another --out"
        )
    if not force:
        raise ValueError(
            f"{shown(output)} is there and no export of this command's: choose another --out,"
            " or --force to replace it"
        )
    return True


def _recorded(output: Path) -> dict[str, Any] | None:
    """Return the record of an earlier export here; None where there is none, or a damaged one."""
    try:
        if output.is_dir():
            found = json.loads((output / RECORD).read_bytes())
        else:
            found = load_checkpoint(output).get("export") if output.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "request" in found else None


def _damage(output: Path) -> str:
    """Return why an export that is there cannot be used as it is; empty where it can."""
    try:
        if output.is_dir():
            found = read_record(output / RECORD, SHAPE if is_exported(output) else None)
            refuse_changed(output, found.get("files"), found.get("files") or (), output / RECORD)
        else:
            load_checkpoint(output, entire=True)
    except ValueError as error:
        return str(error)
    return ""


@contextmanager
def export_lock(model: TrainedModel) -> Iterator[None]:
    """Make one export of a checkpoint at a time: another process waits, and finds it done.

    Two would write the same parts. The lock is on the folder of the checkpoint, and goes with the
    process that holds it; where a file system has no locks, nobody waits.
    """
    folder = os.open(model.path.resolve().parent, os.O_RDONLY)
    try:
        with suppress(OSError):
            if not try_lock(folder):
                say(f"waiting for another export of {shown(model.path.parent)}")
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def in_place_of(output: Path) -> Iterator[Path]:
    """Yield where to write a file or folder; at the end it takes the place of `output`, whole."""
    part = output.with_name(output.name + ".part")
    is_new = not output.parent.exists()
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        remove(part)  # what an interrupted one left
        yield part
        put_folder_in_place(part, output)
    finally:
        remove(part)
        if is_new and not any(output.parent.iterdir()):
            output.parent.rmdir()
