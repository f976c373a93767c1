"""fairseq's half-precision optimisers, with exact resuming and fewer calls.

With --fp16 and --bf16 the optimiser trains fp32 copies of the weights. fairseq saves only the
model's rounded weights and resumes from them. Here the optimiser's state also contains the fp32
weights, `fp32_params` (4 bytes per parameter in addition to fairseq's 12), and the counters that
control fp16's loss scale. Stock fairseq ignores both entries, so it can load such checkpoints.

fairseq's FP16Optimizer has a single flat master tensor with --fp16, but one per weight tensor with
--bf16 or --fp16-no-flatten-grads. In the latter case, it copies each gradient and weight and zeroes
each gradient separately. With `fused_adam`, three calls are enough here, with equal results.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

import torch
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from torch import Tensor

from ..errors import ConfigurationError
from .fused_adam import FairseqAdam

logger = logging.getLogger(__name__)

WEIGHTS: Final = "fp32_params"
"""Key of the fp32 weights: a list with one tensor per parameter, or one flat tensor."""
SCALER: Final = "loss_scaler"
"""Key of the loss scaler's counters; fairseq saves the scale itself as `loss_scale`."""
_COUNTS: Final = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


class _SavedScaler:
    """Mixin that saves the loss scaler's counters in the optimiser's state."""

    scaler: Any

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        if self.scaler is not None:
            state[SCALER] = {name: getattr(self.scaler, name) for name in _COUNTS}
        return state

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super().load_state_dict(state_dict, *args, **kwargs)  # type: ignore[misc]
        if self.scaler is not None:
            counts = state_dict.get(SCALER, {}).items()
            vars(self.scaler).update({name: int(n) for name, n in counts if name in _COUNTS})


class ExactFP16Optimizer(_SavedScaler, FP16Optimizer):
    """fairseq's half-precision optimiser, with the fp32 weights added to its saved state."""

    def state_dict(self) -> dict[str, Any]:
        weights = [weight.detach() for weight in _weights_of(self)]
        return {**super().state_dict(), WEIGHTS: weights}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        saved, weights = state_dict.get(WEIGHTS), _weights_of(self)
        if saved is not None and [w.shape for w in saved] != [w.shape for w in weights]:
            raise ConfigurationError(
                "the checkpoint's optimiser state does not match the trained parameters; train the"
                " same parameters with the same --fp16, --bf16 and --fp16-no-flatten-grads, or give"
                " --reset-optimizer"
            )
        super().load_state_dict(state_dict, *args, **kwargs)
        if saved is None:
            logger.warning(
                "the checkpoint contains no fp32 weights: they are restored from its rounded ones,"
                " so this run does not continue exactly"
            )
            return
        for weight, value in zip(weights, saved, strict=True):
            weight.copy_(value)
        self._sync_fp32_params_to_fp16()  # the checkpoint may have the other half precision


class ExactMemoryEfficientFP16Optimizer(_SavedScaler, MemoryEfficientFP16Optimizer):
    """fairseq's optimiser without fp32 copies of weights; it also saves the scaler's counters."""


def _weights_of(optimizer: Any) -> Sequence[Tensor]:
    """Return an FP16Optimizer's fp32 weights, which fairseq may keep in a dict keyed by device."""
    weights = optimizer.fp32_params
    return list(weights.values()) if isinstance(weights, dict) else weights


class ForeachMasters(ExactFP16Optimizer):
    """FP16Optimizer with one master per tensor; it copies or zeroes many tensors in one call."""

    _needs_sync: bool

    def _trained(self) -> list[tuple[Tensor, Tensor]]:
        """Return each trained weight paired with its master weight."""
        both = zip(self.fp16_params, self.fp32_params, strict=True)
        return [(p, master) for p, master in both if p.requires_grad]

    def _sync_fp16_grads_to_fp32(self) -> None:
        if not self._needs_sync:
            return
        masters, grads = [], []
        for p, master in self._trained():
            if p.grad is None:
                master.grad = torch.zeros_like(p, dtype=torch.float32)
                continue
            if master.grad is None:
                master.grad = torch.empty_like(master)
            masters.append(master.grad)
            grads.append(p.grad)
        if masters:
            torch._foreach_copy_(masters, grads)
        self._needs_sync = False

    @torch.no_grad()
    def _sync_fp32_params_to_fp16(self) -> None:
        pairs = self._trained()
        torch._foreach_copy_([p for p, _ in pairs], [master for _, master in pairs])

    def zero_grad(self) -> None:
        for p in self.fp16_params:
            p.grad = None
        grads = [p.grad for p in self.fp32_params if p.grad is not None]
        if grads:
            torch._foreach_zero_(grads)
        self._needs_sync = False
        if self.scaler is not None:
            self._multiply_factor = 1.0 / float(self.scaler.loss_scale)


# fairseq's trainer compares class names when it loads a checkpoint
ExactFP16Optimizer.__name__ = FP16Optimizer.__name__
ExactMemoryEfficientFP16Optimizer.__name__ = MemoryEfficientFP16Optimizer.__name__
ForeachMasters.__name__ = FP16Optimizer.__name__


def improve(optimizer: Any) -> None:
    """Replace the class of fairseq's half-precision optimiser with this package's subclass."""
    kind = type(optimizer)
    if kind is FP16Optimizer:
        is_fused = isinstance(optimizer.fp32_optimizer, FairseqAdam)
        has_list = is_fused and not optimizer.has_flat_params
        optimizer.__class__ = ForeachMasters if has_list else ExactFP16Optimizer
    elif kind is MemoryEfficientFP16Optimizer:
        optimizer.__class__ = ExactMemoryEfficientFP16Optimizer
