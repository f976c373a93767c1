"""Writing sentences one position a step: the decoder's layers and what they remember.

Shapes: R = rows (hypotheses), B = sentences, K = R / B hypotheses a sentence, C = channels,
H = heads, S = source positions.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..schemes import Combination
from .decoding_cache import DecodingCache
from .decoding_step import NewestPosition
from .layers import TransformerLayer
from .stack import ActivationCheckpointing, run_layers
from .unpadded import source_projection


class StackOutput(NamedTuple):
    """What came out of a stack: B rows of sentences, or R of hypotheses.

    Args:
        x: the top's output [B, T, C].
        states: the bottom's input and every layer's output, where asked for.
        weights: one layer's cross-attention's [B, H, T, S], where asked for.
    """

    x: Tensor
    states: list[Tensor]
    weights: Tensor | None


class Decoding:
    """One batch on its way through beam search.

    Args:
        layers: the decoder's, in order.
        hypotheses_per_sentence: K, where rows are known to stand together so.
        source: the encoder's output [B, S, C']; None without encoder.
        padding: [B, S], True = may not be attended to; None: nothing is padding.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        hypotheses_per_sentence: int = 1,
        source: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> None:
        self.group = hypotheses_per_sentence
        self.cache = DecodingCache(self.group)
        # What begins without gradients stays without them, in torch's cheapest mode.
        self.inference = not torch.is_grad_enabled()
        project = None
        if source is not None:
            visible = source.new_ones(source.shape[:2]).bool() if padding is None else ~padding
            self.cache.source_mask = visible
            self.source_length = source.size(1)
            project = source_projection(source, visible)
        self.steps = [
            NewestPosition(cast(TransformerLayer, layer), self.cache, project) for layer in layers
        ]

    def step(
        self,
        x: Tensor,
        combination: Combination | None = None,
        alignment_layer: int | None = None,
        keep_states: bool = False,
    ) -> StackOutput:
        """Send the newest position through the layers.

        Args:
            x: embedded, [R, 1, C].
            combination: makes the next layer's input from all outputs so far, x first.
            alignment_layer: whose cross-attention's weights are given.
            keep_states: give x and every layer's output.
        """
        with torch.inference_mode(self.inference):
            alike = self.alike(x)
            if alike > 1:
                self.cache.hypotheses_per_sentence = 1
                x = x[::alike]
            output = self.run(x[:, 0], combination, alignment_layer, keep_states)
            if alike > 1:
                self.cache.repeat(alike)
        # Copies, because nothing may be done in place to what comes out of that mode.
        x, *states = (y.repeat_interleave(alike, dim=0) for y in (output.x, *output.states))
        weights = output.weights
        if weights is not None:
            weights = weights.repeat_interleave(alike, dim=0)
        return StackOutput(x, states, weights)

    def alike(self, x: Tensor) -> int:
        """Return how many neighbouring rows one can stand for: K in a first step from x [R, 1, C].

        All hypotheses of a sentence begin with the same symbol, and differ from then on.
        """
        if self.cache.length or self.group == 1 or any(step.draws for step in self.steps):
            return 1
        grouped = x.view(-1, self.group, x.size(2))
        return self.group if bool((grouped == grouped[:, :1]).all()) else 1

    def run(
        self,
        x: Tensor,
        combination: Combination | None,
        alignment_layer: int | None,
        keep_states: bool,
    ) -> StackOutput:
        """Send rows [R, C] through the layers."""
        alignment: list[Tensor] = []

        def apply(step: NewestPosition, h: Tensor) -> Tensor:
            h, weights = step(h)
            if weights is not None and step.number == alignment_layer:
                alignment.append(self.by_row(weights))
            return h

        self.cache.begin(x.size(0), x.device)
        x, states = run_layers(
            self.steps,
            self.cache.enter(x),
            apply,
            ActivationCheckpointing(),
            combination,
            keep_states,
        )
        self.cache.advance()
        x, *states = (self.cache.leave(y).unsqueeze(1) for y in (x, *states))
        return StackOutput(x, states, alignment[0] if alignment else None)

    def by_row(self, weights: Tensor) -> Tensor:
        """Return weights [B H, K, S'] as [R, H, 1, S] in the caller's order."""
        rows = weights.unflatten(0, (self.cache.sentences, -1)).transpose(1, 2).flatten(0, 1)
        return self.cache.leave(rows)[:, :, None, : self.source_length]

    def reorder(self, new_order: Tensor) -> None:
        """Let row i continue what row new_order[i] wrote. new_order: [R'], each in 0..R-1."""
        with torch.inference_mode(self.inference):
            self.cache.reorder(new_order)
