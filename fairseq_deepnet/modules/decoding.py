"""Incremental decoding, one target position per step.

Shapes: R = rows (hypotheses), B = sentences, K = R / B hypotheses per sentence, C = channels,
H = heads, S = source positions, S' = S padded to a multiple of 16.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from ..schemes import Combination
from .decoding_cache import DecodingCache
from .layers import DecoderLayer
from .layers_at_inference import NewestPosition, source_projection
from .stack import ActivationCheckpointing, run_layers


class Decoding:
    """State of one batch in beam search.

    Args:
        layers: the decoder's layers, in order.
        hypotheses_per_sentence: K; the hypotheses of a sentence are adjacent rows.
        source: the encoder's output [B, S, C']; None if there is no encoder.
        padding: source padding [B, S], True = padding; None if there is no padding.
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
        # Inference mode is torch's fastest mode; it is used if gradients are disabled.
        self.inference = not torch.is_grad_enabled()
        project = None
        if source is not None:
            visible = source.new_ones(source.shape[:2]).bool() if padding is None else ~padding
            self.cache.source_mask = visible
            self.source_length = source.size(1)
            project = source_projection(source, visible)
        self.steps = [
            NewestPosition(cast(DecoderLayer, layer), self.cache, project) for layer in layers
        ]

    def step(
        self, x: Tensor, combination: Combination | None = None, alignment_layer: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the newest position through the layers.

        Args:
            x: embedding of the newest position, [R, 1, C].
            combination: computes the next layer's input from x and all layers' outputs so far.
            alignment_layer: index of the layer whose cross-attention weights are returned.

        Returns:
            the top layer's output [R, 1, C], and the attention weights [R, H, 1, S] or None.
        """
        with torch.inference_mode(self.inference):
            alike = self.alike(x)
            if alike > 1:
                self.cache.hypotheses_per_sentence = 1
                x = x[::alike]
            x, weights = self.run(x[:, 0], combination, alignment_layer)
            if alike > 1:
                self.cache.repeat(alike)
        # The caller may modify the copies in place, unlike tensors from inference mode.
        x = x.repeat_interleave(alike, dim=0)
        return x, None if weights is None else weights.repeat_interleave(alike, dim=0)

    def alike(self, x: Tensor) -> int:
        """Return the size of the groups of identical adjacent rows in x [R, 1, C].

        The size is K in the first step if the hypotheses of every sentence are equal, otherwise 1.
        """
        if self.cache.length or self.group == 1 or any(step.draws for step in self.steps):
            return 1
        grouped = x.view(-1, self.group, x.size(2))
        return self.group if bool((grouped == grouped[:, :1]).all()) else 1

    def run(
        self, x: Tensor, combination: Combination | None, alignment_layer: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run rows [R, C] through the layers."""
        alignment: list[Tensor] = []

        def apply(step: NewestPosition, h: Tensor) -> Tensor:
            h, weights = step(h)
            if weights is not None and step.number == alignment_layer:
                alignment.append(self.by_row(weights))
            return h

        self.cache.begin(x.size(0), x.device)
        x = self.cache.enter(x)
        x, _ = run_layers(self.steps, x, apply, ActivationCheckpointing(), combination)
        return self.cache.leave(x).unsqueeze(1), alignment[0] if alignment else None

    def by_row(self, weights: Tensor) -> Tensor:
        """Return weights [B H, K, S'] as [R, H, 1, S], in the caller's row order."""
        rows = weights.unflatten(0, (self.cache.sentences, -1)).transpose(1, 2).flatten(0, 1)
        return self.cache.leave(rows)[:, :, None, : self.source_length]

    def reorder(self, new_order: Tensor) -> None:
        """Make row i continue the hypothesis in row new_order[i]; see `DecodingCache.reorder`."""
        with torch.inference_mode(self.inference):
            self.cache.reorder(new_order)
