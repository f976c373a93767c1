"""Generating without the source's padding: the encoder, and what the decoder makes of its output.

Sentences that are sorted by words differ in subwords, so that a third of a batch may be padding; in
training, which sorts by the source's subwords, next to nothing is. Products are made of the real
positions only, attention is computed on whole sentences.

Shapes: B = sentences, S = positions of the longest, n = positions that are no padding,
C = channels, H = heads.
"""

from torch import Tensor

from ..schemes import Sublayer
from .attention import scaled_dot_product_attention
from .decoding_step import ProjectSource, entering, joining
from .joined_projection import projection
from .layers import EncoderLayer
from .positions import Unpadded


class UnpaddedLayer:
    """An encoder layer at work on the real positions of a batch, while nothing is trained.

    Args:
        layer: of the encoder.
        batch: what it works on.
    """

    def __init__(self, layer: EncoderLayer, batch: Unpadded) -> None:
        self.batch = batch
        self.attention, self.feed_forward = layer.self_attn, layer.feed_forward
        self.enter = entering(layer, Sublayer.SELF_ATTN)
        self.leave = joining(layer, Sublayer.SELF_ATTN)
        self.project = projection(layer.self_attn)

    def __call__(self, x: Tensor) -> Tensor:
        """[n, C] -> [n, C]."""
        attention = self.attention
        parts = self.batch.spread(self.project(self.enter(x))).chunk(3, dim=-1)
        query, key, value = map(attention.split_heads, parts)
        heads = scaled_dot_product_attention(
            query, key, value, self.batch.mask, attention.dropout_probability()
        )
        if attention.head_transform is not None:
            heads = attention.head_transform(heads)
        found = self.batch.take(heads.transpose(1, 2).flatten(2))
        return self.feed_forward(self.leave(x, attention.out_proj(found)))


def source_projection(source: Tensor, real: Tensor) -> ProjectSource:
    """Return what makes a cross-attention's keys and values [B, H, S, D] of the encoder's output.

    Args:
        source: [B, S, C'].
        real: [B, S], False = padding.
    """
    if real.all():
        return lambda attention: attention.project(source)
    batch = Unpadded(~real)
    rows = batch.take(source)
    return lambda attention: attention.project(rows, batch)
