"""Time of the phases of an update, from wrapped methods of a trainer; phases do not overlap.

    data        the next batch: collating, and moving it to the device
    forward     the layers and embeddings of both stacks
    loss        the vocabulary projection and the criterion, forward and backward
    backward    the layers and embeddings
    optimiser   zeroing, scaling, clipping, and the step
    rest        fairseq's bookkeeping

The gradient of the decoder's features separates the backward pass of the loss from that of the
layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

PARTS: Final = ("data", "forward", "loss", "backward", "optimiser", "rest")


class Stopwatch:
    """Seconds per phase; the phase that started last is charged.

    Arguments:
        clock: function that returns seconds
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.running: list[str] = []
        self.last = 0.0

    def charge(self) -> None:
        now = self.clock()
        if self.running:
            self.seconds[self.running[-1]] += now - self.last
        self.last = now

    def begin(self, part: str) -> None:
        self.charge()
        self.running.append(part)

    def end(self) -> None:
        self.charge()
        self.running.pop()

    def turn(self, part: str) -> None:
        """Charge the following time to another phase."""
        self.charge()
        if self.running:
            self.running[-1] = part

    def take(self) -> dict[str, float]:
        """Return the seconds so far, and reset them."""
        seconds, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return seconds

    def wrap(
        self, owner: Any, method: str, part: str, seen: Callable[..., None] | None = None
    ) -> None:
        """Charge a method of one object to a phase; `seen` receives its result and arguments."""
        function = getattr(owner, method)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.begin(part)
            try:
                result = function(*args, **kwargs)
                if seen is not None:
                    seen(result, *args)
                return result
            finally:
                self.end()

        setattr(owner, method, timed)


def watch(trainer: Any, watch: Stopwatch) -> None:
    """Attach a stopwatch to fairseq's Trainer."""

    def mark(features: torch.Tensor) -> None:
        if features.requires_grad:
            features.register_hook(lambda gradient: watch.turn("backward"))

    model = trainer.get_model()
    watch.wrap(trainer, "train_step", "rest")
    watch.wrap(trainer, "_prepare_sample", "data")
    watch.wrap(trainer.get_criterion(), "forward", "loss")
    watch.wrap(model.encoder, "forward", "forward")
    if hasattr(model.decoder, "extract_features"):
        watch.wrap(model.decoder, "extract_features", "forward", lambda result, *_: mark(result[0]))
    else:  # torchscale's: projects within its forward
        watch.wrap(model.decoder, "forward", "forward")
        watch.wrap(model.decoder, "output_layer", "loss", lambda _, features: mark(features))
    optimiser = trainer.optimizer
    watch.wrap(optimiser, "backward", "loss")
    for method in ("zero_grad", "multiply_grads", "clip_grad_norm", "step"):
        watch.wrap(optimiser, method, "optimiser")
