"""The encoder without its padding: what a batch holds of sentences shorter than its longest.

Sentences that are sorted by words still differ in subwords, and a third of a batch may be padding.
Each position but those goes through the encoder's products alone; attention is computed on whole
sentences.

Shapes: B = sentences, S = positions of the longest, n = positions that are no padding,
C = channels, H = heads.
"""

from torch import Tensor

from ..schemes import Sublayer
from .attention import MultiheadAttention
from .decoding_step import ProjectSource, entering, joining
from .joined_projection import projection
from .layers import EncoderLayer
from .positions import Unpadded
from .scaled_dot_product import scaled_dot_product_attention


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
    """What makes keys and values [B, H, S, D] of the encoder's output for a cross-attention.

    Args:
        source: [B, S, C'].
        real: [B, S], False = padding.
    """
    if real.all():
        return lambda attention: attention.project(source)
    batch = Unpadded(real)
    rows = batch.take(source)

    def project(attention: MultiheadAttention) -> tuple[Tensor, Tensor]:
        key, value = (batch.spread(one(rows)) for one in (attention.k_proj, attention.v_proj))
        return attention.split_heads(key), attention.split_heads(value)

    return project
