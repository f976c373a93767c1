"""Running a stack of layers, optionally with activation checkpointing and hidden states."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from ..schemes import Combination

Layer = TypeVar("Layer")
Apply = Callable[[Layer, Tensor], Tensor]


@dataclass(frozen=True)
class ActivationCheckpointing:
    """Activation checkpointing of a stack, in torch's non-reentrant form.

    fairseq's wrapper loses the gradients of a layer whose input needs none (frozen embeddings).

    Args:
        every: layers per segment, of which only the input is stored; 0 stores all activations.
        offload: store the segments' inputs in host memory.
    """

    every: int = 0
    offload: bool = False

    def __call__(self, run: Callable[[Tensor], Any], x: Tensor) -> Any:
        """Return run(x), checkpointed if `every` is set.

        Other inputs of `run`, such as the encoder's output, must be in its closure, because
        arguments would be offloaded once per segment.
        """
        if not self.every or not torch.is_grad_enabled():
            return run(x)
        keep = save_on_cpu(pin_memory=torch.cuda.is_available()) if self.offload else nullcontext()
        with keep:
            return checkpoint(run, x, use_reentrant=False)


def thriftiest_segment(layers: int, stored: float) -> int:
    """Return the segment length k that needs the least memory.

    Memory holds the inputs of N / k segments and, in the backward pass, the activations of the k
    layers of one segment. Whatever k is, checkpointing takes one additional forward pass.

    Args:
        layers: N, number of layers.
        stored: size of the activations that one layer stores, in multiples of its input's size.
    """
    best = max(1, round(math.sqrt(layers / stored)))
    return min(
        (best - 1 or 1, best, best + 1),
        key=lambda k: math.ceil(layers / k) + min(k, layers) * stored,
    )


def run_layers(
    layers: Iterable[Layer],
    x: Tensor,
    apply: Apply[Layer],
    checkpointing: ActivationCheckpointing,
    combination: Combination | None = None,
    keep_states: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Run x through the layers from bottom to top.

    Args:
        layers: the layers in order; iterating over LayerDrop's list skips some of them.
        x: [B, T, C].
        apply: runs one layer on its input.
        checkpointing: activations to store; segments have one layer if `combination` or
            `keep_states` needs the output of every layer.
        combination: computes the next layer's input from x and all layers' outputs so far.
        keep_states: collect x and every layer's output.

    Returns:
        the top layer's output [B, T, C], wider if the scheme has several streams, and the states
        [B, T, C] from bottom to top (empty unless requested).
    """
    present, width = list(layers), x.size(-1)
    each = combination is not None or keep_states
    length = 1 if each else max(checkpointing.every, 1)
    states = [x] if keep_states else []
    outputs = []
    if combination is not None:
        outputs.append(combination.keep(x, 0))
        x = combination(outputs)
    for start in range(0, len(present), length):
        segment = present[start : start + length]
        x = checkpointing(partial(_run_segment, segment, apply), x)
        if keep_states:
            states.append(x[..., :width])
        if combination is not None:
            outputs.append(combination.keep(x, start + 1))
            x = combination(outputs)
    return x, states


def _run_segment(layers: Sequence[Layer], apply: Apply[Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = apply(layer, x)
    return x
