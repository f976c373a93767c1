"""Copying between half-precision weights and float32 master weights in a few calls.

fairseq's FP16Optimizer has a single flat master tensor with --fp16, but one per weight tensor with
--bf16 or --fp16-no-flatten-grads. In the latter case, it copies each gradient and weight and zeroes
each gradient separately. With `fused_adam`, three calls are enough here, with equal results.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from torch import Tensor

from .fairseq_adam import FairseqAdam
from .fp32_state import ExactFP16Optimizer, ExactMemoryEfficientFP16Optimizer

Pairs = list[tuple[Tensor, Tensor]]


class ForeachMasters(ExactFP16Optimizer):
    """FP16Optimizer with one master per tensor; it copies or zeroes many tensors in one call."""

    _needs_sync: bool

    def _trained(self) -> Pairs:
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


# fairseq's trainer compares class names when it loads a checkpoint.
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
