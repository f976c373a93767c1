"""Writing sentences one position a step: the decoder's layers and what they remember.

Shapes: R = rows (hypotheses), B = sentences, K = R / B hypotheses a sentence, C = channels,
H = heads, S = source positions.
"""

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from ..schemes import Combination
from .decoding_cache import DecodingCache
from .decoding_step import NewestPosition
from .layers import TransformerLayer
from .stack import ActivationCheckpointing, run_layers


class Decoding:
    """One batch on its way through beam search.

    Args:
        layers: the decoder's, in order.
        hypotheses_per_sentence: K, where rows are known to stand together so.
        source: the encoder's output [R, S, C'], which K rows at a time share; None without encoder.
        padding: [R, S], True = may not be attended to; None: nothing is padding.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        hypotheses_per_sentence: int = 1,
        source: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> None:
        self.cache = DecodingCache(hypotheses_per_sentence)
        if source is not None:
            source = source[::hypotheses_per_sentence]
            visible = source.new_ones(source.shape[:2]).bool()
            self.cache.source_mask = (
                visible if padding is None else ~padding[::hypotheses_per_sentence]
            )
            self.source_length = source.size(1)
        self.steps = [
            NewestPosition(cast(TransformerLayer, layer), self.cache, source) for layer in layers
        ]

    def step(
        self,
        x: Tensor,
        combination: Combination | None = None,
        alignment_layer: int | None = None,
        keep_states: bool = False,
    ) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """The newest position through the layers.

        Args:
            x: embedded, [R, 1, C].
            combination: makes the next layer's input from all outputs so far, x first.
            alignment_layer: whose cross-attention's weights are given.
            keep_states: give x and every layer's output.

        Returns:
            the top's output [R, 1, C], the states alike, and the weights [R, H, 1, S] or None.
        """
        alignment: list[Tensor] = []

        def apply(step: NewestPosition, h: Tensor) -> Tensor:
            h, weights = step(h)
            if weights is not None and step.number == alignment_layer:
                alignment.append(self.by_row(weights))
            return h

        self.cache.begin(x.size(0), x.device)
        x = self.cache.enter(x[:, 0])
        x, states = run_layers(
            self.steps, x, apply, ActivationCheckpointing(), combination, keep_states
        )
        self.cache.advance()
        leave = self.cache.leave
        states = [leave(state)[:, None] for state in states]
        return leave(x)[:, None], states, alignment[0] if alignment else None

    def by_row(self, weights: Tensor) -> Tensor:
        """Weights [B H, K, S'] as [R, H, 1, S] in the caller's order."""
        rows = weights.unflatten(0, (self.cache.sentences, -1)).transpose(1, 2).flatten(0, 1)
        return self.cache.leave(rows)[:, :, None, : self.source_length]

    def reorder(self, new_order: Tensor) -> None:
        """Let row i continue what row new_order[i] wrote. new_order: [R'], each in 0..R-1."""
        self.cache.reorder(new_order)
