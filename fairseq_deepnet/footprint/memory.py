"""Memory of a training update on one device: the persistent part and the peak.

In the first micro-batch, backward allocates gradients while it frees activations. Therefore memory
peaks at the beginning or the end of a sequence of identical layers.
"""

import dataclasses
import math
from typing import Final

from ..criterions.chunked import CPU_BLOCK, chunk_rows
from ..optim.fused_adam import BUCKET
from ..schemes import Side
from . import ADAFACTOR, CHUNKED, FP32, Model, Parameters, Training, activations
from .activations import MicroBatch

GIB: Final = 2**30
SENTENCE_LENGTH: Final = 32
"""Default number of subwords per sentence."""
OVERHEAD_GIB: Final = {"gpu": 1.5, "cpu": 0.5}
"""GiB that a process needs besides its tensors: on a GPU, for the context, workspaces and NCCL's
buffers; on the CPU, for Python, torch and fairseq.
"""
FRAGMENTATION: Final = 0.05
"""Allocator overhead as a share of the tensors' peak."""
LEGACY_BUFFER: Final = 2**28
"""Maximum number of elements in legacy_ddp's buffer."""
HOST_OBJECTS: Final = 8 * 2**10
"""Host memory per parameter tensor on the CPU, in bytes, in addition to the tensor's elements.

5 to 8 KiB were measured at 50L-50L to 200L-200L with width 8.
"""

MEANINGS: Final = {
    "weights": "weights and position tables",
    "masters": "fp32 copies of half-precision weights and gradients",
    "optimiser": "state of the optimiser, such as Adam's moments",
    "communication": "buffers for data-parallel communication",
    "gathered": "unsharded parameters and gradients of a sharded model during computation",
    "host": "modules and other Python objects on the CPU",
    "gradients": "all gradients at the end of the backward pass",
    "activations": "stored by the forward pass for the backward pass",
    "loss": "largest temporary tensors of the loss",
    "peak": "largest sum at one moment; not all parts exist at the same time",
}
"""Part of the memory -> meaning, for `Memory` and the report of `deepnet plan`."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of a training update on one device, in bytes; MEANINGS describes the parts.

    Args:
        moments: name of each moment at which memory may peak -> bytes in use
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
        """Bytes in use between two updates."""
        return self.weights + self.masters + self.optimiser + self.communication + self.host

    @property
    def peak(self) -> int:
        """Maximum number of bytes in use."""
        return max(self.moments.values())

    def needed_gib(self, on_gpu: bool) -> float:
        """Return the required GiB, including the overhead of the allocator and the process."""
        return self.peak / GIB * (1 + FRAGMENTATION) + OVERHEAD_GIB["gpu" if on_gpu else "cpu"]


def follow(model: Model, training: Training, parameters: Parameters, batch: MicroBatch) -> Memory:
    """Return the memory that one update uses, broken down by part and by moment."""
    element = training.element
    gradients = math.ceil(parameters.total * training.gradient)
    weights, gathered = parameters.total * element, 0
    # adafactor's factored second moment is small in wide models and is not counted
    state = 0 if training.optimizer == ADAFACTOR else 2 * parameters.total * FP32
    if training.sharded:
        share = 0 if training.offload else 1 / training.devices
        weights, state = math.ceil(parameters.total * FP32 * share), math.ceil(state * share)
        gathered = _gathered(model, training, parameters)
    has_masters = not (
        training.precision == "fp32" or training.memory_efficient or training.sharded
    )
    walk = Walk(model, training, parameters, batch)
    memory = Memory(
        weights=weights + position_tables(model, element),
        masters=2 * parameters.total * FP32 * has_masters,
        optimiser=state,
        communication=_communication(training, parameters),
        gathered=gathered,
        host=0 if batch.on_gpu else parameters.tensors * HOST_OBJECTS,
        gradients=gradients,
        activations=walk.stored,
        loss=walk.loss,
        moments={},
    )
    base = memory.persistent
    moments = {name: base + gathered + size for name, size in walk.moments().items()}
    moments["optimiser"] = base + gradients + _optimiser_temporary(training, parameters)
    return dataclasses.replace(memory, moments=moments)


def position_tables(model: Model, element: int) -> int:
    """Return the bytes of sinusoidal position tables, which are not parameters."""
    return sum(
        model.positions[side] * model.layers[side].embed_dim * element
        for side in Side
        if not model.learned_positions[side]
    )


def _communication(training: Training, parameters: Parameters) -> int:
    """Return the bytes of data-parallel buffers.

    pytorch_ddp's buckets hold a copy of all gradients.
    """
    if training.devices == 1 or training.sharded:
        return 0
    if training.ddp_backend in ("legacy_ddp", "no_c10d"):
        return min(LEGACY_BUFFER, parameters.total) * training.element
    return parameters.total * training.element


def _optimiser_temporary(training: Training, parameters: Parameters) -> int:
    """Return the bytes of temporary tensors in an optimiser step (one parameter at a time).

    They are as large as the largest parameter, which is the whole model if the fp32 copy is flat
    (--fp16). adam needs a denominator, adafactor two copies of the update, and --memory-efficient-*
    fp32 copies of the gradient and the weight (with fused_adam, those of a chunk of parameters).
    """
    if training.optimizer == "fused_adam":
        bucket = min(parameters.total, BUCKET + parameters.largest)
        return 2 * bucket * FP32 if training.memory_efficient else 0
    flat = training.flat and not (training.memory_efficient or training.sharded)
    largest = parameters.total if flat else parameters.largest
    if training.sharded:
        largest = 0 if training.offload else math.ceil(parameters.largest / training.devices)
    copies = 2 if training.optimizer == ADAFACTOR else 1
    return (copies + 2 * training.memory_efficient) * largest * FP32


def unit_length(layer_bytes: int, segment: int, unit_bytes: int) -> int:
    """Return the number of layers that a sharded model gathers together.

    It is the largest number of layers that fit into `unit_bytes`, but at least 1. With activation
    checkpointing, the number is rounded down to whole segments, but is at least one segment.
    """
    length = max(1, unit_bytes // max(layer_bytes, 1))
    if segment > 1:
        length = length // segment * segment or segment
    return length


def _gathered(model: Model, training: Training, parameters: Parameters) -> int:
    """Return the maximum number of bytes of gathered parameters and full gradients.

    The root unit (embeddings and vocabulary projection) stays gathered. Buffers hold the active
    unit, the next unit, the gradient of the active unit, and the fp32 gradient of the previous unit
    while it is being reduced. Without resharding, all layers stay gathered.
    """
    element, unit = training.element, 0
    for side in Side:
        depth = model.depths.of(side)
        each = getattr(parameters, side.value) // max(depth, 1)
        segment = model.checkpointing[side].every
        length = unit_length(each * element, segment, training.unit_bytes)
        unit = max(unit, each * min(depth, length))
    root = parameters.embeddings + parameters.projection
    total = root * element + unit * (element + 2 * FP32)
    if training.reshard:
        return total + 2 * unit * element
    summed = parameters.total * FP32 if training.update_freq > 1 else 0
    return total + (parameters.total - root) * element + summed


class Walk:
    """Memory use during the forward and backward pass of one micro-batch.

    Attributes:
        full, segment, stacks: bytes stored by an uncheckpointed layer, a segment, and a stack
        stored: bytes stored for backward at the end of the forward pass
        carried: bytes of the gradients from earlier micro-batches
        loss: maximum size of the loss's temporary tensors
    """

    def __init__(
        self, model: Model, training: Training, parameters: Parameters, batch: MicroBatch
    ) -> None:
        self.model, self.parameters, self.batch = model, parameters, batch
        self.element, self.gradient = training.element, training.gradient
        self.carried = (
            math.ceil(parameters.total * self.gradient) if training.update_freq > 1 else 0
        )
        self.full = {side: activations.layer(batch, model, side) for side in Side}
        self.segment = {side: activations.segment(batch, model, side) for side in Side}
        self.outside = activations.outside(batch, model)
        self.stored, self.stacks = self.outside, {}
        for side in Side:
            depth, every = model.depths.of(side), model.checkpointing[side].every
            again = math.ceil(depth / every) * self.segment[side] if every else 0
            self.stacks[side] = again or depth * self.full[side]
            self.stored += self.stacks[side]
            self.stored += depth * activations.combination(batch, model, side)
        self.chunked = training.criterion in CHUNKED
        # fp32 log-probabilities, then their gradient and its sum
        table = batch.tokens(Side.DECODER) * model.vocabulary[1]
        self.loss = max(table * (self.element + FP32), 3 * table * FP32)
        if self.chunked:
            self.loss = self._chunked_loss()

    def _chunked_loss(self) -> int:
        """Return the bytes of a chunk's logits and probabilities, and of any half-precision copy.

        Also included are the fp32 gradients of the features and the vocabulary projection, and a
        copy of the features without padding.
        """
        tokens, width = self.batch.tokens(Side.DECODER), self.model.output_dim
        words, on_gpu = self.model.vocabulary[1], self.batch.on_gpu
        rows = min(tokens, chunk_rows(width, words, on_gpu))
        rounded = self.element if self.element < FP32 else 0
        # in half precision, a chunk's part of the weight gradient is a separate tensor: in fp32 on
        # GPUs; on the CPU in blocks, which are rounded and then converted to fp32 for the addition
        weight = words * width * FP32
        if rounded:
            part = words * width if on_gpu else min(words * width, CPU_BLOCK)
            weight += part * (FP32 if on_gpu else FP32 + rounded)
        return rows * words * (2 * FP32 + rounded) + weight + tokens * width * (FP32 + self.element)

    def moments(self) -> dict[str, int]:
        """Return the bytes in use at each moment at which memory may peak, by the moment's name."""
        model, tokens = self.model, self.batch.tokens(Side.DECODER)
        weight = model.output_dim * model.vocabulary[1] * self.element
        # backward through the vocabulary projection allocates the gradients of the weight and the
        # features, and of the logits unless computed in chunks; chunked gradients are in fp32 first
        projection = weight + tokens * model.output_dim * self.element
        if not self.chunked:
            projection += tokens * model.vocabulary[1] * self.element
        elif self.element < FP32:
            projection *= FP32 // self.element + 1
        return {
            "loss": self.carried + self.stored + self.loss,
            "vocabulary projection": self.carried + self.stored + projection,
            "backward through the decoder": self._stack(Side.DECODER, weight),
            "backward through the encoder": self._stack(Side.ENCODER, weight),
            "embeddings": self._embeddings(),
        }

    def _stack(self, side: Side, projection: int) -> int:
        """Return the maximum number of bytes in use during backward through one stack.

        Activations are freed and gradients allocated at a constant rate per layer, so the maximum
        is reached at the first or the last of several identical layers or segments. The gradient of
        the vocabulary projection is included, because it already exists.
        """
        model = self.model
        alive = self.stored + projection
        if self.carried:
            alive += self.carried - (0 if model.share_output else projection)
        if side is Side.ENCODER:
            alive -= self.stacks[Side.DECODER]
            alive += 0 if self.carried else math.ceil(self.parameters.decoder * self.gradient)
        layer = 0 if self.carried else math.ceil(self.parameters.layer[side] * self.gradient)
        depth, every = model.depths.of(side), model.checkpointing[side].every
        whole, rest = divmod(depth, every) if every else (0, 0)
        runs = ((int(rest > 0), rest), (whole, every)) if every else ((depth, 0),)
        most = 0
        for number, length in runs:
            if number:
                full, freed, again = self.full[side], self.full[side], 0
                if length:
                    # a recomputed segment holds all its activations at the beginning, and its upper
                    # layers' gradients and its lowest layer's activations at the end
                    freed = self.segment[side]
                    again = length * full - (freed - activations.RNG_STATE)
                    again += max(0, (length - 1) * (layer - full))
                change = max(length, 1) * layer - freed
                most = max(most, alive + again + max(0, (number - 1) * change))
                alive += number * change
        return most + self._working(side)

    def _embeddings(self) -> int:
        """Return the bytes in use during the computation of the embeddings' gradients.

        Each gradient is as large as its table. The gradient of a tied table already contains the
        contribution of the vocabulary projection. The target embedding's contribution is added out
        of place, and the source embedding's in place.
        """
        model = self.model
        source, target = (
            words * shape.embed_dim * self.element
            for words, shape in zip(model.vocabulary, model.layers.values(), strict=True)
        )
        tied = target if model.share_output else 0
        gradients = self.carried or tied + math.ceil(self.parameters.decoder * self.gradient)
        waiting = tied if self.carried else 0
        target += gradients + waiting + tied + self.stored - self.stacks[Side.DECODER]
        waiting = waiting if model.share_all else 0
        source += math.ceil(self.parameters.total * self.gradient) + waiting + self.outside
        return max(target, source)

    def _working(self, side: Side) -> int:
        """Return the maximum number of temporary bytes during one layer's backward pass.

        The maximum is reached at the activation function, where the gradients of its input and its
        output exist (2 n F), or in self-attention, after the feed-forward branch has been freed.
        Self-attention needs the gradients of queries, keys and values and, if attention weights are
        stored, 2 n H L more elements. The gradients of the largest weight (C F) and of the
        encoder's output (m C, in the decoder), and the additional bytes of an fp32 stream's
        gradient are included.
        """
        model, batch = self.model, self.batch
        shape, n = model.layers[side], batch.tokens(side)
        stream = n * shape.embed_dim
        wider = stream * (batch.stream - batch.element)
        feed_forward = 2 * n * shape.ffn_dim * batch.element + wider
        feed_forward -= batch.dropout_mask(stream, shape.dropout)
        attention = 3 * stream * batch.element + wider
        if not batch.is_fused(shape.attention_dropout):
            attention += 2 * n * shape.heads * batch.length(side) * batch.element
        freed = activations.feed_forward(batch, shape, side) + activations.joint(batch, model, side)
        source = batch.tokens(Side.ENCODER) * shape.source_dim if side is Side.DECODER else 0
        working = max(feed_forward, attention - freed) + source * batch.element
        return working + shape.embed_dim * shape.ffn_dim * self.element
