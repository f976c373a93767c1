"""How many parameters a model has, by part, from one layer of each kind on the meta device.

That is exact, and takes milliseconds for a thousand layers, which take seconds to build.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

import torch
from torch import nn

from ..anatomy import find_branches
from ..modules import DecoderLayer, EncoderLayer, LayerShape, TransformerLayer
from ..schemes import NormPlacement, Place, ResidualScheme, Side
from .setting import Model

LAYERS: Final[dict[Side, type[TransformerLayer]]] = {
    Side.ENCODER: EncoderLayer,
    Side.DECODER: DecoderLayer,
}
SUBLAYERS: Final = {side: layer.sublayers for side, layer in LAYERS.items()}


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Numbers of parameters.

    Args:
        embeddings: tables of words and learned positions, each once, and their LayerNorms
        projection: the vocabulary projection, 0 where it is the target's table
        layer: of one layer, without what its scheme adds
        encoder, decoder: of each stack, with what the scheme adds and final LayerNorms
        largest: of the largest single tensor
        tensors: how many tensors there are
    """

    embeddings: int
    projection: int
    layer: dict[Side, int]
    encoder: int
    decoder: int
    largest: int
    tensors: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embeddings + self.projection + self.encoder + self.decoder


def count(model: Model) -> Parameters:
    """Count a model's parameters."""
    encoder, decoder = (stack_sizes(model, side) for side in Side)
    embeddings, projection = embedding_sizes(model), projection_sizes(model)
    every = [*embeddings, *projection, *encoder, *decoder]
    layer = {side: count_layer(model, side) for side in Side}
    ends = sum(embeddings), sum(projection)
    return Parameters(*ends, layer, sum(encoder), sum(decoder), max(every), len(every))


def build_layer(model: Model, side: Side, index: int = 0) -> TransformerLayer:
    """Build a layer on the meta device, to look at."""
    return _build(model.layers[side], model.scheme, Place(side, index))


@functools.lru_cache(maxsize=16)
def _build(shape: LayerShape, scheme: ResidualScheme, place: Place) -> TransformerLayer:
    with torch.device("meta"):
        return LAYERS[place.side](shape, scheme, place)


def count_layer(model: Model, side: Side) -> int:
    """Count one layer of a side, without what its scheme adds: linear maps and LayerNorms.

    C = channels, F = feed-forward width: with biases and equal widths, 4 C^2 + 2 C F + 9 C + F in
    the encoder, 8 C^2 + 2 C F + 15 C + F in the decoder.
    """
    branches = find_branches(build_layer(model, side))
    modules = [module for branch in branches for module in (*branch.linears.values(), branch.norm)]
    return sum(p.numel() for module in modules if module is not None for p in module.parameters())


def stack_sizes(model: Model, side: Side) -> list[int]:
    """Return sizes of each parameter tensor of a stack: its layers, and what follows them."""

    def sizes_of(module: nn.Module | None) -> list[int]:
        return [] if module is None else [parameter.numel() for parameter in module.parameters()]

    depth, width = model.depths.of(side), model.layers[side].embed_dim
    some = [sizes_of(build_layer(model, side, index)) for index in (0, depth // 2, depth - 1)]
    if some[0] == some[1] == some[2]:  # as in every layer
        sizes = some[0] * depth
    else:
        sizes = [size for n in range(depth) for size in sizes_of(build_layer(model, side, n))]
    sizes += [width, width] * has_final_norm(model, side)
    with torch.device("meta"):
        sizes += sizes_of(model.scheme.build_combination(side, width))
        return sizes + sizes_of(model.scheme.build_output_transform(side, width))


def has_final_norm(model: Model, side: Side) -> bool:
    """Return True if a LayerNorm follows the stack."""
    kept = side is Side.ENCODER or model.decoder_final_norm
    return model.scheme.norm is NormPlacement.PRE and kept


def embedding_sizes(model: Model) -> list[int]:
    """Return sizes of each table and vector that precedes the layers."""
    sizes = []
    for side, vocabulary in zip(Side, model.vocabulary, strict=True):
        width = model.layers[side].embed_dim
        if side is Side.ENCODER or not model.share_all:
            sizes.append(vocabulary * width)
        if model.learned_positions[side] and model.positions[side]:
            sizes.append(model.positions[side] * width)
        if model.embedding_norm:
            sizes += [width, width]
    return sizes


def projection_sizes(model: Model) -> list[int]:
    """Return sizes of the vocabulary projection and the map before it."""
    width, out = model.layers[Side.DECODER].embed_dim, model.output_dim
    sizes = [width * out] if width != out else []
    if not model.share_output:
        sizes.append(out * model.vocabulary[1])
    return sizes
