"""Activations that the forward pass of a micro-batch stores for backward.

The formulas count each tensor that autograd saves for the code in modules/ exactly once.

n = tokens per micro-batch on one side, m = n of the encoder side, C = channels, F = feed-forward
width, H = heads, L = tokens per sentence, e = bytes per activation.
"""

import dataclasses
from typing import cast

from torch import nn

from ..modules.attention import MultiheadAttention
from ..modules.layers import LayerShape
from ..modules.stack import thriftiest_segment
from ..schemes import NormPlacement, Residual, ResidualScheme, Side, Sublayer
from . import FP32, SUBLAYERS, Model, Training, build_layer

RNG_STATE = 5056 + 16
"""Bytes of the CPU's and the GPU's random state, which torch's checkpoint stores per segment."""


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass on one device.

    Args:
        sentences: number of sentences
        source, target: tokens per sentence on each side, including padding
        element: e, the number of bytes per activation
        on_gpu: True on a GPU, where dropout's mask has one byte per element (e bytes on the CPU)
        stream: bytes per element of the residual stream (--residual-dtype)
    """

    sentences: int
    source: int
    target: int
    element: int
    on_gpu: bool
    stream: int = FP32

    def tokens(self, side: Side) -> int:
        """Return n, the number of tokens on a side, including padding."""
        return self.sentences * (self.source if side is Side.ENCODER else self.target)

    def length(self, side: Side) -> int:
        """Return L, the number of tokens per sentence on a side."""
        return self.source if side is Side.ENCODER else self.target

    def dropout_mask(self, elements: int, probability: float) -> int:
        """Return the number of bytes that dropout stores for `elements` activations."""
        if not probability:
            return 0
        return elements * (1 if self.on_gpu else self.element)

    def is_fused(self, attention_dropout: float) -> bool:
        """Return True if scaled_dot_product_attention uses a kernel that stores no L x L weights.

        On CPUs, dropout makes torch use the unfused "math" code, as the fused kernel lacks dropout.
        """
        return self.on_gpu or not attention_dropout


def micro_batch(model: Model, training: Training, length: int) -> MicroBatch:
    """Return a full micro-batch of equally long sentences, with --max-tokens tokens per side."""
    length = min(length, training.max_tokens)
    stream = FP32 if model.streams_in_fp32 else training.element
    sentences, on_gpu = max(1, training.max_tokens // length), training.gpus > 0
    return MicroBatch(sentences, length, length, training.element, on_gpu, stream)


def auto_segment(side: Side, scheme: ResidualScheme, shape: LayerShape, layers: int) -> int:
    """Return the segment length that `--checkpoint-activations-every auto` selects for a stack.

    With fused attention, relu and LayerNorm, an encoder layer stores 8 + F / C times as many
    elements as its input has. Cross-attention adds 6 to this factor, and dropout adds 1 per branch.
    """
    if scheme.combines:
        return 1
    crossed = side is Side.DECODER and scheme.depths.encoder > 0
    stored = shape.ffn_dim / shape.embed_dim + (17 if crossed else 10)
    return thriftiest_segment(layers, stored / scheme.streams)


def attention(batch: MicroBatch, shape: LayerShape, side: Side, cross: bool) -> int:
    """Return the bytes that the attention branch stores in addition to its input.

    Queries, keys, values and the output have 2 n C + 2 k C elements for k keys. A fused kernel adds
    one fp32 log-sum-exp per query and head, and one mask element per source position. The math
    implementation adds the softmax weights (n H L elements) and dropout's mask and output.

    In half precision, CPUs compute attention in fp32; out_proj stores a rounded copy of the result.
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
        if cross or side is Side.ENCODER:
            total += k * element
        return total
    weights = n * shape.heads * length
    total += weights * element
    if shape.attention_dropout:  # the mask has the activations' type on the CPU
        total += weights * (element + (1 if batch.on_gpu else element))
    return total


def feed_forward(batch: MicroBatch, shape: LayerShape, side: Side) -> int:
    """Return the bytes that the feed-forward branch stores in addition to its input.

    relu stores its output, which is fc2's input: n F elements. Other activation functions also
    store their input in fp32, because fairseq computes them in fp32. Dropout adds its mask and,
    after relu, its output.
    """
    hidden = batch.tokens(side) * shape.ffn_dim
    total = hidden * batch.element
    if shape.activation != "relu":
        total += hidden * FP32
    elif shape.activation_dropout:
        total += hidden * batch.element
    return total + batch.dropout_mask(hidden, shape.activation_dropout)


def joint(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes stored by one branch's dropout, LayerNorm and residual connection.

    The linear maps of a branch store the branch's input (n C). In both Post-LN and Pre-LN,
    LayerNorm stores its own input (n C) and, for each token, an fp32 mean and standard deviation.
    """
    shape, n = model.layers[side], batch.tokens(side)
    elements = n * shape.embed_dim
    total = elements * batch.element + batch.dropout_mask(elements, shape.dropout)
    if model.scheme.norm is not NormPlacement.NONE:
        total += elements * batch.stream + 2 * n * FP32
    return total


def scheme_extra(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes stored by the modules that a scheme adds to a layer.

    Transforms of the heads and of fc2's input store both their input and their result. A residual
    declares how many tensors of n C elements it stores.
    """
    layer, shape = build_layer(model, side), model.layers[side]
    attentions = [getattr(layer, sublayer.value) for sublayer in layer.attentions]
    heads = [cast(MultiheadAttention, each).head_transform for each in attentions]
    before, after = layer.pre_activation_transform, layer.post_activation_transform
    residuals = [cast(Residual, residual) for residual in layer.residuals.values()]
    stored = shape.embed_dim * sum(residual.saved for residual in residuals)
    stored += shape.embed_dim * sum(transform is not None for transform in heads)
    stored += shape.ffn_dim * (after is not None)
    norms = 0
    for module in (*residuals, *heads, before, after):
        if module is not None:
            norms += sum(isinstance(part, nn.LayerNorm) for part in module.modules())
    return batch.tokens(side) * (stored * batch.stream + norms * 2 * FP32)


def combination(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes stored per layer by a scheme that combines layer outputs (DLCL)."""
    if not model.scheme.combines:
        return 0
    n = batch.tokens(side)
    return 2 * n * model.layers[side].embed_dim * batch.stream + 2 * n * FP32


def layer(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes that one layer stores without checkpointing.

    With fused attention, relu and no dropout, an encoder layer stores 8 n C + n F elements and a
    decoder layer 12 n C + 2 m C + n F. Dropout adds a mask of n C elements per branch.
    """
    shape = model.layers[side]
    total = feed_forward(batch, shape, side) + scheme_extra(batch, model, side)
    for sublayer in SUBLAYERS[side]:
        total += joint(batch, model, side)
        if sublayer is not Sublayer.FFN:
            total += attention(batch, shape, side, sublayer is Sublayer.ENCODER_ATTN)
    return total


def segment(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes of a segment's random states, and of its input unless it is offloaded."""
    if model.checkpointing[side].offload and batch.on_gpu:
        return RNG_STATE
    width = model.layers[side].embed_dim * model.scheme.streams
    return batch.tokens(side) * width * batch.stream + RNG_STATE


def joining(batch: MicroBatch, model: Model, side: Side) -> int:
    """Return the bytes stored by the module that joins several streams (ResiDual)."""
    streams, n = model.scheme.streams, batch.tokens(side)
    if streams == 1:
        return 0
    return n * streams * model.layers[side].embed_dim * batch.stream + 2 * n * FP32


def outside(batch: MicroBatch, model: Model) -> int:
    """Return the bytes stored outside the layers.

    The int64 tokens, the dropout mask of each side's embeddings, the encoder's embeddings and
    output, the decoder's output, and the inputs of LayerNorms are included.
    """
    total = 0
    for side in Side:
        n, shape = batch.tokens(side), model.layers[side]
        elements = n * shape.embed_dim
        total += 3 * n * 8 + n + batch.dropout_mask(elements, shape.dropout)
        total += elements * batch.element * (2 if side is Side.ENCODER else 1)
        norms = model.has_final_norm(side) + model.embedding_norm
        total += norms * (elements * batch.stream + 2 * n * FP32)
        total += joining(batch, model, side)
    return total
