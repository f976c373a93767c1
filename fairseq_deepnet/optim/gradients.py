"""The norm of all gradients in a few calls for any number of tensors, and clipping by it."""

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


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The 2-norm of all gradients, float32, as fairseq.utils.clip_grad_norm_ gives it.

    Those of experts are not counted, because each process has others.
    """
    params = list(parameters)
    grads = [p.grad.detach() for p in params if p.grad is not None and not hasattr(p, "expert")]
    if not grads:
        return params[0].new_tensor(0.0) if params else torch.tensor(0.0)
    return total_norm(grads)


def clipping_factor(norm: Tensor, max_norm: float) -> Tensor:
    """What brings gradients of this norm down to `max_norm`, as fairseq computes it."""
    return (max_norm / (norm + 1e-6)).clamp(max=1)
