"""`deepnet join`: the ordinary checkpoint that a split one (--use-sharded-state) stands for."""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_deepnet.checkpoints import load_checkpoint, save_checkpoint, stamp_of
from fairseq_deepnet.files import shown
from fairseq_deepnet.optim.fp32_state import WEIGHTS
from fairseq_deepnet.sharding.split_files import BY_ROWS, MODEL, SplitFiles
from fairseq_deepnet.sharding.split_record import SPLIT, remove_unused_rows, rows_folder
from fairseq_deepnet.tools.trained_model import choose_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet join`."""
    parser.epilog = "Example: deepnet join runs/opus100_1000"
    parser.add_argument("target", type=Path, help="run (its best checkpoint) or checkpoint")
    parser.add_argument("--out", type=Path, help="file to write (in the checkpoint's own place)")


def run(args: argparse.Namespace) -> int:
    """Join, and print the file written."""
    path = choose_model(args.target, 0).path
    output = args.out or path
    if output.is_dir():
        raise ValueError(f"{shown(output)} is a folder: name the file to write")
    before = stamp_of(path)
    state = load_checkpoint(path, entire=True, split=True)
    if SPLIT not in state:
        raise ValueError(f"{shown(path)} is no split checkpoint: there is nothing to join")
    rows = rows_folder(path, state)
    output.parent.mkdir(parents=True, exist_ok=True)
    made = output.with_name(f"{output.name}.joined")  # beside what a training writes to meanwhile
    save_checkpoint(joined(state, rows, output.parent), made)
    if args.out is None and not (path.exists() and stamp_of(path) == before):
        made.unlink()
        raise ValueError(
            f"{shown(path)} was written anew meanwhile or removed, by a training: join it when"
            " that has ended, or give --out FILE"
        )
    made.replace(output)
    remove_unused_rows(rows.parent.parent, only=rows)
    print(output)
    return 0


def joined(state: Mapping[str, Any], rows: Path, place: Path) -> dict[str, Any]:
    """Return the ordinary checkpoint that a split one stands for.

    Its tensors lie in a nameless file of the folder `place`, which goes with them: so much memory
    is not needed, only room on the disk.

    Args:
        state: of the small file.
        rows: the folder of the other files.

    Raises:
        OSError: where `place` has no room.
    """
    files, record = SplitFiles(state[SPLIT], rows), state[SPLIT]
    shapes, trained = files.shapes, files.trained
    whole = {key: value for key, value in state.items() if key != SPLIT}
    optimiser = dict(state.get("last_optimizer_state") or {"state": {}})
    split: dict[str, list[int]] = {}  # key of the optimiser's state -> parameters that have it
    for index, one in optimiser["state"].items():
        for key in (key for key, value in one.items() if value == BY_ROWS):
            split.setdefault(key, []).append(index)
    size = sum(shapes[name].numel() for name in trained)
    total = sum(shape.numel() for shape in shapes.values())
    new = room(place, total + size * (len(split) + (WEIGHTS in optimiser)))

    def tensors(names: Sequence[str]) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return tensors to fill, and what the file is to have of them: --fp16 keeps one row."""
        sizes = [shapes[name].numel() for name in names]
        row = new(sum(sizes)) if record["flat"] else None
        parts = [new(count) for count in sizes] if row is None else row.split(sizes)
        made = {name: p.view(shapes[name]) for name, p in zip(names, parts, strict=True)}
        return made, [*made.values()] if row is None else [row]

    model = {name: new(shape.numel()).view(shape) for name, shape in shapes.items()}
    files.read(MODEL, [*shapes], model.items())
    if WEIGHTS in optimiser:
        exact, optimiser[WEIGHTS] = tensors(trained)
        for name, part in exact.items():
            part.copy_(model[name])
    if record["half"]:
        for part in model.values():
            part.copy_(part.to(getattr(torch, record["half"])))
    held = whole["model"].items()
    whole["model"] = {key: model[name] if isinstance(name, str) else name for key, name in held}
    found = {index: dict(one) for index, one in optimiser["state"].items()}
    for key, indices in split.items():
        names = [trained[index] for index in indices]
        # a row has room for those that never had a gradient, too
        parts, saved = tensors(trained if record["flat"] else names)
        files.read(key, names, [(name, parts[name]) for name in names])
        for index, part in zip(indices[: len(saved)], saved, strict=True):
            found[index][key] = part
    if record["flat"] and found:
        found = {0: next(iter(found.values()))}
        optimiser["param_groups"] = [{**optimiser["param_groups"][0], "params": [0]}]
    if "last_optimizer_state" in whole:
        whole["last_optimizer_state"] = {**optimiser, "state": found}
    return whole


def room(place: Path, total: int) -> Callable[[int], Tensor]:
    """Return what makes tensors of so many fp32 numbers, of `total` that lie in a file."""
    with tempfile.TemporaryFile(dir=place) as file:
        os.posix_fallocate(file.fileno(), 0, 4 * total)  # or a full disk would be a SIGBUS
        held = mmap.mmap(file.fileno(), 4 * total)
    used = 0

    def new(count: int) -> Tensor:
        nonlocal used
        used += count
        return torch.frombuffer(held, dtype=torch.float32, count=count, offset=4 * (used - count))

    return new
