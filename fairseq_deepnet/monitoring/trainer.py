"""The one place that touches fairseq's trainer: it reports each update to observers.

fairseq has no hook between the gradients of an update and the optimiser's step, nor one around an
update, and a plugin is not given its trainer. So `install` wraps Trainer.__init__, and a trainer
whose model asks to be watched gets wrapped methods of its own; any other is left as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from fairseq.distributed import utils as distributed
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from ..wrapping import wrap

logger = logging.getLogger(__name__)


class Observer:
    """Follows a training; each method does nothing unless overridden.

    `update` counts from 1: the update that is being made. With half precision a try may end
    without one (the loss scale was too high); then it is made again with the next batch.
    """

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        """Before the forward pass; `samples` are the micro-batches, not yet on a device."""

    def gradients(self, trainer: Any, update: int) -> None:
        """Gradients are reduced over processes and not yet clipped: `gradient_scale` to read them.

        Parameters are still those of the update before.
        """

    def end(self, trainer: Any, update: int, made: bool) -> None:
        """After the optimiser's step, or the failed try (`made` is False)."""

    def loaded(self, trainer: Any, update: int) -> None:
        """A checkpoint was loaded, with `update` updates made; 0 where there was none."""

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        """fairseq gives up: gradients are not finite, or the loss scale is at its minimum."""

    def detach(self) -> None:
        """Leave nothing in the model: the observer has failed, and is called no more."""


def gradient_scale(optimizer: Any) -> float:
    """Return what to multiply a parameter's `grad` with: half precision has it scaled, summed."""
    if hasattr(optimizer, "_grad_scaler"):  # --amp, which takes the scale out when it clips
        return 1.0 / float(optimizer.scaler.get_scale())
    return float(getattr(optimizer, "_multiply_factor", 1.0))


def logged(*names: str) -> dict[str, float]:
    """Return what fairseq's meters hold of the update just made, reduced over processes.

    "train" and not "default", which a checkpoint that is loaded replaces by one that nobody fills.
    """
    meters = {name: metrics.get_meter("train", name) for name in names}
    values = {name: getattr(meter, "val", None) for name, meter in meters.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def broadcast_from_rank0(trainer: Any, value: Any) -> Any:
    """Return rank 0's value, in every process of a training."""
    if trainer.data_parallel_world_size == 1:
        return value
    return distributed.broadcast_object(value, 0, trainer.data_parallel_process_group)


def observe(trainer: Any, observers: Sequence[Observer]) -> None:
    """Wrap the methods of one trainer so that each calls the observers."""
    tries = 0  # --amp makes a try again by calling train_step from within
    watching = list(observers)

    def notify(method: str, *args: Any) -> None:
        for observer in tuple(watching):
            try:
                getattr(observer, method)(trainer, *args)
            except Exception:  # a full disk, say: no training is to die of its instruments
                name = type(observer).__name__
                logger.warning("%s has failed and is off from here on", name, exc_info=True)
                watching.remove(observer)
                observer.detach()

    @wrap(trainer, "train_step")
    def watched_step(train_step: Any, samples: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal tries
        update, tries = trainer.get_num_updates() + 1, tries + 1
        try:
            notify("begin", update, samples)
            return train_step(samples, *args, **kwargs)
        except FloatingPointError as error:
            notify("failed", update, error)
            raise
        finally:
            tries -= 1
            if not tries:
                notify("end", update, trainer.get_num_updates() == update)

    @wrap(trainer, "clip_grad_norm")
    def watched_clip(clip: Any, clip_norm: float) -> Any:
        notify("gradients", trainer.get_num_updates() + 1)
        return clip(clip_norm)

    @wrap(trainer, "load_checkpoint")
    def watched_load(load: Any, *args: Any, **kwargs: Any) -> Any:
        state = load(*args, **kwargs)
        notify("loaded", trainer.get_num_updates())
        return state


def install(build_observers: Callable[[Any], Sequence[Observer]]) -> None:
    """Let every trainer that is made from now on ask `build_observers(trainer)` who watches it."""

    @wrap(Trainer, "__init__")
    def initialised(initialise: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        observers = build_observers(self)
        if observers:
            observe(self, observers)
