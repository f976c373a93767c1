"""What an update does to the parameters themselves: copies before the step, differences after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..anatomy import Stack
from .gradients import LAYER, Slot, arrange


class Step:
    """Copies of parameters, taken before the optimiser's step.

    With half precision the parameters are the model's, not the optimiser's copies in float32: a
    change that the model does not see does not count.

    Args:
        parameters: what to copy, on its device.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.before = {parameter: parameter.detach().clone() for parameter in parameters}

    @torch.no_grad()
    def ratios(self, stacks: Sequence[Stack]) -> dict[str, Any]:
        """|theta_i - theta_{i-1}| / |theta_{i-1}| of every layer."""
        found: dict[Slot, Tensor] = {}
        for stack in stacks:
            for index, layer in enumerate(stack.layers):
                now = [p.detach().float() for p in layer.module.parameters()]
                old = [self.before[p].float() for p in layer.module.parameters()]
                change = torch._foreach_norm(torch._foreach_sub(now, old))
                slot = ("parameter_update_ratio", stack.side.value, LAYER, index)
                found[slot] = _total(change) / _total(torch._foreach_norm(old))
        numbers = torch.stack(list(found.values())).tolist()
        return arrange(dict(zip(found, numbers, strict=True)))


def layer_parameters(stacks: Sequence[Stack]) -> list[nn.Parameter]:
    """The parameters of all layers, each once."""
    layers = [layer.module for stack in stacks for layer in stack.layers]
    return list(dict.fromkeys(p for layer in layers for p in layer.parameters()))


def _total(norms: Sequence[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(list(norms)))
