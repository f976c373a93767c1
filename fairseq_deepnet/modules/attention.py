"""Multi-head attention with torch's scaled_dot_product_attention and fairseq's parameter names.

Shapes: B = batch, T = queries, S = keys, C = channels, H = heads, D = C / H. Batch comes first.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

from .dropout import Dropout
from .positions import Unpadded


class MultiheadAttention(nn.Module):
    """Multi-head attention: softmax(Q K^T / sqrt(D)) V in each of H heads, then out_proj.

    `project` computes keys and values separately, so that the caller can reuse them. Incremental
    decoding projects each source sentence only once.

    Args:
        embed_dim: C, the number of channels of queries and output.
        num_heads: H, a divisor of `embed_dim`.
        source_dim: C', the number of channels of the source (default: `embed_dim`).
        dropout: probability of dropping an attention weight during training.
        bias: add biases to the four linear maps.
        head_transform: module applied to the heads' outputs [B, H, T, D] before out_proj.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        source_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        head_transform: nn.Module | None = None,
    ) -> None:
        super().__init__()
        source_dim = embed_dim if source_dim is None else source_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout_module = Dropout(dropout, module_name="MultiheadAttention")
        # fairseq's order k, v, q, out, so that the same seed gives the same stock weights.
        self.k_proj = nn.Linear(source_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(source_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.head_transform = head_transform
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as fairseq does: Xavier-uniform; q, k and v have gain 1/sqrt(2) if C' = C."""
        same_dim = self.k_proj.in_features == self.q_proj.in_features
        gain = 1 / math.sqrt(2) if same_dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def split_heads(self, x: Tensor) -> Tensor:
        """Return x [B, T, C] as a view [B, H, T, D]."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def project(self, source: Tensor, batch: Unpadded | None = None) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H, S, D] for a source [B, S, C'], or [n, C'] with `batch`.

        If the batch is packed, they are [n, H, D].
        """
        return self.heads(self.k_proj(source), batch), self.heads(self.v_proj(source), batch)

    def heads(self, x: Tensor, batch: Unpadded | None) -> Tensor:
        """Return x [B, T, C], or [n, C] with `batch`, as [B, H, T, D]; [n, H, D] if packed."""
        if batch is not None and batch.packed:
            return x.unflatten(-1, (self.num_heads, self.head_dim))
        return self.split_heads(x if batch is None else batch.spread(x))

    def forward(
        self,
        x: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        batch: Unpadded | None = None,
        source_batch: Unpadded | None = None,
    ) -> Tensor:
        """Attend from x [B, T, C] to key and value [B, H, S, D]; return [B, T, C].

        Args:
            mask: additive (0, or -inf for hidden keys), broadcastable to [B, H, T, S]. Each query
                needs at least one visible key.
            causal: let query t attend to keys 0..t; `mask` must be None.
            batch: if given, x and the output contain only positions that are not padding, [n, C].
            source_batch: batch of key and value (default: `batch`), if `batch` is packed.
        """
        query = self.heads(self.q_proj(x), batch)
        if batch is not None and batch.packed:
            source = source_batch or batch
            window = (-1, 0) if causal else (-1, -1)
            starts, lengths = (batch.starts, source.starts), (batch.shape[1], source.shape[1])
            rows = varlen_attn(query, key, value, *starts, *lengths, window_size=window)
            heads = cast(Tensor, rows).transpose(0, 1).unsqueeze(0)  # one row, [1, H, n, D]
        else:
            heads = scaled_dot_product_attention(
                query, key, value, mask, self.dropout_probability(), causal
            )
        if self.head_transform is not None:
            heads = self.head_transform(heads)
        joined = heads.transpose(1, 2).flatten(2)
        if batch is not None:
            joined = joined[0] if batch.packed else batch.take(joined)
        return self.out_proj(joined)

    def dropout_probability(self) -> float:
        """Return the current dropout probability: 0 at inference without --retain-dropout."""
        module = self.dropout_module
        return module.p if module.training or module.apply_during_inference else 0.0

    def weights(self, x: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights [B, H, T, S] with which x [B, T, C] attends to key [B, H, S, D]."""
        query = self.split_heads(self.q_proj(x))
        scores = torch.matmul(query, key.transpose(-1, -2)).float() / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        return scores.softmax(dim=-1)

    def extra_repr(self) -> str:
        return f"heads={self.num_heads}"


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V, [B, H, T, D].

    Half-precision training on the CPU uses float32 here, because torch 2.13's backward pass takes
    five times as long in bfloat16.

    Args:
        query: [B, H, T, D]. key, value: [B, H, S, D].
        mask: additive, broadcastable to [B, H, T, S].
        dropout: probability of dropping an attention weight.
        causal: let query t attend to keys 0..t; `mask` must be None.
    """
    dtype = query.dtype
    is_half = query.device.type == "cpu" and dtype in (torch.bfloat16, torch.float16)
    if is_half and torch.is_grad_enabled():
        query, key, value = query.float(), key.float(), value.float()
    mask = None if mask is None else mask.to(query.dtype)
    heads = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal
    )
    return heads.to(dtype)
