"""`--optimizer fused_adam`: fairseq's adam for a stack of thousands of layers."""

from __future__ import annotations

from typing import Any

from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim import adam as stock
from torch import Tensor

from ..errors import ConfigurationError
from .fused_adam import FusedAdam
from .gradients import Reduce, clip_norm


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

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Reduce | None = None) -> Tensor:
        """The norm of all gradients, float32, which are brought down to `max_norm` if it is > 0."""
        return clip_norm(self.params, max_norm, aggregate_norm_fn)

    def zero_grad(self) -> None:
        """Forget all gradients: once, where fairseq goes through the tensors twice."""
        for p in self.params:
            p.grad = None
