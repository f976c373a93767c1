"""How many parameters a model has, by part: in closed form, without building it.

C = channels, F = feed-forward width, V = vocabulary, N and M = encoder and decoder layers.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from ..modules import DecoderLayer, EncoderLayer, LayerShape
from ..schemes import NormPlacement, Place, Side, Sublayer
from .setting import Model

BEFORE_ACTIVATION, BEFORE_FC2 = "ffn.before activation", "ffn.before fc2"  # roles of transforms
HEADS = ".heads"  # ends of those that act on a sublayer's
SUBLAYERS = {Side.ENCODER: EncoderLayer.sublayers, Side.DECODER: DecoderLayer.sublayers}


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Numbers of parameters.

    Arguments:
        embeddings: all tables of words and learned positions, and their LayerNorms; a shared
            table counts once
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
    """Count a model's parameters.

    A linear map from a to b channels has a b + b (no bias: a b), a LayerNorm 2 C. Attention is four
    maps, keys and values reading the encoder's width in the cross-attention. With biases and equal
    widths, an encoder layer is 4 C^2 + 2 C F + 9 C + F, and a decoder layer 8 C^2 + 2 C F + 15 C +
    F. What a scheme adds is counted on the modules that it builds, on the meta device.
    """
    width, stacks, tensors = dict[Side, int](), dict[Side, int](), 0
    layer: dict[Side, int] = {}
    largest = 0
    for side in Side:
        shape, depth = model.layers[side], model.depths.of(side)
        width[side] = shape.embed_dim
        layer[side] = count_layer(model, side)
        extra, extra_tensors = count_scheme(model, side)
        final = 2 * shape.embed_dim * has_final_norm(model, side)
        stacks[side] = depth * layer[side] + extra + final
        tensors += depth * layer_tensors(model, side) + extra_tensors + 2 * bool(final)
        largest = max(largest, shape.embed_dim * shape.ffn_dim)
    embeddings, tables = _embeddings(model)
    projection, projections = _projection(model)
    return Parameters(
        embeddings=embeddings,
        projection=projection,
        layer=layer,
        encoder=stacks[Side.ENCODER],
        decoder=stacks[Side.DECODER],
        largest=max(largest, *(size for size in (*tables, *projections))),
        tensors=tensors + len(tables) + len(projections),
    )


def count_layer(model: Model, side: Side) -> int:
    """Of one layer of a side, without what its scheme adds."""
    shape, bias = model.layers[side], int(model.scheme.bias)
    c, f, source = shape.embed_dim, shape.ffn_dim, shape.source_dim
    norms = len(SUBLAYERS[side]) * (model.scheme.norm is not NormPlacement.NONE)
    total = (c * f + bias * f) + (f * c + bias * c) + norms * 2 * c
    for sublayer in SUBLAYERS[side][:-1]:
        keys = source if sublayer is Sublayer.ENCODER_ATTN else c
        total += 2 * (keys * c + bias * c) + 2 * (c * c + bias * c)
    return total


def layer_tensors(model: Model, side: Side) -> int:
    """How many parameter tensors a layer has, without what its scheme adds."""
    sublayers = len(SUBLAYERS[side])
    maps = 4 * (sublayers - 1) + 2
    norms = sublayers * (model.scheme.norm is not NormPlacement.NONE)
    return maps * (1 + model.scheme.bias) + 2 * norms


def has_final_norm(model: Model, side: Side) -> bool:
    """Whether a LayerNorm follows the stack."""
    kept = side is Side.ENCODER or model.decoder_final_norm
    return model.scheme.norm is NormPlacement.PRE and kept


def has_combination(model: Model, side: Side) -> bool:
    """Whether a layer reads more than the output of the layer below."""
    with torch.device("meta"):
        return model.scheme.build_combination(side, model.layers[side].embed_dim) is not None


def scheme_modules(model: Model, side: Side, layer: int) -> dict[str, nn.Module]:
    """What the scheme adds to one layer, by role, on the meta device."""
    shape: LayerShape = model.layers[side]
    place, sublayers = Place(side, layer), SUBLAYERS[side]
    found: dict[str, nn.Module | None] = {}
    with torch.device("meta"):
        for sublayer in sublayers[:-1]:
            found[f"{sublayer}{HEADS}"] = model.scheme.build_head_transform(
                place, sublayer, shape.heads
            )
        before, after = model.scheme.build_ffn_transforms(place, shape.ffn_dim)
        found |= {BEFORE_ACTIVATION: before, BEFORE_FC2: after}
        residuals = model.scheme.build_residuals(place, sublayers, shape.embed_dim)
    found |= {f"{sublayer}.residual": module for sublayer, module in residuals.items()}
    return {role: module for role, module in found.items() if module is not None}


def count_scheme(model: Model, side: Side) -> tuple[int, int]:
    """Parameters, and tensors, that the scheme adds to a stack."""
    depth = model.depths.of(side)
    few = sorted({0, depth // 2, depth - 1})
    found = {layer: _scheme_sizes(model, side, layer) for layer in few}
    if len(set(map(tuple, found.values()))) == 1:  # as in every layer: no need to build them all
        sizes = found[0] * depth
    else:
        sizes = [size for layer in range(depth) for size in _scheme_sizes(model, side, layer)]
    width = model.layers[side].embed_dim
    with torch.device("meta"):
        combination = model.scheme.build_combination(side, width)
        output_transform = model.scheme.build_output_transform(side, width)
    for module in (combination, output_transform):
        if module is not None:
            sizes += [parameter.numel() for parameter in module.parameters()]
    return sum(sizes), len(sizes)


def _scheme_sizes(model: Model, side: Side, layer: int) -> list[int]:
    """Sizes of the tensors that the scheme adds to one layer; sublayers may share some."""
    modules = nn.ModuleList(scheme_modules(model, side, layer).values())
    return [parameter.numel() for parameter in modules.parameters()]


def _embeddings(model: Model) -> tuple[int, list[int]]:
    """All that precedes the layers: the sum, and each tensor's size."""
    sizes = []
    for side, vocabulary in zip(Side, model.vocabulary, strict=True):
        width = model.layers[side].embed_dim
        if side is Side.ENCODER or not model.share_all:
            sizes.append(vocabulary * width)
        if model.learned_positions[side] and model.positions[side]:
            sizes.append(model.positions[side] * width)
        if model.embedding_norm:
            sizes += [width, width]
    return sum(sizes), sizes


def _projection(model: Model) -> tuple[int, list[int]]:
    """The vocabulary projection and the map before it."""
    width, out = model.layers[Side.DECODER].embed_dim, model.output_dim
    sizes = [width * out] if width != out else []
    if not model.share_output:
        sizes.append(out * model.vocabulary[1])
    return sum(sizes), sizes
