"""A checkpoint of half precision is read so that fairseq goes on from it in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import torch
from fairseq import checkpoint_utils

from ..optim import fp32_state as fp32_weights
from ..wrapping import wrap

HALF: Final = ("FP16Optimizer", "MemoryEfficientFP16Optimizer", "AMPOptimizer")
"""fairseq's optimisers of half precision; each holds one of fp32."""


def read_as_fp32(trainer: Any) -> None:
    """Let a trainer of fp32 load checkpoints of half precision, too, which fairseq refuses."""

    @wrap(trainer, "load_checkpoint")
    def load_checkpoint(load: Any, *args: Any, **kwargs: Any) -> Any:
        read = checkpoint_utils.load_checkpoint_to_cpu
        checkpoint_utils.load_checkpoint_to_cpu = lambda *a, **k: as_fp32(read(*a, **k), trainer)
        try:
            return load(*args, **kwargs)
        finally:
            checkpoint_utils.load_checkpoint_to_cpu = read


def as_fp32(state: dict[str, Any], trainer: Any) -> dict[str, Any]:
    """Return a checkpoint of half precision as one of fp32; any other as it is.

    fairseq refuses another optimiser than the one recorded, and its fp16 optimiser keeps Adam's
    moments in one row for all parameters; both are put as the fp32 optimiser has them. The model's
    weights, which are rounded, become the fp32 ones, as far as the checkpoint has them.

    Args:
        state: of the checkpoint, which is changed
        trainer: whose parameters are those of the checkpoint
    """
    recorded = state["optimizer_history"][-1]
    wanted = type(trainer.optimizer).__name__
    if recorded["optimizer_name"] not in HALF or wanted in HALF:
        return state
    recorded["optimizer_name"] = wanted
    model = trainer.get_model()
    every = chain(model.parameters(), trainer.get_criterion().parameters())
    parameters = [parameter for parameter in every if parameter.requires_grad]
    shapes = [parameter.shape for parameter in parameters]
    moments = dict(state["last_optimizer_state"])
    for name in ("loss_scale", fp32_weights.SCALER):
        moments.pop(name, None)
    weights = moments.pop(fp32_weights.WEIGHTS, None)
    if weights is not None:
        exact = dict(zip(map(id, parameters), parts_of(weights, shapes), strict=True))
        for name, tensor in model.state_dict(keep_vars=True).items():  # tied ones by each name
            if id(tensor) in exact:
                state["model"][name] = exact[id(tensor)]
    state["last_optimizer_state"] = split(moments, shapes)
    return state


def parts_of(weights: Sequence[torch.Tensor], shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    """Return weights of these shapes, out of one tensor a parameter or one row of all."""
    if len(weights) == 1 and len(shapes) > 1:
        weights = weights[0].split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(weights, shapes, strict=True)]


def split(moments: dict[str, Any], shapes: list[torch.Size]) -> dict[str, Any]:
    """Return an optimiser's state for parameters of these shapes, out of one row of all.

    Values that are no row of all parameters (Adam's step) are each parameter's.
    """
    (group, *others) = moments["param_groups"]
    if others or len(group["params"]) != 1 or len(shapes) == 1:
        return moments
    found: dict[int, dict[str, Any]] = {index: {} for index in range(len(shapes))}
    for name, value in moments["state"].get(group["params"][0], {}).items():
        numbers = sum(shape.numel() for shape in shapes)
        parts = [value] * len(shapes)
        if isinstance(value, torch.Tensor) and value.numel() == numbers:
            parts = [part.float().clone() for part in parts_of([value.flatten()], shapes)]
        for index, part in enumerate(parts):
            found[index][name] = part
    group = {**group, "params": list(range(len(shapes)))}
    return {**moments, "state": found, "param_groups": [group]}
