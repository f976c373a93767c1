"""Memory of a training update on one device: what is always there, and the peak within an update.

walk.py follows forward and backward; here is what surrounds them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from ..optim.fused_adam import BUCKET
from ..schemes import Side
from .activations import MicroBatch
from .parameters import SUBLAYERS, Parameters
from .setting import FP32, STATES, Model, Training
from .sharded import gathered
from .walk import Walk

GIB: Final = 2**30
SENTENCE_LENGTH: Final = 32
"""Subwords of a sentence by default: it decides how much attention costs, and little else."""

OVERHEAD_GIB: Final = {"gpu": 1.5, "cpu": 0.5}
"""What a process holds besides tensors: on a GPU its context, the libraries' workspaces and NCCL's
buffers; on the CPU Python, torch and fairseq."""

FRAGMENTATION: Final = 0.05
"""Share of the tensors' peak that the allocator loses on top."""

LEGACY_BUFFER: Final = 2**28
"""Elements of legacy_ddp's buffer, unless the model is smaller."""

HOST_OBJECTS: Final = 8 * 2**10
"""Bytes of host memory a parameter tensor besides its numbers: modules, autograd's nodes, malloc's
rounding. Measured on 50L-50L to 200L-200L of width 8: 5 to 8 KiB. GPUs do not hold them."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Args:
        weights: as the model computes with them, and the tables of positions
        masters: the fp32 copy of weights, and of gradients, that fairseq's FP16Optimizer keeps
        gathered: what a sharded model holds whole while it computes
        gradients: of all weights, at the end of backward
        activations: kept for backward at the end of the forward pass
        host: modules and other objects, which count where the host's memory is the device's
        monitor: copies of weights that the monitor holds during the step of a due update
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
    monitor: int
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
    """Return the bytes of the optimiser's state, which fairseq holds in fp32 in any precision.

    adam keeps two numbers per parameter. adafactor keeps a number a row and one a column of every
    matrix, and a number a parameter of the vectors; not counted, as it is less than a thousandth.
    """
    if training.optimizer == "adafactor":
        return parameters.total * FP32 if training.first_moment else 0
    if training.optimizer == "sgd":
        return parameters.total * training.element if training.first_moment else 0
    return STATES[training.optimizer] * parameters.total * FP32


def optimiser_temporary(training: Training, parameters: Parameters) -> int:
    """Return the bytes that a step of the optimiser needs for the tensor that it is at.

    fairseq's optimisers go tensor by tensor in Python; the largest counts, which with the flat fp32
    copy of --fp16 is the whole model. adam needs its denominator, adafactor two copies of the
    update; with --memory-efficient-* gradient and weight are brought to fp32 as well. fused_adam
    needs nothing but these, and brings a bucket of tensors to fp32 at a time.
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


def checkpoint_size(training: Training, parameters: Parameters) -> int:
    """Return the bytes of a checkpoint: weights, the optimiser's state, and the fp32 weights that
    half precision rounds.
    """
    copies = 1 if training.precision == "fp32" or training.memory_efficient else 2
    return copies * parameters.total * FP32 + optimiser_state(training, parameters)


def communication(training: Training, parameters: Parameters) -> int:
    """Return the bytes of data parallel: pytorch_ddp's buckets hold all gradients once more.

    With --gradient-as-bucket-view the gradients themselves lie in the buckets. legacy_ddp has one
    buffer of 2^28 elements, or of the model's size.
    """
    if training.devices == 1 or training.sharded:
        return 0
    if training.ddp_backend in ("legacy_ddp", "no_c10d"):
        return min(LEGACY_BUFFER, parameters.total) * training.element
    return 0 if training.bucket_view else parameters.total * training.element


def monitor_copies(model: Model, training: Training, parameters: Parameters) -> int:
    """Return the bytes of the weights that the monitor copies before the step of a due update.

    The layers' parameters for the size of their change, and for the bound the maps of the value
    path: v_proj, out_proj, fc1 and fc2. Of a sharded model it measures neither.
    """
    copied = 0
    if "parameter_update_ratio" in training.monitored:
        copied += parameters.encoder + parameters.decoder
    if "step_bound" in training.monitored and model.scheme.bounded:
        for side, shape in model.layers.items():
            attentions = len(SUBLAYERS[side]) - 1
            maps = 2 * attentions * shape.embed_dim**2 + 2 * shape.embed_dim * shape.ffn_dim
            copied += model.depths.of(side) * maps
    return 0 if training.sharded else copied * training.element


def position_tables(model: Model, element: int) -> int:
    """Return the bytes of sinusoidal positions, which are no parameters."""
    return sum(
        model.positions[side] * model.layers[side].embed_dim * element
        for side in Side
        if not model.learned_positions[side]
    )


def follow(model: Model, training: Training, parameters: Parameters, batch: MicroBatch) -> Memory:
    """Follow one update and note what is alive at each moment."""
    element = training.element
    gradients = math.ceil(parameters.total * training.gradient)
    weights, state = parameters.total * element, optimiser_state(training, parameters)
    passing = 0
    if training.sharded:
        held = 0 if training.offload else 1 / training.devices
        weights, state = math.ceil(parameters.total * FP32 * held), math.ceil(state * held)
        passing = gathered(model, training, parameters)
    has_masters = not (
        training.precision == "fp32" or training.memory_efficient or training.sharded
    )
    walk = Walk(model, training, parameters, batch)
    memory = Memory(
        weights=weights + position_tables(model, element),
        masters=2 * parameters.total * FP32 * has_masters,
        optimiser=state,
        communication=communication(training, parameters),
        gathered=passing,
        host=0 if batch.on_gpu else parameters.tensors * HOST_OBJECTS,
        gradients=gradients,
        activations=walk.kept(model.checkpointing),
        monitor=monitor_copies(model, training, parameters),
        loss=walk.loss_peak,
        moments={},
    )
    base = memory.persistent
    walked = walk.moments(model.checkpointing)
    moments = {name: base + passing + size for name, size in walked.items()}
    stepping = optimiser_temporary(training, parameters) + memory.monitor
    moments["optimiser"] = base + gradients + stepping
    return dataclasses.replace(memory, moments=moments)


def needed_gib(peak: int, on_gpu: bool) -> float:
    """Return the GiB that a device must have: the tensors' peak, what is lost, the process."""
    return peak / GIB * (1 + FRAGMENTATION) + OVERHEAD_GIB["gpu" if on_gpu else "cpu"]


def micro_batch(training: Training, length: int = SENTENCE_LENGTH) -> MicroBatch:
    """Return a full micro-batch of equally long sentences: --max-tokens on both sides."""
    length = min(length, training.max_tokens)
    return MicroBatch(
        sentences=max(1, training.max_tokens // length),
        source=length,
        target=length,
        element=training.element,
        on_gpu=training.gpus > 0,
        unpadded=training.gpus == 0,
    )
