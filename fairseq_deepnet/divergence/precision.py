"""A checkpoint of half precision, so that fairseq goes on from it in fp32."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import torch

from ..checkpoints import load_checkpoint, save_checkpoint


def as_fp32(path: Path, trainer: Any) -> None:
    """Rewrite a checkpoint's optimiser for fp32, if it is one of half precision.

    fairseq refuses another optimiser than the one recorded, and its fp16 optimiser keeps Adam's
    moments in one row for all parameters; both are put as the fp32 optimiser has them.

    Arguments:
        trainer: of the half precision, whose parameters are those of the checkpoint
    """
    state = load_checkpoint(path)
    held = getattr(trainer.optimizer, "fp32_optimizer", None)
    held = held or getattr(trainer.optimizer, "wrapped_optimizer", None)
    recorded = state["optimizer_history"][-1]
    if held is None or recorded["optimizer_name"] != type(trainer.optimizer).__name__:
        return
    recorded["optimizer_name"] = type(held).__name__
    shapes = [
        parameter.shape
        for parameter in chain(
            trainer.get_model().parameters(), trainer.get_criterion().parameters()
        )
        if parameter.requires_grad
    ]
    moments = dict(state["last_optimizer_state"])
    moments.pop("loss_scale", None)
    state["last_optimizer_state"] = split(moments, shapes)
    save_checkpoint(state, path)


def split(moments: dict[str, Any], shapes: list[torch.Size]) -> dict[str, Any]:
    """An optimiser's state for parameters of these shapes, if it is one for them in a row.

    Values that are no row of all parameters (Adam's step) are each parameter's.
    """
    sizes = [shape.numel() for shape in shapes]
    rows = moments["state"]
    (group, *others) = moments["param_groups"]
    if others or len(group["params"]) != 1 or len(shapes) == 1:
        return moments
    found: dict[int, dict[str, Any]] = {index: {} for index in range(len(shapes))}
    for name, value in rows.get(group["params"][0], {}).items():
        if isinstance(value, torch.Tensor) and value.numel() == sum(sizes):
            for index, part in enumerate(value.flatten().split(sizes)):
                found[index][name] = part.view(shapes[index]).float().clone()
        else:
            for index in found:
                found[index][name] = value
    group = {**group, "params": list(range(len(shapes)))}
    return {**moments, "state": found, "param_groups": [group]}
