"""Conversion between an optimiser's sharded state and a checkpoint's full state."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from fairseq.distributed import utils as distributed
from torch import Tensor

from ..errors import ConfigurationError
from ..optim.half_precision import WEIGHTS
from .model import ShardedModel

BY_ROWS: Final = "split by rows"
"""Placeholder for a sharded tensor in the optimiser's state."""


def gather(
    model: ShardedModel, state: dict[str, Any], exact: list[Tensor], flat: bool
) -> dict[str, Any]:
    """On rank 0, return the optimiser's state as in unsharded training; on other ranks, return {}.

    Args:
        state: this process's state.
        exact: full fp32 weights, which are stored if `state` contains fp32 weights.
        flat: store one flat tensor for all parameters, as in fairseq's fp16 checkpoints.
    """
    shapes = model.trained_shapes()
    whole = {
        index: {
            key: model.whole(value, shapes[index]) if _is_split(value) else value
            for key, value in values.items()
        }
        for index, values in state["state"].items()
    }
    if model.rank:
        return {}
    state = {**state, "state": whole}
    if WEIGHTS in state:
        state[WEIGHTS] = [torch.cat([w.reshape(-1) for w in exact])] if flat else exact
    if flat and whole:
        first = next(iter(whole.values()))
        zeros = [torch.zeros(shape.numel()) for shape in shapes]
        rows = {
            key: torch.cat([whole.get(i, {}).pop(key, z).reshape(-1) for i, z in enumerate(zeros)])
            for key in [key for key, value in first.items() if _is_split(value)]
        }
        group = {**state["param_groups"][0], "params": [0]}
        state |= {"state": {0: {**first, **rows}}, "param_groups": [group]}
    return state


def scatter(model: ShardedModel, read: Any) -> dict[str, Any]:
    """Return this process's part of `read`, the checkpoint's optimiser state on rank 0.

    Raises:
        ConfigurationError: in every process, if the checkpoint's parameters do not match.
    """
    shapes, own = model.trained_shapes(), [p.detach() for p in model.trained()]
    whole: Any = _by_parameter(read, shapes) if model.rank == 0 else None
    state: Any = distributed.broadcast_object(whole and skeleton(whole), 0, model.group)
    if state is None:
        raise ConfigurationError(
            "the checkpoint's optimiser state does not match the trained parameters; train the same"
            " parameters as before, or give --reset-optimizer"
        )

    def take(tensor: Tensor | None, index: int) -> Tensor:
        rows = torch.zeros_like(own[index], dtype=torch.float32)
        model.scatter(tensor, rows, shapes[index])
        return rows

    for index, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, str):
                values[key] = take(whole and whole["state"][index][key], index)
    if WEIGHTS in state:
        state[WEIGHTS] = [take(whole and whole[WEIGHTS][i], i) for i in range(len(own))]
    return state


def skeleton(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimiser's state with placeholders instead of sharded tensors."""
    values = {
        index: {key: BY_ROWS if _is_split(value) else value for key, value in values.items()}
        for index, values in state["state"].items()
    }
    return {**state, "state": values, **({WEIGHTS: None} if WEIGHTS in state else {})}


def _is_split(value: Any) -> bool:
    """Return True if a value is a sharded tensor, not a step count (a number or scalar tensor)."""
    return isinstance(value, Tensor) and value.dim() > 0


def _by_parameter(state: Any, shapes: list[torch.Size]) -> dict[str, Any] | None:
    """Return a checkpoint's optimiser state with one tensor per parameter.

    The result is None if the parameters' shapes differ from `shapes`.
    """
    count = sum(shape.numel() for shape in shapes)
    state = split(state, shapes)
    fits = sum(len(group["params"]) for group in state["param_groups"]) == len(shapes)
    for index, values in state["state"].items():
        tensors = filter(_is_split, values.values())
        fits = fits and all(value.shape == shapes[index] for value in tensors)
    weights = state.get(WEIGHTS)
    if weights is not None:
        fits = fits and sum(weight.numel() for weight in weights) == count
    if not fits:
        return None
    return state if weights is None else {**state, WEIGHTS: parts_of(weights, shapes)}


def parts_of(weights: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Return `weights` in these shapes; they are given per parameter or as one flat tensor."""
    if len(weights) == 1 and len(shapes) > 1:
        weights = weights[0].split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(weights, shapes, strict=True)]


def split(moments: dict[str, Any], shapes: list[torch.Size]) -> dict[str, Any]:
    """Split the flat tensors of an optimiser's state, if any, into one tensor per parameter.

    Other values, such as Adam's step, are copied for each parameter.
    """
    (group, *others) = moments["param_groups"]
    if others or len(group["params"]) != 1 or len(shapes) == 1:
        return moments
    state: dict[int, dict[str, Any]] = {index: {} for index in range(len(shapes))}
    for name, value in moments["state"].get(group["params"][0], {}).items():
        parts = [value] * len(shapes)
        if isinstance(value, Tensor) and value.numel() == sum(s.numel() for s in shapes):
            parts = [part.float().clone() for part in parts_of([value.flatten()], shapes)]
        for index, part in enumerate(parts):
            state[index][name] = part
    group = {**group, "params": list(range(len(shapes)))}
    return {**moments, "state": state, "param_groups": [group]}
