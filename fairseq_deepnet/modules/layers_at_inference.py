"""Decoder layers for inference, which run one position.

A step of beam search consists of hundreds of small operations and spends most of its time outside
matrix products. Therefore activations are matrices [R, C] here, one product computes q, k and v,
batched products compute the attention of all hypotheses of a sentence together, and a layer's parts
are looked up once per batch.

Shapes: R = rows, B = sentences, K = R / B hypotheses per sentence, C = channels, H = heads,
D = C / H, n = stored positions, S = source positions, S' = S padded to a multiple of 16.
"""

from collections.abc import Callable
from functools import partial

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

from ..schemes import Sublayer
from .attention import MultiheadAttention
from .decoding_cache import DecodingCache, LayerMemory
from .joined_projection import projection
from .layers import DecoderLayer
from .positions import Unpadded

ProjectSource = Callable[[MultiheadAttention], tuple[Tensor, Tensor]]


class NewestPosition:
    """Decoder layer applied to the newest position of every row.

    Args:
        layer: the decoder layer.
        cache: the batch's cache of keys and values.
        project: computes a cross-attention's keys and values [B, H, S, D], in the cache's order,
            from the encoder's output; None if there is no encoder.
    """

    def __init__(
        self, layer: DecoderLayer, cache: DecodingCache, project: ProjectSource | None
    ) -> None:
        self.cache = cache
        self.layer, self.number = layer, layer.place.layer
        self.memory = LayerMemory(cache)
        cache.layers.append(self.memory)
        self.feed_forward = layer.feed_forward
        self.attention = Attend(layer.self_attn)
        self.leave = partial(layer.leave, Sublayer.SELF_ATTN)
        self.enter = partial(layer.enter, Sublayer.SELF_ATTN)
        self.project = projection(layer.self_attn)
        self.cross: Attend | None = None
        if project is not None:
            self.memory.set_source(*project(layer.encoder_attn))
            self.cross = Attend(layer.encoder_attn)
            self.query = layer.encoder_attn.q_proj
            self.leave_cross = partial(layer.leave, Sublayer.ENCODER_ATTN)
            self.enter_cross = partial(layer.enter, Sublayer.ENCODER_ATTN)

    @property
    def draws(self) -> bool:
        """True if dropout is active (in training mode or with --retain-dropout)."""
        return any(
            module.p > 0 and (module.training or module.apply_during_inference)
            for module in self.layer.modules()
            if isinstance(module, FairseqDropout)
        )

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output [R, C] and cross-attention weights [B H, K, S'].

        Call the cache's `begin` before each step.

        Args:
            x: [R, C], in the cache's order.
        """
        cache, memory, attention = self.cache, self.memory, self.attention
        heads, group = attention.heads, cache.hypotheses_per_sentence
        y = self.project(self.enter(x)).view(-1, group, 3, heads, attention.head_dim)
        memory.views(y)
        memory.places.index_put_(cache.newest, y[:, :, 1:])
        bias = cache.slots.bias(heads, y)
        branch, _ = attention(y[:, :, 0], memory.keys, memory.values, bias)
        x = self.leave(x, branch)
        weights = None
        if self.cross is not None:
            query = self.query(self.enter_cross(x)).view(-1, group, heads, attention.head_dim)
            bias = cache.source_bias(heads, query)
            branch, weights = self.cross(query, memory.source_keys, memory.source_values, bias)
            x = self.leave_cross(x, branch)
        return self.feed_forward(x), weights


class Attend:
    """Attention of a few queries per sentence: softmax(Q K^T / sqrt(D)) V, followed by out_proj.

    On a CPU, two batched matrix products take half as long as torch's scaled_dot_product_attention.
    """

    def __init__(self, attention: MultiheadAttention) -> None:
        self.heads, self.head_dim = attention.num_heads, attention.head_dim
        self.scale = self.head_dim**-0.5
        self.dropout = attention.dropout_module if attention.dropout_probability() else None
        self.head_transform = attention.head_transform
        self.out_proj = attention.out_proj

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the output [R, C] and the weights [B H, K, n].

        Args:
            query: [B, K, H, D]. keys: [B H, D, n]. values: [B H, n, D].
            bias: additive mask for the scores, [B H, K or 1, n].
        """
        sentences, group, heads, head_dim = query.shape
        query = query.transpose(1, 2).reshape(-1, group, head_dim)
        weights = torch.baddbmm(bias, query, keys, alpha=self.scale).softmax(-1)
        dropped = weights if self.dropout is None else self.dropout(weights)
        output = torch.bmm(dropped, values).view(sentences, heads, group, head_dim)
        if self.head_transform is not None:
            output = self.head_transform(output)
        return self.out_proj(output.transpose(1, 2).reshape(sentences * group, -1)), weights


def source_projection(source: Tensor, real: Tensor) -> ProjectSource:
    """Return a function that computes a cross-attention's keys and values [B, H, S, D].

    Args:
        source: the encoder's output, [B, S, C'].
        real: [B, S], False = padding.
    """
    if real.all():
        return lambda attention: attention.project(source)
    batch = Unpadded(~real)
    rows = batch.take(source)
    return lambda attention: attention.project(rows, batch)
