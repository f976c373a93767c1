"""One update followed from moment to moment: activations and gradients alive.

An update is followed as fairseq runs it: forward, loss, backward from the top layer to the bottom.
Gradients do not exist in the first micro-batch until backward makes them, just as the activations
go: the peak is at the one end of a run of like layers or at the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..criterions.chunked import CPU_BLOCK, chunk_rows
from ..modules import ActivationCheckpointing
from ..schemes import Side
from . import activations
from .activations import MicroBatch
from .parameters import Parameters
from .setting import CHUNKED, FP32, Model, Training

Layout = Mapping[Side, ActivationCheckpointing]
"""What backward keeps of each stack."""


class Walk:
    """Forward and backward of one micro-batch, in bytes, for whatever is kept of the stacks."""

    def __init__(
        self, model: Model, training: Training, parameters: Parameters, batch: MicroBatch
    ) -> None:
        self.model, self.parameters, self.batch = model, parameters, batch
        self.element = training.element
        # gradients of earlier micro-batches are there from the start
        self.gradient = training.gradient
        self.carried = self._gradients(parameters.total) if training.update_freq > 1 else 0
        self.full = {side: activations.layer(batch, model, side) for side in Side}
        self.segment = {side: activations.segment(batch, model, side) for side in Side}
        self.working = {side: self._working(side) for side in Side}
        between = {side: activations.combination(batch, model, side) for side in Side}
        self.outside = activations.outside(batch, model)
        self.between = sum(model.depths.of(side) * between[side] for side in Side)
        self.chunked = training.criterion in CHUNKED
        self.loss_peak = self._chunked_loss() if self.chunked else self._loss()

    def _gradients(self, parameters: int) -> int:
        """Return the bytes of so many parameters' gradients, as they wait for the update's end."""
        return math.ceil(parameters * self.gradient)

    def _loss(self) -> int:
        """Return bytes of fp32 log-probabilities; then their gradient in two parts, and its sum."""
        table = self.batch.tokens(Side.DECODER) * self.model.vocabulary[1]
        return max(table * (self.element + FP32), 3 * table * FP32)

    def _chunked_loss(self) -> int:
        """Return the bytes of a chunk's logits and probabilities, in half precision rounded too.

        Where one kernel writes the gradient into the logits' place, no table of probabilities. If
        that cannot be compiled, a GPU needs this table on top of what is counted.

        The gradients of features and vocabulary projection are made here, in fp32, from a copy of
        the features without padding.
        """
        tokens, width = self.batch.tokens(Side.DECODER), self.model.output_dim
        words = self.model.vocabulary[1]
        rows = min(tokens, chunk_rows(width, words, self.batch.on_gpu))
        rounded = self.element if self.element < FP32 else 0
        # in half precision a chunk's part of the weight's gradient is a tensor of its own: on GPUs
        # in fp32, on the CPU in blocks, rounded and then, for the addition, in fp32
        weight = words * width * FP32
        if rounded:
            on_gpu = self.batch.on_gpu
            part = words * width if on_gpu else min(words * width, CPU_BLOCK)
            weight += part * (FP32 if on_gpu else FP32 + rounded)
        table = rows * words * (2 * FP32 + rounded)
        return table + weight + tokens * width * (FP32 + self.element)

    def layers(self, side: Side, layout: Layout) -> int:
        """Return the bytes that the layers of a side keep."""
        depth, kept = self.model.depths.of(side), layout[side]
        again = kept.recomputed(depth)
        segments = math.ceil(again / kept.every) if again else 0
        return (depth - again) * self.full[side] + segments * self.segment[side]

    def kept(self, layout: Layout) -> int:
        """Return the bytes kept for backward at the end of the forward pass."""
        return self.outside + self.between + sum(self.layers(side, layout) for side in Side)

    def moments(self, layout: Layout) -> dict[str, int]:
        """Return the bytes alive at the moments that may be the peak, by name."""
        width = self.model.output_dim
        projection = width * self.model.vocabulary[1] * self.element
        kept = self.kept(layout)
        return {
            "loss": self.carried + kept + self.loss_peak,
            "vocabulary projection": self.carried + kept + self._projection(projection),
            "backward through the decoder": self._stack(Side.DECODER, projection, layout),
            "backward through the encoder": self._stack(Side.ENCODER, projection, layout),
            "embeddings": self._embeddings(layout),
        }

    def _projection(self, weight: int) -> int:
        """Return bytes of backward through the vocabulary projection: gradients, and their sources.

        That is the table's gradient, or of chunks the same gradients in fp32 before they are
        rounded; in fp32 they are these.
        """
        tokens, width = self.batch.tokens(Side.DECODER), self.model.output_dim
        made = weight + tokens * width * self.element
        if not self.chunked:
            return made + tokens * self.model.vocabulary[1] * self.element
        return made * (FP32 // self.element + 1) if self.element < FP32 else made

    def _stack(self, side: Side, projection: int, layout: Layout) -> int:
        """Return the most bytes alive while backward goes down one stack.

        From layer to layer, or segment to segment, activations go and gradients come at a steady
        rate: the peak is where backward begins or ends with a run of them. The table's gradient
        from the vocabulary projection waits all the while, also beside that of earlier
        micro-batches if the embeddings have their part to add.
        """
        model = self.model
        alive = self.kept(layout) + projection
        if self.carried:
            alive += self.carried - (0 if model.share_output else projection)
        if side is Side.ENCODER:
            alive -= self.layers(Side.DECODER, layout)
            alive += 0 if self.carried else self._gradients(self.parameters.decoder)
        layer = 0 if self.carried else self._gradients(self.parameters.layer[side])
        depth, every = model.depths.of(side), layout[side].every
        again = layout[side].recomputed(depth)
        whole, rest = divmod(again, every) if again else (0, 0)
        most = 0
        for number, length in ((depth - again, 0), (int(rest > 0), rest), (whole, every)):
            if number:
                goes = self.segment[side] if length else self.full[side]
                comes = max(length, 1) * layer
                extra = self._again(side, length, layer) + max(0, (number - 1) * (comes - goes))
                most = max(most, alive + extra)
                alive += number * (comes - goes)
        return most + self.working[side]

    def _again(self, side: Side, length: int, layer: int) -> int:
        """Return the bytes that a segment of so many layers adds when it is computed again.

        All its activations at first, or gradients of its upper layers and the activations of its
        lowest at last; nothing for a plain layer (0).
        """
        if not length:
            return 0
        full, kept = self.full[side], self.segment[side] - activations.RNG_STATE
        return length * full - kept + max(0, (length - 1) * (layer - full))

    def _embeddings(self, layout: Layout) -> int:
        """Return bytes of the embeddings' gradients, each as large as its table.

        A table that is also the vocabulary projection collects its gradient before it is added to
        that of earlier micro-batches: the projection's part is there from the start, the target's
        is added to it in a third tensor, the source's in place.
        """
        model, sizes = self.model, {}
        for index, side in enumerate(Side):
            table = model.vocabulary[index] * model.layers[side].embed_dim
            sizes[side] = table * self.element
        tied = sizes[Side.DECODER] if model.share_output else 0
        above = self.layers(Side.DECODER, layout)
        gradients = self.carried or tied + self._gradients(self.parameters.decoder)
        waiting = tied if self.carried else 0
        target = gradients + waiting + sizes[Side.DECODER] + tied + self.kept(layout) - above
        gradients = self._gradients(self.parameters.total)
        waiting = waiting if model.share_all else 0
        source = gradients + waiting + sizes[Side.ENCODER] + self.outside
        return max(target, source)

    def _working(self, side: Side) -> int:
        """Return the bytes that one layer's backward pass adds to what it keeps, at its fullest.

        That is where the activation's gradient is taken, with the hidden units' gradient before and
        after it (2 n F); the stream's gradient stands where LayerNorm's input was, and dropout's
        mask has gone. Or it is in the self-attention, after all of the feed-forward branch has
        gone, if the weights are kept (2 n H L, and gradients of queries, keys and values). The
        decoder also collects the gradient of the encoder's output (m C). The gradient of the
        layer's largest weight comes on top (C F).
        """
        model, batch = self.model, self.batch
        shape, n = model.layers[side], batch.tokens(side)
        stream = n * shape.embed_dim
        feed_forward = 2 * n * shape.ffn_dim * batch.element
        feed_forward -= batch.dropout_mask(stream, shape.dropout)
        attention = 3 * stream * batch.element
        if not batch.is_fused(shape.attention_dropout):
            attention += 2 * n * shape.heads * batch.length(side) * batch.element
        gone = activations.feed_forward(batch, shape, side) + activations.joint(batch, model, side)
        source = batch.tokens(Side.ENCODER) * shape.source_dim if side is Side.DECODER else 0
        working = max(feed_forward, attention - gone) + source * batch.element
        return working + shape.embed_dim * shape.ffn_dim * self.element
