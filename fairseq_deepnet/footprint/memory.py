"""Memory of a training update on one device: what is always there, and the peak within an update.

Gradients do not exist in the first micro-batch until backward makes them, just as the activations
go: the peak is at the one end of a run of like layers or at the other.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from ..criterions.chunked import CPU_BLOCK, chunk_rows
from ..optim.fused_adam import BUCKET
from ..schemes import Side
from . import CHUNKED, FP32, STATES, Model, Parameters, Training, activations
from .activations import MicroBatch

GIB: Final = 2**30
SENTENCE_LENGTH: Final = 32
"""Subwords of a sentence by default."""
OVERHEAD_GIB: Final = {"gpu": 1.5, "cpu": 0.5}
"""Memory of a process besides tensors: on a GPU context, workspaces and NCCL's buffers; on the CPU
Python, torch and fairseq."""
FRAGMENTATION: Final = 0.05
"""Share of the tensors' peak that the allocator loses on top."""
LEGACY_BUFFER: Final = 2**28
"""Elements of legacy_ddp's buffer, unless the model is smaller."""
HOST_OBJECTS: Final = 8 * 2**10
"""Bytes of host memory per parameter tensor besides its numbers, on the CPU. Measured on 50L-50L to
200L-200L of width 8: 5 to 8 KiB."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Args:
        weights: with the tables of positions
        masters: the fp32 copy of weights and gradients of fairseq's FP16Optimizer
        gathered: whole tensors of a sharded model while it computes
        gradients: of all weights, at the end of backward
        activations: kept for backward at the end of the forward pass
        host: modules and other objects on the CPU
        loss: the most that the tables of tokens x vocabulary hold at once
        moments: bytes alive at each moment that may be the peak, by its name
    """

    weights: int
    masters: int
    optimiser: int
    communication: int
    gathered: int
    host: int
    gradients: int
    activations: int
    loss: int
    moments: dict[str, int]

    @property
    def persistent(self) -> int:
        """Bytes that remain between two updates."""
        return self.weights + self.masters + self.optimiser + self.communication + self.host

    @property
    def peak(self) -> int:
        """Most bytes alive at once."""
        return max(self.moments.values())

    def needed_gib(self, on_gpu: bool) -> float:
        """Return the GiB that a device must have: the peak, the allocator's loss, the process."""
        return self.peak / GIB * (1 + FRAGMENTATION) + OVERHEAD_GIB["gpu" if on_gpu else "cpu"]


def follow(model: Model, training: Training, parameters: Parameters, batch: MicroBatch) -> Memory:
    """Return the bytes of one update, part by part and at each moment."""
    element = training.element
    gradients = math.ceil(parameters.total * training.gradient)
    weights, state = parameters.total * element, optimiser_state(training, parameters)
    passing = 0
    if training.sharded:
        held = 0 if training.offload else 1 / training.devices
        weights, state = math.ceil(parameters.total * FP32 * held), math.ceil(state * held)
        passing = _gathered(model, training, parameters)
    has_masters = not (
        training.precision == "fp32" or training.memory_efficient or training.sharded
    )
    walk = Walk(model, training, parameters, batch)
    memory = Memory(
        weights=weights + position_tables(model, element),
        masters=2 * parameters.total * FP32 * has_masters,
        optimiser=state,
        communication=_communication(training, parameters),
        gathered=passing,
        host=0 if batch.on_gpu else parameters.tensors * HOST_OBJECTS,
        gradients=gradients,
        activations=walk.kept,
        loss=walk.loss_peak,
        moments={},
    )
    base = memory.persistent
    moments = {name: base + passing + size for name, size in walk.moments().items()}
    moments["optimiser"] = base + gradients + _optimiser_temporary(training, parameters)
    return dataclasses.replace(memory, moments=moments)


# Between two updates


def optimiser_state(training: Training, parameters: Parameters) -> int:
    """Return the bytes of the optimiser's state, which fairseq holds in fp32 in any precision.

    adafactor's number per row and column is less than a thousandth and is not counted.
    """
    if training.optimizer == "adafactor":
        return parameters.total * FP32 if training.first_moment else 0
    if training.optimizer == "sgd":
        return parameters.total * training.element if training.first_moment else 0
    return STATES[training.optimizer] * parameters.total * FP32


def position_tables(model: Model, element: int) -> int:
    """Return the bytes of sinusoidal positions, which are no parameters."""
    return sum(
        model.positions[side] * model.layers[side].embed_dim * element
        for side in Side
        if not model.learned_positions[side]
    )


def _communication(training: Training, parameters: Parameters) -> int:
    """Return the bytes of data parallel: pytorch_ddp's buckets hold all gradients once more.

    With --gradient-as-bucket-view the gradients themselves lie in the buckets. legacy_ddp has one
    buffer of 2^28 elements, or of the model's size.
    """
    if training.devices == 1 or training.sharded:
        return 0
    if training.ddp_backend in ("legacy_ddp", "no_c10d"):
        return min(LEGACY_BUFFER, parameters.total) * training.element
    return 0 if training.bucket_view else parameters.total * training.element


# The optimiser's step


def _optimiser_temporary(training: Training, parameters: Parameters) -> int:
    """Return the bytes that a step of the optimiser needs for the tensor that it is at.

    The largest tensor counts, which with the flat fp32 copy of --fp16 is the whole model. adam
    needs its denominator, adafactor two copies of the update; with --memory-efficient-* gradient
    and weight are brought to fp32 as well, by fused_adam a bucket of tensors at a time.
    """
    if training.optimizer == "fused_adam":
        bucket = min(parameters.total, BUCKET + parameters.largest)
        return 2 * bucket * FP32 if training.memory_efficient else 0
    flat = training.flat and not (training.memory_efficient or training.sharded)
    largest = parameters.total if flat else parameters.largest
    if training.sharded:
        largest = 0 if training.offload else math.ceil(parameters.largest / training.devices)
    copies = 2 if training.optimizer == "adafactor" else 1
    if training.memory_efficient:
        copies += 2
    return copies * largest * FP32


# What `--ddp-backend fully_sharded` holds besides 1 / n of every tensor: units that are gathered


def unit_length(layer_bytes: int, segment: int, unit_bytes: int) -> int:
    """Return how many layers are gathered together.

    As many as stay within `unit_bytes`, and at least one; in whole segments of activation
    checkpointing where these are smaller.
    """
    length = max(1, unit_bytes // max(layer_bytes, 1))
    if segment > 1:
        length = length // segment * segment or segment
    return length


def _gathered(model: Model, training: Training, parameters: Parameters) -> int:
    """Return the bytes of gathered parameters and unsplit gradients, at the most.

    The root's unit, embeddings and vocabulary projection, is whole all the time. Of the layers: a
    unit that computes and the next one, with their buffers; the first one's gradient, and what is
    sent of it in fp32, while the one before is still on its way. Without resharding all of them.
    """
    element, unit = training.element, 0
    for side in Side:
        depth = model.depths.of(side)
        each = getattr(parameters, side.value) // max(depth, 1)
        segment = model.checkpointing[side].every
        unit = max(
            unit, each * min(depth, unit_length(each * element, segment, training.unit_bytes))
        )
    root = parameters.embeddings + parameters.projection
    held = root * element + unit * (element + 2 * FP32)
    if training.reshard:
        return held + 2 * unit * element
    layers = parameters.total - root
    summed = parameters.total * FP32 if training.update_freq > 1 else 0
    return held + layers * element + summed


# Forward and backward


class Walk:
    """Forward and backward of one micro-batch, in bytes.

    Attributes:
        full, segment, stacks: kept by a plain layer, a checkpointed segment, all layers of a side
        kept: for backward at the end of the forward pass
        carried: gradients of earlier micro-batches
    """

    def __init__(
        self, model: Model, training: Training, parameters: Parameters, batch: MicroBatch
    ) -> None:
        self.model, self.parameters, self.batch = model, parameters, batch
        self.element, self.gradient = training.element, training.gradient
        self.carried = self._gradients(parameters.total) if training.update_freq > 1 else 0
        self.full = {side: activations.layer(batch, model, side) for side in Side}
        self.segment = {side: activations.segment(batch, model, side) for side in Side}
        self.stacks = {}
        for side in Side:
            depth, every = model.depths.of(side), model.checkpointing[side].every
            again = math.ceil(depth / every) * self.segment[side] if every else 0
            self.stacks[side] = again or depth * self.full[side]
        self.outside = activations.outside(batch, model)
        self.kept = self.outside + sum(self.stacks.values())
        for side in Side:
            self.kept += model.depths.of(side) * activations.combination(batch, model, side)
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

        The gradients of features and vocabulary projection are made here, in fp32, from a copy of
        the features without padding.
        """
        tokens, width = self.batch.tokens(Side.DECODER), self.model.output_dim
        words, on_gpu = self.model.vocabulary[1], self.batch.on_gpu
        rows = min(tokens, chunk_rows(width, words, on_gpu))
        rounded = self.element if self.element < FP32 else 0
        # in half precision a chunk's part of the weight's gradient is a tensor of its own: on GPUs
        # in fp32, on the CPU in blocks, rounded and then, for the addition, in fp32
        weight = words * width * FP32
        if rounded:
            part = words * width if on_gpu else min(words * width, CPU_BLOCK)
            weight += part * (FP32 if on_gpu else FP32 + rounded)
        return rows * words * (2 * FP32 + rounded) + weight + tokens * width * (FP32 + self.element)

    def moments(self) -> dict[str, int]:
        """Return the bytes alive at the moments that may be the peak, by name."""
        model, tokens = self.model, self.batch.tokens(Side.DECODER)
        weight = model.output_dim * model.vocabulary[1] * self.element
        # backward through the vocabulary projection: gradients of the weight and of the features;
        # of chunks the same in fp32 before they are rounded, else the logits' gradient, too
        projection = weight + tokens * model.output_dim * self.element
        if not self.chunked:
            projection += tokens * model.vocabulary[1] * self.element
        elif self.element < FP32:
            projection *= FP32 // self.element + 1
        return {
            "loss": self.carried + self.kept + self.loss_peak,
            "vocabulary projection": self.carried + self.kept + projection,
            "backward through the decoder": self._stack(Side.DECODER, weight),
            "backward through the encoder": self._stack(Side.ENCODER, weight),
            "embeddings": self._embeddings(),
        }

    def _stack(self, side: Side, projection: int) -> int:
        """Return the most bytes alive while backward goes down one stack.

        Activations go and gradients come at a steady rate: the peak is where backward begins or
        ends with a run of layers or segments. The gradient of the vocabulary projection waits.
        """
        model = self.model
        alive = self.kept + projection
        if self.carried:
            alive += self.carried - (0 if model.share_output else projection)
        if side is Side.ENCODER:
            alive -= self.stacks[Side.DECODER]
            alive += 0 if self.carried else self._gradients(self.parameters.decoder)
        layer = 0 if self.carried else self._gradients(self.parameters.layer[side])
        depth, every = model.depths.of(side), model.checkpointing[side].every
        whole, rest = divmod(depth, every) if every else (0, 0)
        runs = ((int(rest > 0), rest), (whole, every)) if every else ((depth, 0),)
        most = 0
        for number, length in runs:
            if number:
                goes = self.segment[side] if length else self.full[side]
                comes = max(length, 1) * layer
                extra = self._again(side, length, layer) + max(0, (number - 1) * (comes - goes))
                most = max(most, alive + extra)
                alive += number * (comes - goes)
        return most + self._working(side)

    def _again(self, side: Side, length: int, layer: int) -> int:
        """Return the bytes that a segment of so many layers adds when it is computed again.

        All its activations at first, or gradients of its upper layers and the activations of its
        lowest at last.
        """
        if not length:
            return 0
        full, kept = self.full[side], self.segment[side] - activations.RNG_STATE
        return length * full - kept + max(0, (length - 1) * (layer - full))

    def _embeddings(self) -> int:
        """Return bytes of the embeddings' gradients, each as large as its table.

        The gradient of a tied table has the projection's part from the start; the target's is added
        to it in a third tensor, the source's in place.
        """
        model = self.model
        source, target = (
            words * shape.embed_dim * self.element
            for words, shape in zip(model.vocabulary, model.layers.values(), strict=True)
        )
        tied = target if model.share_output else 0
        gradients = self.carried or tied + self._gradients(self.parameters.decoder)
        waiting = tied if self.carried else 0
        target += gradients + waiting + tied + self.kept - self.stacks[Side.DECODER]
        waiting = waiting if model.share_all else 0
        source += self._gradients(self.parameters.total) + waiting + self.outside
        return max(target, source)

    def _working(self, side: Side) -> int:
        """Return the bytes that one layer's backward pass adds to what it keeps, at its fullest.

        Either at the activation, with the hidden units' gradient before and after it (2 n F), or in
        the self-attention (2 n H L where weights are kept, and gradients of queries, keys and
        values), when the feed-forward branch has gone. The decoder also collects the gradient of
        the encoder's output (m C). The gradient of the largest weight comes on top (C F), and what
        the stream's gradient in fp32 has more.
        """
        model, batch = self.model, self.batch
        shape, n = model.layers[side], batch.tokens(side)
        stream = n * shape.embed_dim
        feed_forward = 2 * n * shape.ffn_dim * batch.element
        feed_forward += stream * (batch.stream - batch.element)
        feed_forward -= batch.dropout_mask(stream, shape.dropout)
        attention = 3 * stream * batch.element + stream * (batch.stream - batch.element)
        if not batch.is_fused(shape.attention_dropout):
            attention += 2 * n * shape.heads * batch.length(side) * batch.element
        gone = activations.feed_forward(batch, shape, side) + activations.joint(batch, model, side)
        source = batch.tokens(Side.ENCODER) * shape.source_dim if side is Side.DECODER else 0
        working = max(feed_forward, attention - gone) + source * batch.element
        return working + shape.embed_dim * shape.ffn_dim * self.element
