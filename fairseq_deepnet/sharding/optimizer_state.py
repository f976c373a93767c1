"""Conversion between an optimiser's sharded state and the whole state of a checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from fairseq.distributed import utils as distributed
from torch import Tensor

from ..errors import ConfigurationError
from ..optim.fp32_state import WEIGHTS
from .model import ShardedModel

BY_ROWS: Final = "split by rows"
"""Placeholder for a sharded tensor of the optimiser's state."""


def gather(
    model: ShardedModel, state: dict[str, Any], exact: list[Tensor], flat: bool
) -> dict[str, Any] | None:
    """Return the optimiser's state on rank 0 as unsharded training has it.

    Args:
        state: state of this process.
        exact: whole fp32 weights in half precision.
        flat: store one row with all parameters.
    """
    shapes, is_first = model.trained_shapes(), model.exchange.rank == 0
    total = sum(shape.numel() for shape in shapes)
    found: dict[int, dict[str, Any]] = {index: {**one} for index, one in state["state"].items()}
    rows: dict[str, Tensor] = {}
    for key in split_keys(found):
        held = [index for index, one in found.items() if key in one]
        parts = [found[index][key] for index in held]
        if flat:
            rows[key] = torch.zeros(total if is_first else 0)
        places = rows[key].split([s.numel() for s in shapes]) if flat and is_first else ()
        take = functools.partial(_put, found, key, held, places)
        model.exchange.gather(parts, [shapes[i] for i in held], take)
    if not is_first:
        return None
    state = {**state, "state": found}
    if WEIGHTS in state:
        state[WEIGHTS] = [torch.cat([w.reshape(-1) for w in exact])] if flat else exact
    if flat and found:
        group = {**state["param_groups"][0], "params": [0]}
        state |= {"state": {0: {**next(iter(found.values())), **rows}}, "param_groups": [group]}
    return state


def _put(
    found: dict[int, dict[str, Any]],
    key: str,
    held: list[int],
    places: Sequence[Tensor],
    number: int,
    whole: Tensor,
) -> None:
    """Store a whole tensor in the state, or at its place in a row."""
    if places:
        places[held[number]].copy_(whole.reshape(-1))
    else:
        found[held[number]][key] = whole


def scatter(model: ShardedModel, read: Any) -> dict[str, Any]:
    """Return this process's part of the optimiser's state.

    Args:
        read: state that rank 0 has read from the checkpoint.

    Raises:
        ConfigurationError: for a state of other parameters, in every process.
    """
    exchange, shapes = model.exchange, model.trained_shapes()
    own = [one.detach() for one in model.trained()]
    whole: dict[str, Any] = {}
    found: Any = None
    if exchange.rank == 0:
        try:
            whole = _by_parameter(read, shapes)
            found = skeleton(whole)
        except ValueError as error:
            found = str(error)
    found = distributed.broadcast_object(found, 0, exchange.group)
    if isinstance(found, str):
        raise ConfigurationError(found)

    def take(indices: list[int], of: Any) -> list[Tensor]:
        parts = [torch.zeros_like(own[index], dtype=torch.float32) for index in indices]
        exchange.scatter(lambda n: of(indices[n]), parts, [shapes[i] for i in indices])
        return parts

    state = found["state"]
    for key in split_keys(state):
        held = [index for index, one in state.items() if one.get(key) == BY_ROWS]
        parts = take(held, lambda index, key=key: whole["state"][index][key])
        for index, part in zip(held, parts, strict=True):
            state[index][key] = part
    if WEIGHTS in found:
        found[WEIGHTS] = take([*range(len(own))], lambda index: whole[WEIGHTS][index])
    result: dict[str, Any] = found
    return result


def skeleton(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimiser's state without its sharded tensors."""
    numbers = {
        index: {key: BY_ROWS if _is_split(value) else value for key, value in one.items()}
        for index, one in state["state"].items()
    }
    return {**state, "state": numbers, **({WEIGHTS: None} if WEIGHTS in state else {})}


def split_keys(state: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the keys of tensors that are sharded by rows, in the same order in all processes.

    Numbers that some optimisers store as tensors, such as step counts, have no dimension.
    """
    is_split = {k: None for one in state.values() for k, held in one.items() if _is_split(held)}
    return [*is_split]


def _is_split(value: Any) -> bool:
    return value.dim() > 0 if isinstance(value, Tensor) else value == BY_ROWS


def _by_parameter(state: Any, shapes: list[torch.Size]) -> dict[str, Any]:
    """Return a checkpoint's optimiser state with one tensor per parameter.

    Raises:
        ValueError: for a state of other parameters.
    """
    wanted = sum(shape.numel() for shape in shapes)
    state = split(state, shapes)
    count = sum(len(group["params"]) for group in state["param_groups"])
    held = state.get(WEIGHTS)
    found = wanted if held is None else sum(weights.numel() for weights in held)
    fits = count == len(shapes) and found == wanted
    for index, one in state["state"].items():
        tensors = [value for value in one.values() if isinstance(value, Tensor) and value.dim()]
        fits = fits and all(value.shape == shapes[index] for value in tensors)
    if not fits:
        raise ValueError(
            "the checkpoint's optimiser state is of other parameters; train the same parameters as"
            " before, or give --reset-optimizer"
        )
    return state if held is None else {**state, WEIGHTS: parts_of(held, shapes)}


def parts_of(weights: Sequence[torch.Tensor], shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    """Return weights of these shapes from one tensor per parameter or from one row of all."""
    if len(weights) == 1 and len(shapes) > 1:
        weights = weights[0].split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(weights, shapes, strict=True)]


def split(moments: dict[str, Any], shapes: list[torch.Size]) -> dict[str, Any]:
    """Return an optimiser's state for parameters of these shapes from one row of all.

    Values that are not a row of all parameters (Adam's step) apply to each parameter.
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
