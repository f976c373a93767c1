"""torch.compile for a whole stack: one compilation, which its layers share."""

from typing import Any

import torch
from torch import nn


class CompiledLayers:
    """Calls layers through one compiled function while they train.

    A layer's parameters are inputs of the compiled code, and sizes are dynamic, so that a stack of
    any depth compiles one layer forward and backward: once with a mask and once without, and again
    for sizes of 1. Decoding stays uncompiled; so does a layer with hooks (monitoring), which
    compiled code passes over.
    """

    RECOMPILATIONS = 64  # torch's own limit is 8, all stacks together; then it stops compiling

    def __init__(self) -> None:
        from torch._dynamo import config as limits  # takes a second to import

        limits.recompile_limit = max(limits.recompile_limit, self.RECOMPILATIONS)
        self._compiled = torch.compile(call_layer, dynamic=True)

    def __call__(self, layer: nn.Module, *inputs: Any) -> Any:
        if not layer.training or has_hooks(layer):
            return layer(*inputs)
        return self._compiled(layer, *inputs)


def call_layer(layer: nn.Module, *inputs: Any) -> Any:
    """layer(*inputs): how layers are run where nothing is compiled."""
    return layer(*inputs)


def has_hooks(layer: nn.Module) -> bool:
    """Whether anything looks at what goes into or out of a part of the layer."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in layer.modules())
