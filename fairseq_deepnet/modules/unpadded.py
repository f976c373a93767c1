"""Generation without the padding of the source, in the encoder and in the cross-attention.

Generation sorts sentences by words. They differ in subwords, so that a third of a batch may be
padding. (Training sorts by subwords of the source and has hardly any.) Linear maps are applied only
to real positions, attention to whole sentences.

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
    """An encoder layer applied to the real positions of a batch, for inference.

    Args:
        layer: layer of the encoder.
        batch: the batch.
    """

    def __init__(self, layer: EncoderLayer, batch: Unpadded) -> None:
        self.batch = batch
        self.attention, self.feed_forward = layer.self_attn, layer.feed_forward
        self.enter = entering(layer, Sublayer.SELF_ATTN)
        self.leave = joining(layer, Sublayer.SELF_ATTN)
        self.project = projection(layer.self_attn)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output [n, C] for x [n, C]."""
        attention = self.attention
        parts = self.batch.spread(self.project(self.enter(x))).chunk(3, dim=-1)
        query, key, value = map(attention.split_heads, parts)
        heads = scaled_dot_product_attention(
            query, key, value, self.batch.mask, attention.dropout_probability()
        )
        if attention.head_transform is not None:
            heads = attention.head_transform(heads)
        joined = self.batch.take(heads.transpose(1, 2).flatten(2))
        return self.feed_forward(self.leave(x, attention.out_proj(joined)))


def source_projection(source: Tensor, real: Tensor) -> ProjectSource:
    """Return a function from a cross-attention to its keys and values [B, H, S, D].

    Args:
        source: the encoder's output, [B, S, C'].
        real: [B, S], False = padding.
    """
    if real.all():
        return lambda attention: attention.project(source)
    batch = Unpadded(~real)
    rows = batch.take(source)
    return lambda attention: attention.project(rows, batch)
