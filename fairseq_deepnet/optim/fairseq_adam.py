"""`--optimizer fused_adam`: fairseq's adam for a stack of thousands of layers.

The norm of all gradients, and clipping by it, are a few calls for any number of tensors.
"""

from __future__ import annotations

from collections import defaultdict
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
    """adam's options, numbers, state and class name: a training may resume with either.

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
        """Return the norm of all gradients, float32; the step clips it to `max_norm` if > 0."""
        norm = gradient_norm(self.params) * self._multiply_factor
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            self.multiply_grads(clipping_factor(norm, max_norm))
        return norm

    def step(self, closure: Any = None, groups: Any = None) -> None:
        """Make one update with the gradients times what `multiply_grads` was given.

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


def total_norm(grads: list[Tensor]) -> Tensor:
    """Return the 2-norm of all gradients as one vector, float32, on the first one's device."""
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for grad in grads:
        by_device[grad.device].append(grad)
    norms = [
        torch.stack(torch._foreach_norm(some, 2, dtype=torch.float32)).norm()
        for some in by_device.values()
    ]
    return torch.stack([norm.to(norms[0].device) for norm in norms]).norm()


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the 2-norm of all gradients, float32, as fairseq.utils.clip_grad_norm_ gives it.

    Those of experts are not counted, because each process has others.
    """
    params = list(parameters)
    grads = [p.grad.detach() for p in params if p.grad is not None and not hasattr(p, "expert")]
    if not grads:
        return params[0].new_tensor(0.0) if params else torch.tensor(0.0)
    return total_norm(grads)


def clipping_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return what brings gradients of this norm down to `max_norm`, as fairseq computes it."""
    return (max_norm / (norm + 1e-6)).clamp(max=1)
