"""`--optimizer fused_adam`: fairseq's adam for a stack of thousands of layers."""

from __future__ import annotations

from typing import Any

from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim import adam as stock
from torch import Tensor

from ..errors import ConfigurationError
from .fused_adam import FusedAdam
from .gradients import Reduce, clipping_factor, gradient_norm


@register_optimizer("fused_adam", dataclass=stock.FairseqAdamConfig)
class FairseqAdam(stock.FairseqAdam):
    """adam's options, numbers, state and class name: a training may go on with either.

    fairseq's trainer compares the names of classes when it loads a checkpoint.

    Raises:
        ConfigurationError: for options of adam that this one has no use for.
    """

    def __init__(self, cfg: Any, params: Any) -> None:
        for option in ("fp16_adam_stats", "use_old_adam", "tpu"):
            if getattr(cfg, option, False):
                raise ConfigurationError(
                    f"--optimizer fused_adam has no --{option.replace('_', '-')}; leave it out, or"
                    " choose --optimizer adam"
                )
        # not adam's own constructor, which builds another optimiser and looks for apex
        FairseqOptimizer.__init__(self, cfg)
        self._optimizer = FusedAdam(params, **self.optimizer_config)
        # What gradients are still to be multiplied with, under the name that FP16Optimizer gives
        # it: torch's kernel does that on the way, and saves a walk over all of them.
        self._multiply_factor: float | Tensor = 1.0

    def multiply_grads(self, c: float | Tensor) -> None:
        """Have gradients multiplied with c by the next step; until then `grad` stays as it is."""
        self._multiply_factor = self._multiply_factor * c

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Reduce | None = None) -> Tensor:
        """The norm of all gradients, float32, which the step brings down to `max_norm` if > 0."""
        norm = gradient_norm(self.params) * self._multiply_factor
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            self.multiply_grads(clipping_factor(norm, max_norm))
        return norm

    def step(self, closure: Any = None, groups: Any = None) -> None:
        """One update with the gradients times what `multiply_grads` was told.

        fairseq's `scale` is not taken: it is for optimisers that say `supports_step_with_scale`.
        """
        self._optimizer.factor = self._multiply_factor
        self._multiply_factor = 1.0
        self._optimizer.step(closure)

    def zero_grad(self) -> None:
        """Forget all gradients: once, where fairseq goes through the tensors twice."""
        self._multiply_factor = 1.0
        for p in self.params:
            p.grad = None
