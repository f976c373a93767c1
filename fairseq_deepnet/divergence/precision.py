"""A checkpoint of half precision, so that fairseq goes on from it in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from ..checkpoints import load_checkpoint, save_checkpoint
from ..compat import fp32_weights


def as_fp32(path: Path, trainer: Any) -> None:
    """Rewrite a checkpoint for fp32, if it is one of half precision: its optimiser, its weights.

    fairseq refuses another optimiser than the one recorded, and its fp16 optimiser keeps Adam's
    moments in one row for all parameters; both are put as the fp32 optimiser has them. The model's
    weights, which are rounded, become the fp32 ones, as far as the checkpoint has them.

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
    model = trainer.get_model()
    parameters = [
        parameter
        for parameter in chain(model.parameters(), trainer.get_criterion().parameters())
        if parameter.requires_grad
    ]
    shapes = [parameter.shape for parameter in parameters]
    moments = dict(state["last_optimizer_state"])
    for name in ("loss_scale", fp32_weights.SCALER):
        moments.pop(name, None)
    weights = moments.pop(fp32_weights.WEIGHTS, None)
    if weights is not None:
        exact = dict(zip(map(id, parameters), _parts(weights, shapes), strict=True))
        for name, tensor in model.state_dict(keep_vars=True).items():  # tied ones by each name
            if id(tensor) in exact:
                state["model"][name] = exact[id(tensor)]
    state["last_optimizer_state"] = split(moments, shapes)
    save_checkpoint(state, path)


def _parts(weights: Sequence[torch.Tensor], shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    """fp32 weights of these shapes, out of one tensor a parameter or one row of all."""
    if len(weights) == 1 and len(shapes) > 1:
        weights = weights[0].split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(weights, shapes, strict=True)]


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
