"""What a micro-batch leaves behind in the forward pass, because backward needs it.

The formulas follow modules/: they count each tensor that autograd saves, once.

n = tokens of the micro-batch on the side at hand, m = on the encoder's side, C = channels,
F = feed-forward width, H = heads, L = tokens per sentence; e = bytes of an activation.
"""

from __future__ import annotations

import dataclasses
import math
from typing import cast

from torch import nn

from ..modules import (
    LayerShape,
    MultiheadAttention,
    TransformerLayer,
    positions,
    thriftiest_segment,
)
from ..schemes import NormPlacement, Residual, ResidualScheme, Side, Sublayer
from . import FP32, SUBLAYERS, Model, Training, build_layer

RNG_STATE = 5056 + 16
"""Bytes of the generators' states that torch's checkpoint keeps a layer, CPU's and GPU's."""


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass on one device.

    Args:
        sentences: B
        source, target: tokens of a sentence on each side, padding included
        element: e, bytes of an activation
        on_gpu: dropout keeps a mask of one byte; on the CPU a factor of e bytes
        padded: True if sources have padding, so that attention is given a mask
        unpadded: True if targets' padding may be taken out, as in training on the CPU
        stream: bytes of a number in the residual stream (--residual-dtype)
    """

    sentences: int
    source: int
    target: int
    element: int
    on_gpu: bool
    padded: bool = True
    unpadded: bool = False
    stream: int = FP32

    def tokens(self, side: Side) -> int:
        """Return n: tokens of a side, padding included."""
        return self.sentences * (self.source if side is Side.ENCODER else self.target)

    def length(self, side: Side) -> int:
        """Return L: tokens of a sentence."""
        return self.source if side is Side.ENCODER else self.target

    def dropout_mask(self, elements: int, probability: float) -> int:
        """Return the bytes of what dropout keeps of `elements` activations."""
        if not probability:
            return 0
        return elements * (1 if self.on_gpu else self.element)

    def is_fused(self, attention_dropout: float) -> bool:
        """Return True if scaled_dot_product_attention takes a kernel that keeps no L x L weights.

        The CPU's cannot drop weights, and torch falls back to its plain ("math") form.
        """
        return self.on_gpu or not attention_dropout


def micro_batch(model: Model, training: Training, length: int) -> MicroBatch:
    """Return a full micro-batch of equally long sentences: --max-tokens on both sides."""
    length = min(length, training.max_tokens)
    return MicroBatch(
        sentences=max(1, training.max_tokens // length),
        source=length,
        target=length,
        element=training.element,
        stream=FP32 if model.streams_in_fp32 else training.element,
        on_gpu=training.gpus > 0,
        unpadded=training.gpus == 0,
    )


def auto_segment(side: Side, scheme: ResidualScheme, shape: LayerShape, layers: int) -> int:
    """Return what `--checkpoint-activations-every auto` means for a stack.

    In multiples of its input an encoder layer keeps 8 + F / C tensors with fused attention, relu
    and LayerNorm; one more attention adds 6, dropout one per branch.
    """
    if scheme.combines:
        return 1
    crossed = side is Side.DECODER and scheme.depths.encoder > 0
    kept = shape.ffn_dim / shape.embed_dim + (17 if crossed else 10)
    return thriftiest_segment(layers, kept / scheme.streams)


def attention(batch: MicroBatch, shape: LayerShape, side: Side, cross: bool) -> int:
    """Return the bytes that the attention branch keeps, beyond its input.

    Queries, keys, values and the output: 2 n C + 2 k C elements for k keys. A fused kernel adds a
    logarithm of fp32 per query and head, and the sources' mask, one number per key; the math form
    tokens x heads x keys weights after softmax, with dropout its mask and the product, too.

    The CPU computes it in fp32 whatever the precision; then out_proj's input is a rounded copy.
    """
    n, c = batch.tokens(side), shape.embed_dim
    element = batch.element if batch.on_gpu else FP32
    keys_of = Side.ENCODER if cross else side
    k, length = batch.tokens(keys_of), batch.length(keys_of)
    total = (2 * n * c + 2 * k * c) * element
    if batch.element < element:
        total += n * c * batch.element
    if batch.is_fused(shape.attention_dropout):
        total += n * shape.heads * FP32
        if batch.padded and (cross or side is Side.ENCODER):
            total += k * element
        return total
    weights = n * shape.heads * length
    total += weights * element * (2 if shape.attention_dropout else 1)
    if shape.attention_dropout:  # torch's own mask, of the activations' type on the CPU
        total += weights * (1 if batch.on_gpu else element)
    return total


def feed_forward(batch: MicroBatch, shape: LayerShape, side: Side) -> int:
    """Return the bytes that the feed-forward branch keeps, beyond its input.

    relu keeps its result, fc2's input: n F elements. Other activations keep their input as well, in
    fp32 as fairseq computes them. Dropout adds its mask, and its result to relu's.
    """
    hidden = batch.tokens(side) * shape.ffn_dim
    total = hidden * batch.element
    if shape.activation != "relu":
        total += hidden * FP32
    elif shape.activation_dropout:
        total += hidden * batch.element
    return total + batch.dropout_mask(hidden, shape.activation_dropout)


def joint(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes kept to join one branch to the stream: dropout, LayerNorm, its input.

    The branch's input is kept by its linear maps (n C); LayerNorm keeps its own input (n C) and a
    mean and a deviation per token in fp32, in Post-LN as in Pre-LN.
    """
    shape, n = model.layers[side], batch.tokens(side)
    elements = n * shape.embed_dim
    total = elements * batch.element + batch.dropout_mask(elements, shape.dropout)
    if model.scheme.norm is not NormPlacement.NONE:
        total += elements * batch.stream + 2 * n * FP32
    return total


def scheme_extra(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes that what a scheme adds to a layer keeps.

    Transforms of the heads and before fc2 have a result that is kept besides their input; a
    residual declares how many tensors of n C it keeps.
    """
    layer, shape = build_layer(model, side), model.layers[side]
    heads = [attention.head_transform for attention in _attentions(layer)]
    before, after = layer.pre_activation_transform, layer.post_activation_transform
    residuals = [cast(Residual, residual) for residual in layer.residuals.values()]
    kept = shape.embed_dim * sum(residual.saved for residual in residuals)
    kept += shape.embed_dim * sum(transform is not None for transform in heads)
    kept += shape.ffn_dim * (after is not None)
    norms = 0
    for module in (*residuals, *heads, before, after):
        if module is not None:
            norms += sum(isinstance(part, nn.LayerNorm) for part in module.modules())
    return batch.tokens(side) * (kept * batch.stream + norms * 2 * FP32)


def _attentions(layer: TransformerLayer) -> list[MultiheadAttention]:
    return [getattr(layer, sublayer.value) for sublayer in layer.attentions]


def without_padding(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes that a layer keeps more at most where a CPU's training takes padding out.

    Each attention's output is copied for out_proj (n C), which with padding shares it with a fused
    kernel, unless there is a copy anyway. It is done from a share of padding on, of which all but
    attention keeps nothing.
    """
    shape, n = model.layers[side], batch.tokens(side)
    shared = batch.element == FP32 and batch.is_fused(shape.attention_dropout)
    if side is Side.ENCODER or not (batch.unpadded and shared):
        return 0
    attentions = _attentions(build_layer(model, side))
    plain = sum(attention.head_transform is None for attention in attentions)
    copies = plain * n * shape.embed_dim * batch.element
    alone = feed_forward(batch, shape, side) + scheme_extra(batch, model, side)
    alone += len(SUBLAYERS[side]) * joint(batch, model, side)
    share = min(positions.WORTH_IT / shape.embed_dim, 1)
    return max(0, math.floor((1 - share) * copies - share * alone))


def combination(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes kept between two layers where a scheme combines outputs (as DLCL)."""
    if not model.scheme.combines:
        return 0
    n = batch.tokens(side)
    return 2 * n * model.layers[side].embed_dim * batch.stream + 2 * n * FP32


def layer(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes that one layer keeps without checkpointing.

    Fused attention, relu and no dropout: an encoder layer keeps 8 n C + n F elements, a decoder
    layer 12 n C + 2 m C + n F; dropout adds a mask of n C per branch.
    """
    shape = model.layers[side]
    total = feed_forward(batch, shape, side) + scheme_extra(batch, model, side)
    for sublayer in SUBLAYERS[side]:
        total += joint(batch, model, side)
        if sublayer is not Sublayer.FFN:
            total += attention(batch, shape, side, sublayer is Sublayer.ENCODER_ATTN)
    return total + without_padding(batch, model, side)


def segment(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes that a segment keeps: its input, unless offloaded, and random states."""
    where = 0 if model.checkpointing[side].offload and batch.on_gpu else 1
    width = model.layers[side].embed_dim * model.scheme.streams
    return where * batch.tokens(side) * width * batch.stream + RNG_STATE


def joining(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes kept to make one stream of more than one (as ResiDual)."""
    streams, n = model.scheme.streams, batch.tokens(side)
    if streams == 1:
        return 0
    return n * streams * model.layers[side].embed_dim * batch.stream + 2 * n * FP32


def outside(batch: MicroBatch, model: Model) -> int:
    """Return the bytes kept outside the layers.

    Each side's dropout on the embeddings, the tokens (int64), the encoder's embeddings and output,
    and the decoder's output.
    """
    total = 0
    for side in Side:
        n, shape = batch.tokens(side), model.layers[side]
        elements = n * shape.embed_dim
        total += 3 * n * 8 + batch.dropout_mask(elements, shape.dropout)
        total += elements * batch.element * (2 if side is Side.ENCODER else 1)
        norms = model.has_final_norm(side) + model.embedding_norm
        total += norms * (elements * batch.stream + 2 * n * FP32)
        total += joining(batch, model, side)
        if model.learned_positions[side] or batch.padded:
            total += n
    return total
