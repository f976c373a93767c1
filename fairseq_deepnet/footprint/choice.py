"""How much of a model's activations to keep: as much as the memory at hand has room for.

Backward computes a checkpointed layer again, however long the segments are: time is saved by
checkpointing fewer layers. Plain are those that backward meets first, from the top of the decoder
downwards: their activations are gone when the layers below them are computed again.
"""

from __future__ import annotations

import dataclasses

from ..modules import ActivationCheckpointing, LayerShape, thriftiest_segment
from ..schemes import ResidualScheme, Side
from .activations import MicroBatch
from .memory import follow, needed_gib
from .parameters import count
from .setting import Model, Training
from .walk import Layout, Walk


def combines(scheme: type[ResidualScheme]) -> bool:
    """Whether layers read more than the output of the layer below (as in DLCL)."""
    return scheme.build_combination is not ResidualScheme.build_combination


def auto_segment(side: Side, scheme: ResidualScheme, shape: LayerShape, layers: int) -> int:
    """`--checkpoint-every auto`: from the tensors that a layer keeps, in multiples of its input.

    With fused attention, relu and LayerNorm an encoder layer keeps 8 + F / C of them, one more
    attention with keys and values of a source as long adds 6; dropout adds one a branch.
    (activations.py counts bytes.)

    Arguments:
        layers: how many are recomputed
    """
    if combines(type(scheme)):
        return 1
    crossed = side is Side.DECODER and scheme.depths.encoder > 0
    kept = shape.ffn_dim / shape.embed_dim + (17 if crossed else 10)
    return thriftiest_segment(layers, kept)


def fit(
    model: Model,
    training: Training,
    batch: MicroBatch,
    memory_gib: float,
) -> tuple[Model, float]:
    """The model with as few layers recomputed as memory allows, and the GiB that it then needs.

    With all of them recomputed where even that is too much.
    """
    counts = count(model)
    memory = follow(model, training, counts, batch)
    walk = Walk(model, training, counts, batch)
    decoder = model.depths.of(Side.DECODER)

    def needed(layout: Layout) -> float:
        peak = memory.persistent + max(walk.moments(layout).values())
        return needed_gib(max(peak, memory.moments["optimiser"]), batch.on_gpu)

    for plain in range(decoder + model.depths.of(Side.ENCODER), -1, -1):
        above = min(plain, decoder)
        layout = {
            Side.DECODER: recomputing(model, Side.DECODER, above),
            Side.ENCODER: recomputing(model, Side.ENCODER, plain - above),
        }
        gib = needed(layout)
        if gib <= memory_gib:
            break
    return dataclasses.replace(model, checkpointing=layout), gib


def recomputing(model: Model, side: Side, plain: int = 0) -> ActivationCheckpointing:
    """A stack with all layers but the uppermost recomputed."""
    offload = model.checkpointing[side].offload
    again = model.depths.of(side) - plain
    if not again:
        return ActivationCheckpointing(offload=offload)
    every = model.segment or auto_segment(side, model.scheme, model.layers[side], again)
    return ActivationCheckpointing(every, plain, offload)
