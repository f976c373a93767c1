"""Running a stack of layers: activation checkpointing, layer combination, hidden states."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from ..schemes import Combination


@dataclass(frozen=True)
class ActivationCheckpointing:
    """Whether a layer keeps its activations for backward or computes them again.

    torch's non-reentrant form is used and not fairseq's wrapper: that one loses the gradients of
    a layer whose input needs none (frozen embeddings).

    Args:
        enabled: keep only each layer's input.
        offload: keep that input in host memory; implies `enabled`.
    """

    enabled: bool = False
    offload: bool = False

    def __call__(self, layer: Callable[[Tensor], Any], x: Tensor) -> Any:
        """layer(x), cheaper in memory if so set.

        What else a layer reads, such as the encoder's output, it is to hold by itself: an argument
        would be offloaded once a layer.
        """
        if not (self.enabled or self.offload) or not torch.is_grad_enabled():
            return layer(x)
        keep = save_on_cpu(pin_memory=torch.cuda.is_available()) if self.offload else nullcontext()
        with keep:
            return checkpoint(layer, x, use_reentrant=False)


def run_layers(
    layers: Iterable[nn.Module],
    x: Tensor,
    apply: Callable[[nn.Module, Tensor], Tensor],
    combination: Combination | None = None,
    keep_states: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Send x through the layers from the bottom to the top.

    Args:
        layers: the layers in order; LayerDrop leaves some out by how it iterates.
        x: [B, T, C].
        apply: runs one layer on its input.
        combination: makes the next layer's input from all outputs so far, x first.
        keep_states: collect x and every layer's output.

    Returns:
        the top's output [B, T, C], and the states, bottom first (empty unless asked for).
    """
    states = [x] if keep_states else []
    kept = []
    if combination is not None:
        kept.append(combination.keep(x, 0))
        x = combination(kept)
    for number, layer in enumerate(layers, start=1):
        x = apply(layer, x)
        if keep_states:
            states.append(x)
        if combination is not None:
            kept.append(combination.keep(x, number))
            x = combination(kept)
    return x, states
