"""Observers, which follow a run without changing its results."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from fairseq.logging import metrics


class Observer:
    """Base class of observers; each method does nothing unless overridden.

    `update` is the number of the current update, counted from 1. With fp16, an attempt may end
    without an update because the loss scale was too high. The next attempt has the same `update`.
    """

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        """Called before the forward pass; `samples` are the micro-batches, not yet on a device."""

    def gradients(self, trainer: Any, update: int) -> None:
        """Called after gradients have been reduced over processes and before they are clipped.

        The parameters have not been updated yet. `gradient_scale` returns the factor that
        undoes the scaling of the gradients.
        """

    def end(self, trainer: Any, update: int, updated: bool) -> None:
        """Called after the optimiser's step, or after a failed attempt (`updated` is False)."""

    def loaded(self, trainer: Any, update: int) -> None:
        """Called when a checkpoint is loaded or missing; `update` is the number of updates done."""

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        """Called when non-finite gradients or the minimum loss scale make fairseq abort."""

    def detach(self) -> None:
        """Remove all hooks from the model; called if a method of this observer has failed."""


def gradient_scale(optimizer: Any) -> float:
    """Return the factor that undoes half precision's gradient scaling, or 1 if there is none."""
    return float(getattr(optimizer, "_multiply_factor", 1.0))


def logged(*names: str) -> dict[str, float]:
    """Return the values of fairseq's meters for the last update, reduced over processes.

    The meters belong to the aggregator "train", because loading a checkpoint replaces those of
    "default" with meters that are never updated.
    """
    meters = {name: metrics.get_meter("train", name) for name in names}
    values = {name: getattr(meter, "val", None) for name, meter in meters.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def broadcast_from_rank0(trainer: Any, value: Any) -> Any:
    """Return rank 0's value in every process."""
    return gather(trainer, value)[0]


def gather(trainer: Any, value: Any) -> list[Any]:
    """Return the values of all processes, which wait as long as for a checkpoint."""
    values = [value] * trainer.data_parallel_world_size
    if len(values) > 1:
        dist.all_gather_object(values, value, group=trainer.checkpoint_group)
    return values
