"""The norm of all gradients, and clipping by it, in a few calls for any number of tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]


def total_norm(grads: list[Tensor]) -> Tensor:
    """The 2-norm of all gradients as one vector, float32, on the first one's device."""
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for grad in grads:
        by_device[grad.device].append(grad)
    norms = [
        torch.stack(torch._foreach_norm(some, 2, dtype=torch.float32)).norm()
        for some in by_device.values()
    ]
    return torch.stack([norm.to(norms[0].device) for norm in norms]).norm()


def clip_norm(
    parameters: Iterable[Tensor], max_norm: float, aggregate: Reduce | None = None
) -> Tensor:
    """fairseq.utils.clip_grad_norm_, without a loop over tensors in Python.

    Args:
        max_norm: what the norm is brought down to; 0 only measures.
        aggregate: makes the norm of one process that of all.
    """
    params = list(parameters)
    shared, grads = [], []  # experts are scaled, but not counted: each process has others
    for p in params:
        if p.grad is not None:
            grads.append(p.grad.detach())
            if not hasattr(p, "expert"):
                shared.append(grads[-1])
    if not shared:
        return params[0].new_tensor(0.0) if params else torch.tensor(0.0)
    norm = total_norm(shared)
    if aggregate is not None:
        norm = aggregate(norm)
    if max_norm > 0:
        factor = (float(max_norm) / (norm + 1e-6)).clamp_(max=1)
        # on the CPU it costs nothing to see that there is nothing to do
        if factor.is_cuda or factor != 1:
            torch._foreach_mul_(grads, factor)
    return norm
