"""How much of a model's activations to keep: as much as the memory at hand has room for.

Backward computes a checkpointed layer again, however long the segments are: time is saved by
checkpointing fewer layers. In a stack the uppermost stay plain, which backward meets first: their
activations are gone when the layers below them are computed again.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Final

from ..modules import ActivationCheckpointing, LayerShape, thriftiest_segment
from ..schemes import ResidualScheme, Side
from .activations import MicroBatch
from .memory import follow, needed_gib
from .parameters import count
from .setting import Model, Training
from .walk import Layout, Walk

CHOICES: Final = 64
"""Steps between none and all of a stack's layers that are tried."""


def auto_segment(side: Side, scheme: ResidualScheme, shape: LayerShape, layers: int) -> int:
    """Return what `--checkpoint-activations-every auto` means for the recomputed layers of a stack.

    It follows from the tensors that a layer keeps, in multiples of its input, all streams of it.
    With fused attention, relu and LayerNorm an encoder layer keeps 8 + F / C of them, one more
    attention with keys and values of a source as long adds 6; dropout adds one a branch.
    (activations.py counts bytes.)
    """
    if scheme.combines:
        return 1
    crossed = side is Side.DECODER and scheme.depths.encoder > 0
    kept = shape.ffn_dim / shape.embed_dim + (17 if crossed else 10)
    return thriftiest_segment(layers, kept / scheme.streams)


def fit(
    model: Model, training: Training, batch: MicroBatch, memory_gib: float
) -> tuple[Model, float]:
    """Return the model with as little recomputed as memory allows, and the GiB that it needs.

    What a layer costs to compute goes with its parameters. With all layers recomputed where even
    that is too much. More memory never leads to more recomputation: it is a choice among more.
    """
    counts = count(model)
    memory = follow(model, training, counts, batch)
    walk = Walk(model, training, counts, batch)

    def needed(layout: Layout) -> float:
        peak = memory.persistent + memory.gathered + max(walk.moments(layout).values())
        return needed_gib(max(peak, memory.moments["optimiser"]), batch.on_gpu)

    stacks = {side: list(_candidates(model, side)) for side in Side}
    best = {side: recomputing(model, side) for side in Side}
    gib, least = needed(best), math.inf
    for encoder, decoder in itertools.product(*stacks.values()):
        layout = {Side.ENCODER: encoder, Side.DECODER: decoder}
        again = {side: kept.recomputed(model.depths.of(side)) for side, kept in layout.items()}
        cost = sum(again[side] * counts.layer[side] for side in Side)
        if cost < least and (found := needed(layout)) <= memory_gib:
            best, gib, least = layout, found, cost
    return dataclasses.replace(model, checkpointing=best), gib


def _candidates(model: Model, side: Side) -> Iterator[ActivationCheckpointing]:
    """Yield ways to keep a stack's activations: all plain to none, CHOICES steps at the most."""
    depth = model.depths.of(side)
    for plain in sorted({*range(0, depth, math.ceil(depth / CHOICES)), depth}, reverse=True):
        yield recomputing(model, side, plain)


def recomputing(model: Model, side: Side, plain: int = 0) -> ActivationCheckpointing:
    """Return what is kept of a stack with all layers but the uppermost recomputed."""
    offload = model.checkpointing[side].offload
    again = model.depths.of(side) - plain
    if not again:
        return ActivationCheckpointing(offload=offload)
    every = model.segment or auto_segment(side, model.scheme, model.layers[side], again)
    return ActivationCheckpointing(every, plain, offload)
