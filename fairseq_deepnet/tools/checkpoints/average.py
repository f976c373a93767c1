"""Average the weights of several checkpoints of one model.

The mean of the last checkpoints of a run usually translates a little better than any one of them
(Vaswani et al. 2017, section 6.1, average the last 5 to 20).
"""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from fairseq_deepnet.checkpoints import (
    load_checkpoint,
    model_arguments,
    num_updates,
    periodic_checkpoints,
    save_checkpoint,
)

_SHAPES_THE_MODEL: Final = re.compile(
    r"_name|arch|init|activation_fn|layernorm_embedding|(encoder|decoder|residual|share|no)_.*"
)
_ONLY_FOR_TRAINING: Final = re.compile(
    r"no_(seed_provided|progress_bar|save.*|.*_checkpoints)|.*_layerdrop"
)


def last_checkpoints(folder: Path, count: int) -> list[Path]:
    """Return the `count` latest by updates, of those fairseq writes each epoch or interval.

    Raises ValueError if there are fewer, or if one is damaged.
    """
    if count < 1:
        raise ValueError(f"{count} checkpoints cannot be averaged; ask for at least 1")
    by_updates: dict[int, Path] = {}
    for path in periodic_checkpoints(folder):
        by_updates[num_updates(load_checkpoint(path))] = path
    if len(by_updates) < count:
        raise ValueError(
            f"{folder} holds {len(by_updates)} checkpoints of different updates, not {count}: "
            "average fewer, or train with --keep-last-epochs or --save-interval-updates"
        )
    return [by_updates[updates] for updates in sorted(by_updates)[-count:]]


def shaping_options(state: dict[str, Any]) -> dict[str, Any]:
    """Return the options in a checkpoint that decide what the model computes, if it holds any."""
    return {
        key: value
        for key, value in vars(model_arguments(state) or Namespace()).items()
        if _SHAPES_THE_MODEL.fullmatch(key) and not _ONLY_FOR_TRAINING.fullmatch(key)
    }


def check_same_model(paths: Sequence[Path], states: Sequence[dict[str, Any]]) -> None:
    """Raise ValueError, naming file and difference, unless all states are of one model."""
    first, expected = paths[0], shaping_options(states[0])
    weights = states[0]["model"]
    for path, state in zip(paths[1:], states[1:], strict=True):
        found = shaping_options(state)
        for key in sorted(expected.keys() | found.keys()):
            if expected.get(key) != found.get(key):
                raise ValueError(
                    f"{path} is another model than {first}: "
                    f"{key} is {found.get(key)!r}, not {expected.get(key)!r}"
                )
        differing = sorted(weights.keys() ^ state["model"].keys())
        if differing:
            raise ValueError(f"{path} and {first} do not hold the same parameters: {differing[0]}")
        for name, tensor in state["model"].items():
            if tensor.shape != weights[name].shape:
                raise ValueError(
                    f"{path}: {name} is of shape {tuple(tensor.shape)}, in {first} of shape "
                    f"{tuple(weights[name].shape)}"
                )


def average_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean in the first's dtype, summed in float64; of other types, the last."""
    if not tensors[0].is_floating_point():
        return tensors[-1].clone()
    total = torch.zeros(tensors[0].shape, dtype=torch.float64)
    for tensor in tensors:
        total += tensor
    return (total / len(tensors)).to(tensors[0].dtype)


def average_states(states: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Average the parameters of all states; tensors that share memory (tied ones) stay tied."""
    result: dict[str, torch.Tensor] = {}
    done: dict[tuple[Any, ...], torch.Tensor] = {}
    for name, first in states[0]["model"].items():
        tensors = [state["model"][name] for state in states]
        place = tuple((tensor.data_ptr(), tensor.dtype, tensor.shape) for tensor in tensors)
        if first.numel() == 0 or place not in done:
            done[place] = average_tensors(tensors)
        result[name] = done[place]
    return result


def average_checkpoints(paths: Sequence[Path], output: Path) -> dict[str, Any]:
    """Average the checkpoints in `paths` (oldest first) and write the result to `output`.

    The result carries the last one's configuration and number of updates, but no optimiser state:
    it can be translated with and fine-tuned from, not resumed. Raises ValueError for files that are
    damaged or not of one model.
    """
    states = [load_checkpoint(path, entire=True) for path in paths]
    check_same_model(paths, states)
    result = {key: value for key, value in states[-1].items() if key != "last_optimizer_state"}
    result["model"] = average_states(states)
    result["last_optimizer_state"] = None
    result["averaged"] = [path.name for path in paths]
    output.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(result, output)
    return result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet average`."""
    parser.add_argument(
        "inputs",
        nargs="+",
        type=Path,
        help="checkpoints; or with --last, one run or its checkpoints/",
    )
    parser.add_argument(
        "--last", type=int, metavar="N", help="the N latest epoch or update checkpoints"
    )
    parser.add_argument("--out", type=Path, required=True, help="checkpoint to write")


def run(args: argparse.Namespace) -> int:
    """Average, and print the file written."""
    paths: list[Path] = args.inputs
    if args.last is not None:
        if len(paths) != 1 or not paths[0].is_dir():
            raise ValueError("--last takes one folder: a run, or its checkpoints/")
        inside = paths[0] / "checkpoints"
        paths = last_checkpoints(inside if inside.is_dir() else paths[0], args.last)
    elif any(path.is_dir() for path in paths):
        raise ValueError("a folder needs --last N; otherwise name the checkpoints")
    for path in paths:
        print(f"averaging {path}", file=sys.stderr)
    average_checkpoints(paths, args.out)
    print(args.out)
    return 0
