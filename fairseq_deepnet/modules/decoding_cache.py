"""Keys and values that the decoder keeps while beam search writes sentences one position a step.

Shapes: R = rows (hypotheses), B = sentences, K = R / B hypotheses a sentence, H = heads, D = head
channels, T = target positions so far, S = source positions.
"""

from collections.abc import Callable

import torch
from torch import Tensor

KeysValues = tuple[Tensor, Tensor]


class DecodingCache:
    """What one decoder remembers between steps.

    The hypotheses of a sentence share its source keys and values: these are projected once a
    sentence, never copied for each beam, and not touched when beams change places. Target keys and
    values stand in a buffer that doubles when it is full; a change of beams copies it.
    """

    INITIAL_CAPACITY = 32  # positions; doubled when full

    def __init__(self, hypotheses_per_sentence: int = 1) -> None:
        self.length = 0
        self.hypotheses_per_sentence = hypotheses_per_sentence
        self.source_mask: Tensor | None = None  # [B, 1, 1, S], True = may attend
        self._target: dict[int, Tensor] = {}  # layer -> [2, R, H, capacity, D]
        self._source: dict[int, KeysValues] = {}  # layer -> two of [B, H, S, D]

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        """Store a layer's new key and value [R, H, 1, D]; gives all so far, [R, H, T + 1, D]."""
        end = self.length + key.size(2)
        buffer = self._target.get(layer)
        if buffer is None or buffer.size(3) < end:
            buffer = self._grown(buffer, key, end)
            self._target[layer] = buffer
        buffer[0, :, :, self.length : end] = key
        buffer[1, :, :, self.length : end] = value
        return buffer[0, :, :, :end], buffer[1, :, :, :end]

    def _grown(self, buffer: Tensor | None, like: Tensor, end: int) -> Tensor:
        rows, heads, _, head_dim = like.shape
        capacity = max(self.INITIAL_CAPACITY, 2 * end)
        grown = like.new_empty((2, rows, heads, capacity, head_dim))
        if buffer is not None:
            grown[:, :, :, : self.length] = buffer[:, :, :, : self.length]
        return grown

    def source(self, layer: int, project: Callable[[], KeysValues]) -> KeysValues:
        """A layer's source keys and values [B, H, S, D], projected at the first call."""
        if layer not in self._source:
            self._source[layer] = project()
        return self._source[layer]

    def advance(self, positions: int = 1) -> None:
        """Count the positions of a finished step, once all layers have appended theirs."""
        self.length += positions

    def reorder(self, new_order: Tensor) -> None:
        """Let row i continue what row new_order[i] wrote. new_order: [R'], each in 0..R-1."""
        if self._target:
            rows = next(iter(self._target.values())).size(1)
            identity = torch.arange(rows, device=new_order.device)
            if not torch.equal(new_order, identity):
                for layer, buffer in self._target.items():
                    self._target[layer] = buffer.index_select(1, new_order)
        self._reorder_source(new_order)

    def _reorder_source(self, new_order: Tensor) -> None:
        """Follow sentences that ended; share no more if a sentence's rows were torn apart."""
        if not self._source:
            return
        group = self.hypotheses_per_sentence
        sentences = torch.div(new_order, group, rounding_mode="floor")
        if new_order.numel() % group == 0:
            grouped = sentences.view(-1, group)
            if torch.equal(grouped, grouped[:, :1].expand_as(grouped)):
                sentences = grouped[:, 0]
            else:
                self.hypotheses_per_sentence = 1
        else:
            self.hypotheses_per_sentence = 1
        batch = next(iter(self._source.values()))[0].size(0)
        if torch.equal(sentences, torch.arange(batch, device=sentences.device)):
            return
        for layer, (key, value) in self._source.items():
            self._source[layer] = (key.index_select(0, sentences), value.index_select(0, sentences))
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, sentences)
