"""Observers: parts that follow a training without changing its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq.distributed import utils as distributed
from fairseq.logging import metrics


class Observer:
    """Follows a training; each method does nothing unless overridden.

    `update` counts from 1: it is the update in progress. With fp16 an attempt may end without an
    update, because the loss scale was too high; the next batch then gets the same number.
    """

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        """Before the forward pass; `samples` are the micro-batches, not yet on a device."""

    def gradients(self, trainer: Any, update: int) -> None:
        """Gradients are reduced over processes and not yet clipped: `gradient_scale` to read them.

        Parameters are still those of the update before.
        """

    def end(self, trainer: Any, update: int, made: bool) -> None:
        """After the optimiser's step, or the failed attempt (`made` is False)."""

    def loaded(self, trainer: Any, update: int) -> None:
        """A checkpoint of `update` updates was loaded; 0 if there was none."""

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        """fairseq gives up: gradients are not finite, or the loss scale is at its minimum."""

    def detach(self) -> None:
        """Leave nothing in the model: the observer has failed and is not called again."""


def gradient_scale(optimizer: Any) -> float:
    """Return the factor of a parameter's `grad`, which half precision keeps scaled and summed."""
    return float(getattr(optimizer, "_multiply_factor", 1.0))


def logged(*names: str) -> dict[str, float]:
    """Return the values of fairseq's meters for the last update, reduced over processes.

    "train" and not "default", which a loaded checkpoint replaces by one that is never filled.
    """
    meters = {name: metrics.get_meter("train", name) for name in names}
    values = {name: getattr(meter, "val", None) for name, meter in meters.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def broadcast_from_rank0(trainer: Any, value: Any) -> Any:
    """Return rank 0's value, in every process of a training."""
    if trainer.data_parallel_world_size == 1:
        return value
    return distributed.broadcast_object(value, 0, trainer.data_parallel_process_group)
