"""torch's scaled_dot_product_attention, kept off one slow kernel.

Shapes: B = batch, H = heads, T = queries, S = keys, D = channels of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V, as [B, H, T, D].

    In training on the CPU in half precision it is computed in float32: torch 2.13's backward pass
    takes five times as long for bfloat16 as for float32 there.

    Args:
        query: [B, H, T, D]. key, value: [B, H, S, D].
        mask: boolean, broadcastable to [B, H, T, S]; True = may attend.
        dropout: probability of dropping a weight.
        causal: query t sees keys 0..t; excludes `mask`.
    """
    dtype = query.dtype
    is_half = query.device.type == "cpu" and dtype in (torch.bfloat16, torch.float16)
    if is_half and torch.is_grad_enabled():
        query, key, value = query.float(), key.float(), value.float()
    heads = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal
    )
    return heads.to(dtype)
