"""`--optimizer fused_adam`: fairseq's adam, updating thousands of tensors with a few calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim import adam as stock
from torch import Tensor

from ..errors import ConfigurationError
from .fused_adam import FusedAdam

Reduce = Callable[[Tensor], Tensor]


@register_optimizer("fused_adam", dataclass=stock.FairseqAdamConfig)
class FairseqAdam(stock.FairseqAdam):
    """fairseq's adam with fewer kernel calls, but the same options, results, state and class name.

    fairseq's trainer compares class names when it loads a checkpoint, so a run can resume with
    either optimiser.

    Raises:
        ConfigurationError: if an option of adam is not supported.
    """

    def __init__(self, cfg: Any, params: Any) -> None:
        for option in ("fp16_adam_stats", "use_old_adam", "tpu"):
            if getattr(cfg, option, False):
                raise ConfigurationError(
                    f"--optimizer fused_adam has no --{option.replace('_', '-')}; leave it out, or"
                    " choose --optimizer adam"
                )
        # adam's constructor would build another optimiser and look for apex
        FairseqOptimizer.__init__(self, cfg)
        self._optimizer = FusedAdam(params, **self.optimizer_config)
        # Pending factor on the gradients, named as in FP16Optimizer. torch's kernel applies it in
        # the step, which saves a pass over all gradients.
        self._multiply_factor: float | Tensor = 1.0

    def multiply_grads(self, c: float | Tensor) -> None:
        """Multiply gradients by c in the next step, without changing `grad` now."""
        self._multiply_factor = self._multiply_factor * c

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Reduce | None = None) -> Tensor:
        """Return the gradient norm in float32; the next step clips gradients if `max_norm` > 0."""
        norm = gradient_norm(self.params) * self._multiply_factor
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            self.multiply_grads(clipping_factor(norm, max_norm))
        return norm

    def step(self, closure: Any = None, groups: Any = None) -> None:
        """Perform one update, with gradients multiplied by the factors of `multiply_grads`.

        `scale` is not an argument: fairseq passes it only if `supports_step_with_scale` is set.
        """
        self._optimizer.factor = self._multiply_factor
        self._multiply_factor = 1.0
        self._optimizer.step()

    def zero_grad(self) -> None:
        """Drop all gradients in one pass; fairseq's version needs two passes."""
        self._multiply_factor = 1.0
        for p in self.params:
            p.grad = None


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the 2-norm of all gradients in float32, as fairseq.utils.clip_grad_norm_ does.

    Gradients of experts are excluded, because they differ between processes.
    """
    params = list(parameters)
    grads = [p.grad.detach() for p in params if p.grad is not None and not hasattr(p, "expert")]
    if not grads:
        return params[0].new_tensor(0.0) if params else torch.tensor(0.0)
    return torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float32)).norm()


def clipping_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return the factor (at most 1) that reduces `norm` to `max_norm`, as fairseq computes it."""
    return (max_norm / (norm + 1e-6)).clamp(max=1)
