"""Attention masks. They are boolean, True = may be attended to.

Shapes: B = batch, T = target length, S = keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class TargetMask(NamedTuple):
    """Mask of the decoder's self-attention.

    Args:
        mask: [B, 1, T, T] or None.
        causal: query t sees keys 0..t without a mask, by the attention's causal mode.
    """

    mask: Tensor | None
    causal: bool


def target_mask(padding: Tensor, full_context: bool = False) -> TargetMask:
    """Return a mask if a real position would otherwise see padding.

    Padding on the right is hidden by the causal mode. This synchronises with a GPU.

    Args:
        padding: [B, T], True = padding.
        full_context: every position sees all others, not only those before it.
    """
    exposed = padding if full_context else padding[:, :-1] & ~padding[:, 1:]
    if not exposed.any():
        return TargetMask(None, not full_context)
    length = padding.size(1)
    visible = torch.ones(length, length, dtype=torch.bool, device=padding.device)
    if not full_context:
        visible = visible.tril()
    visible = visible & key_mask(padding)
    # Padding before the first word sees itself: a query without keys would give NaN.
    itself = torch.eye(length, dtype=torch.bool, device=padding.device)
    return TargetMask(visible | (itself & ~visible.any(dim=-1, keepdim=True)), False)


def key_mask(padding: Tensor) -> Tensor:
    """Return the mask [B, 1, 1, S] of the keys that are not padding [B, S]."""
    return ~padding[:, None, None, :]
