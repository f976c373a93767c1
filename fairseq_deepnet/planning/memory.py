"""Memory of a training update on one device: what is always there, and the peak within an update.

An update is followed as fairseq runs it: forward, loss, backward from the top layer to the bottom,
optimiser. Gradients do not exist in the first micro-batch until backward makes them, just as the
activations go: the peak is at the one end or the other, and the plan says which.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from fairseq_deepnet.criterions.chunked import CPU_BLOCK, chunk_rows
from fairseq_deepnet.optim.fused_adam import BUCKET
from fairseq_deepnet.planning import activations
from fairseq_deepnet.planning.activations import FP32, MicroBatch
from fairseq_deepnet.planning.parameters import Parameters
from fairseq_deepnet.planning.setting import CHUNKED, STATES, Model, Training
from fairseq_deepnet.schemes import Side

GIB: Final = 2**30
LEGACY_BUFFER: Final = 2**28
"""Elements of legacy_ddp's buffer, unless the model is smaller."""

HOST_OBJECTS: Final = 8 * 2**10
"""Bytes of host memory a parameter tensor besides its numbers: modules, autograd's nodes, malloc's
rounding. Measured on 50L-50L to 200L-200L of width 8: 5 to 8 KiB. GPUs do not hold them."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Arguments:
        weights: as the model computes with them, and the tables of positions
        masters: the fp32 copy of weights, and of gradients, that fairseq's FP16Optimizer keeps
        optimiser: the optimiser's own state
        communication: buffers of distributed data parallel
        gradients: of all weights, at the end of backward
        activations: kept for backward at the end of the forward pass
        host: modules and other objects, which count where the host's memory is the device's
        loss: the most that the tables of tokens x vocabulary hold at once
        moments: bytes alive at each moment that may be the peak, by its name
    """

    weights: int
    masters: int
    optimiser: int
    communication: int
    host: int
    gradients: int
    activations: int
    loss: int
    moments: dict[str, int]

    @property
    def persistent(self) -> int:
        """What is there between two updates."""
        return self.weights + self.masters + self.optimiser + self.communication + self.host

    @property
    def peak(self) -> int:
        """The most that is alive at once."""
        return max(self.moments.values())

    @property
    def peak_moment(self) -> str:
        """When that is."""
        return max(self.moments, key=lambda name: self.moments[name])


def optimiser_state(training: Training, parameters: Parameters) -> int:
    """Bytes of the optimiser's state, which fairseq holds in fp32 whatever the precision.

    adam keeps two numbers a parameter. adafactor keeps a number a row and one a column of every
    matrix, and a number a parameter of the vectors; not counted, as it is less than a thousandth.
    """
    if training.optimizer == "adafactor":
        return parameters.total * FP32 if training.first_moment else 0
    if training.optimizer == "sgd":
        return parameters.total * training.element if training.first_moment else 0
    return STATES[training.optimizer] * parameters.total * FP32


def optimiser_temporary(training: Training, parameters: Parameters) -> int:
    """Bytes that a step of the optimiser needs for the tensor that it is at.

    fairseq's optimisers go tensor by tensor in Python; the largest counts, which with the flat fp32
    copy of --fp16 is the whole model. adam needs its denominator, adafactor two copies of the
    update; with --memory-efficient-* gradient and weight are brought to fp32 as well. fused_adam
    needs nothing but these, and brings a bucket of tensors to fp32 at a time.
    """
    if training.optimizer == "fused_adam":
        bucket = min(parameters.total, BUCKET + parameters.largest)
        return 2 * bucket * FP32 if training.memory_efficient else 0
    flat = training.flat and not training.memory_efficient
    largest = parameters.total if flat else parameters.largest
    copies = 2 if training.optimizer == "adafactor" else 1
    if training.memory_efficient:
        copies += 2
    return copies * largest * FP32


def communication(training: Training, parameters: Parameters) -> int:
    """Bytes of distributed data parallel: pytorch_ddp's buckets hold all gradients once more.

    With --gradient-as-bucket-view the gradients themselves lie in the buckets. legacy_ddp has one
    buffer of 2^28 elements, or of the model's size.
    """
    if training.devices == 1:
        return 0
    if training.ddp_backend in ("legacy_ddp", "no_c10d"):
        return min(LEGACY_BUFFER, parameters.total) * training.element
    return 0 if training.bucket_view else parameters.total * training.element


def position_tables(model: Model, element: int) -> int:
    """Bytes of sinusoidal positions, which are no parameters."""
    return sum(
        model.positions[side] * model.layers[side].embed_dim * element
        for side in Side
        if not model.learned_positions[side]
    )


def follow(model: Model, training: Training, parameters: Parameters, batch: MicroBatch) -> Memory:
    """Follow one update and note what is alive at each moment."""
    element = training.element
    gradients = parameters.total * element
    masters = 0
    if training.precision != "fp32" and not training.memory_efficient:
        masters = 2 * parameters.total * FP32
    weights = parameters.total * element + position_tables(model, element)
    state = optimiser_state(training, parameters)
    buffers = communication(training, parameters)
    host = 0 if batch.on_gpu else parameters.tensors * HOST_OBJECTS
    walk = _Walk(model, training, parameters, batch)
    base = weights + masters + state + buffers + host
    moments = {name: base + size for name, size in walk.moments().items()}
    moments["optimiser"] = base + gradients + optimiser_temporary(training, parameters)
    return Memory(
        weights=weights,
        masters=masters,
        optimiser=state,
        communication=buffers,
        host=host,
        gradients=gradients,
        activations=walk.kept,
        loss=walk.loss_peak,
        moments=moments,
    )


class _Walk:
    """Forward and backward of one micro-batch: activations and gradients alive, in bytes."""

    def __init__(
        self, model: Model, training: Training, parameters: Parameters, batch: MicroBatch
    ) -> None:
        self.model, self.parameters, self.batch = model, parameters, batch
        self.element = training.element
        # gradients of earlier micro-batches are there from the start
        self.carried = parameters.total * self.element if training.update_freq > 1 else 0
        self.full = {side: activations.layer(batch, model, side) for side in Side}
        self.layers = {side: self._layers(side) for side in Side}
        self.outside = activations.outside(batch, model)
        between = {side: activations.combination(batch, model, side) for side in Side}
        self.kept = self.outside + sum(
            self.layers[side] + model.depths.of(side) * between[side] for side in Side
        )
        self.chunked = training.criterion in CHUNKED
        self.loss_peak = self._chunked_loss() if self.chunked else self._loss()

    def _loss(self) -> int:
        """fp32 log-probabilities; then their gradient in two parts, and the sum of these."""
        table = self.batch.tokens(Side.DECODER) * self.model.vocabulary[1]
        return max(table * (self.element + FP32), 3 * table * FP32)

    def _chunked_loss(self) -> int:
        """Logits and probabilities of a chunk, in half precision a rounded table besides.

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
        return rows * words * (2 * FP32 + rounded) + weight + tokens * width * (FP32 + self.element)

    def _layers(self, side: Side) -> int:
        """What the layers of a side keep."""
        depth = self.model.depths.of(side)
        if not self.model.checkpoint:
            return depth * self.full[side]
        segments = math.ceil(depth / self.model.segments[side])
        return segments * activations.segment(self.batch, self.model, side)

    def moments(self) -> dict[str, int]:
        """The moments that may be the peak, by name."""
        width = self.model.output_dim
        projection = width * self.model.vocabulary[1] * self.element
        return {
            "loss": self.carried + self.kept + self.loss_peak,
            "vocabulary projection": self.carried + self.kept + self._projection(projection),
            "backward through the decoder": self._stack(Side.DECODER, projection),
            "backward through the encoder": self._stack(Side.ENCODER, projection),
            "embeddings": self._embeddings(),
        }

    def _projection(self, weight: int) -> int:
        """Backward through the vocabulary projection: its gradients, and what they come from.

        That is the table's gradient, or of chunks the same gradients in fp32 before they are
        rounded; in fp32 they are these.
        """
        tokens, width = self.batch.tokens(Side.DECODER), self.model.output_dim
        made = weight + tokens * width * self.element
        if not self.chunked:
            return made + tokens * self.model.vocabulary[1] * self.element
        return made * (FP32 // self.element + 1) if self.element < FP32 else made

    def _stack(self, side: Side, projection: int) -> int:
        """The most that is alive while backward goes down one stack.

        It is at the stack's top or at its bottom: from layer to layer activations go and gradients
        come at a steady rate. The table's gradient from the vocabulary projection waits all the
        while, also beside that of earlier micro-batches if the embeddings have their part to add.
        """
        model, batch, shape = self.model, self.batch, self.model.layers[side]
        kept, made = self.kept, projection
        if side is Side.ENCODER:
            made += self.parameters.decoder * self.element
            kept -= self.layers[Side.DECODER]
        if self.carried:
            made = self.carried + (projection if model.share_output else 0)
        working = _working_set(batch, model, side) + shape.embed_dim * shape.ffn_dim * self.element
        if model.checkpoint:  # a segment is computed again, from the input that was kept
            together = min(model.segments[side], model.depths.of(side))
            stream = batch.tokens(side) * shape.embed_dim * batch.element
            working += together * self.full[side] - stream
        below = model.depths.of(side) - 1
        layer = 0 if self.carried else self.parameters.layer[side] * self.element
        change = max(0, below * layer - below * self.layers[side] // model.depths.of(side))
        return kept + made + working + change

    def _embeddings(self) -> int:
        """The gradients of the embeddings, each as large as its table.

        A table that is also the vocabulary projection collects its gradient before it is added to
        that of earlier micro-batches: the projection's part is there from the start, the target's
        is added to it in a third tensor, the source's in place.
        """
        model, sizes = self.model, {}
        for index, side in enumerate(Side):
            table = model.vocabulary[index] * model.layers[side].embed_dim
            sizes[side] = table * self.element
        tied = sizes[Side.DECODER] if model.share_output else 0
        above = self.layers[Side.DECODER]
        gradients = self.carried or tied + self.parameters.decoder * self.element
        waiting = tied if self.carried else 0
        target = gradients + waiting + sizes[Side.DECODER] + tied + self.kept - above
        gradients = self.parameters.total * self.element
        waiting = waiting if model.share_all else 0
        source = gradients + waiting + sizes[Side.ENCODER] + self.outside
        return max(target, source)


def _working_set(batch: MicroBatch, model: Model, side: Side) -> int:
    """Bytes that the backward pass of one layer adds to what it keeps, at its fullest.

    That is where the activation's gradient is taken, with the hidden units' gradient before and
    after it (2 n F); the stream's gradient stands where LayerNorm's input was, and dropout's mask
    has gone. Or it is in the self-attention, after all of the feed-forward branch has gone, if the
    weights are kept (2 n H L, and gradients of queries, keys and values). The decoder also
    collects the gradient of the encoder's output (m C).
    """
    shape, n = model.layers[side], batch.tokens(side)
    stream = n * shape.embed_dim
    feed_forward = 2 * n * shape.ffn_dim * batch.element
    feed_forward -= batch.dropout_mask(stream, shape.dropout)
    attention = 3 * stream * batch.element
    if not batch.is_fused(shape.attention_dropout):
        attention += 2 * n * shape.heads * batch.length(side) * batch.element
    gone = activations.feed_forward(batch, shape, side) + activations.joint(batch, model, side)
    source = batch.tokens(Side.ENCODER) * shape.source_dim if side is Side.DECODER else 0
    return max(feed_forward, attention - gone) + source * batch.element
