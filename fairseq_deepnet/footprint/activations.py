"""Activations that a micro-batch stores in the forward pass for backward.

The formulas follow modules/: they count each tensor that autograd saves, once.

n = tokens of the micro-batch on one side, m = on the encoder side, C = channels, F = feed-forward
width, H = heads, L = tokens per sentence, e = bytes per activation.
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
"""Bytes of the CPU's and the GPU's generator states that torch's checkpoint stores per layer."""


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass on one device.

    Args:
        sentences: B
        source, target: tokens per sentence on each side, including padding
        element: e, bytes per activation
        on_gpu: dropout stores a mask of one byte per element; on the CPU a factor of e bytes
        padded: True if sources have padding, which requires an attention mask
        unpadded: True if padding of the targets may be removed, as in training on the CPU
        stream: bytes per element of the residual stream (--residual-dtype)
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
        """Return n, the number of tokens of a side, including padding."""
        return self.sentences * (self.source if side is Side.ENCODER else self.target)

    def length(self, side: Side) -> int:
        """Return L, the number of tokens per sentence."""
        return self.source if side is Side.ENCODER else self.target

    def dropout_mask(self, elements: int, probability: float) -> int:
        """Return the bytes that dropout of `elements` activations stores."""
        if not probability:
            return 0
        return elements * (1 if self.on_gpu else self.element)

    def is_fused(self, attention_dropout: float) -> bool:
        """Return True if scaled_dot_product_attention uses a kernel that stores no L x L weights.

        The CPU kernel does not support dropout; torch then falls back to the plain ("math") form.
        """
        return self.on_gpu or not attention_dropout


def micro_batch(model: Model, training: Training, length: int) -> MicroBatch:
    """Return a full micro-batch of equally long sentences, with --max-tokens on both sides."""
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
    """Return the checkpointing that `--checkpoint-activations-every auto` selects for a stack.

    With fused attention, relu and LayerNorm, an encoder layer stores 8 + F / C tensors of the size
    of its input; a second attention adds 6, and dropout one per branch.
    """
    if scheme.combines:
        return 1
    crossed = side is Side.DECODER and scheme.depths.encoder > 0
    kept = shape.ffn_dim / shape.embed_dim + (17 if crossed else 10)
    return thriftiest_segment(layers, kept / scheme.streams)


def attention(batch: MicroBatch, shape: LayerShape, side: Side, cross: bool) -> int:
    """Return the bytes that the attention branch stores in addition to its input.

    Queries, keys, values and the output are 2 n C + 2 k C elements for k keys. A fused kernel adds
    an fp32 logarithm per query and head and the mask of the sources, one number per key. The math
    form adds the weights after softmax, tokens x heads x keys, and with dropout also its mask and
    the product.

    The CPU computes this in fp32 at every precision; the input of out_proj is then a rounded copy.
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
    """Return the bytes that the feed-forward branch stores in addition to its input.

    relu stores its result, the input of fc2: n F elements. Other activation functions also store
    their input, in fp32 as fairseq computes them. Dropout adds its mask and, after relu, its
    result.
    """
    hidden = batch.tokens(side) * shape.ffn_dim
    total = hidden * batch.element
    if shape.activation != "relu":
        total += hidden * FP32
    elif shape.activation_dropout:
        total += hidden * batch.element
    return total + batch.dropout_mask(hidden, shape.activation_dropout)


def joint(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes stored by dropout, LayerNorm and the residual connection of one branch.

    The linear maps of the branch store its input (n C). LayerNorm stores its own input (n C) and an
    fp32 mean and deviation per token, in Post-LN as in Pre-LN.
    """
    shape, n = model.layers[side], batch.tokens(side)
    elements = n * shape.embed_dim
    total = elements * batch.element + batch.dropout_mask(elements, shape.dropout)
    if model.scheme.norm is not NormPlacement.NONE:
        total += elements * batch.stream + 2 * n * FP32
    return total


def scheme_extra(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes stored by the modules that a scheme adds to a layer.

    Transforms of the heads and before fc2 store their result in addition to their input; a residual
    declares how many tensors of n C it stores.
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
    """Return the maximum number of additional bytes per layer if padding is removed on a CPU.

    The output of each attention is copied for out_proj (n C) unless a copy exists anyway; with
    padding, out_proj shares it with a fused kernel. Padding is removed only above a certain share,
    and everything except attention then stores nothing for it.
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
    """Return the bytes stored between two layers by a scheme that combines outputs (DLCL)."""
    if not model.scheme.combines:
        return 0
    n = batch.tokens(side)
    return 2 * n * model.layers[side].embed_dim * batch.stream + 2 * n * FP32


def layer(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes that one layer stores without checkpointing.

    With fused attention, relu and no dropout, an encoder layer stores 8 n C + n F elements, a
    decoder layer 12 n C + 2 m C + n F; dropout adds a mask of n C per branch.
    """
    shape = model.layers[side]
    total = feed_forward(batch, shape, side) + scheme_extra(batch, model, side)
    for sublayer in SUBLAYERS[side]:
        total += joint(batch, model, side)
        if sublayer is not Sublayer.FFN:
            total += attention(batch, shape, side, sublayer is Sublayer.ENCODER_ATTN)
    return total + without_padding(batch, model, side)


def segment(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes that a segment stores: random states, and its input unless offloaded."""
    where = 0 if model.checkpointing[side].offload and batch.on_gpu else 1
    width = model.layers[side].embed_dim * model.scheme.streams
    return where * batch.tokens(side) * width * batch.stream + RNG_STATE


def joining(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes stored by the module that joins several streams into one (ResiDual)."""
    streams, n = model.scheme.streams, batch.tokens(side)
    if streams == 1:
        return 0
    return n * streams * model.layers[side].embed_dim * batch.stream + 2 * n * FP32


def outside(batch: MicroBatch, model: Model) -> int:
    """Return the bytes stored outside the layers.

    These are the dropout on each side's embeddings, the tokens (int64), the embeddings and output
    of the encoder, and the output of the decoder.
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
