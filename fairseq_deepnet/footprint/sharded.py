"""What `--ddp-backend fully_sharded` holds on a device besides its rows of every tensor.

The rows are 1 / n of the fp32 weights, gradients and optimiser's state. What stands here exists in
forward and backward alone: units that are gathered, and gradients that are not split yet.
"""

from __future__ import annotations

from ..schemes import Side
from .parameters import Parameters
from .setting import FP32, Model, Training


def unit_length(layer_bytes: int, segment: int, unit_bytes: int) -> int:
    """Return how many layers are gathered together.

    As many as stay within `unit_bytes`, and at least one. In whole segments of activation
    checkpointing, where these are smaller: layers are computed again a segment at a time.
    """
    length = max(1, unit_bytes // max(layer_bytes, 1))
    if segment > 1:
        length = length // segment * segment or segment
    return length


def unit_size(model: Model, training: Training, parameters: Parameters) -> int:
    """Return the parameters of the largest unit of layers."""
    sizes = []
    for side in Side:
        depth = model.depths.of(side)
        each = getattr(parameters, side.value) // max(depth, 1)
        segment = model.checkpointing[side].every
        length = unit_length(each * training.element, segment, training.unit_bytes)
        sizes.append(min(length, depth) * each)
    return max(sizes)


def gathered(model: Model, training: Training, parameters: Parameters) -> int:
    """Return the bytes of gathered parameters and unsplit gradients, at the most.

    The root's unit, embeddings and vocabulary projection, is whole all the time, and its gradient
    until backward ends; that is counted where gradients are. Of the layers: a unit that computes
    and the next one, on their way from the buffer that came; the first one's gradient, and what is
    sent of it in fp32, while the one before is still on its way. Without resharding all of them.
    """
    element = training.element
    root = parameters.embeddings + parameters.projection
    unit = unit_size(model, training, parameters)
    held = root * element + unit * (element + 2 * FP32)
    if training.reshard:
        return held + 2 * unit * element
    layers = parameters.total - root
    summed = parameters.total * FP32 if training.update_freq > 1 else 0
    return held + layers * element + summed


def exchanged(training: Training, parameters: Parameters) -> int:
    """Return the bytes that a device receives in an update: (n - 1) / n of what is exchanged.

    Weights come in the type of computation, once for forward and, where they are not kept, again
    for backward; gradients go in fp32. The root's weights are kept, and count as the others here.
    """
    n, total = training.devices, parameters.total
    if training.reshard:
        once = total * (2 * training.element + FP32) * training.update_freq
    else:
        once = total * (training.element + FP32)
    return once * (n - 1) // n
