"""Which positions may attend to which. Masks are boolean, True = may be attended to.

Shapes: B = batch, T = target length, S = keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class TargetMask(NamedTuple):
    """Self-attention's in a decoder.

    Args:
        mask: [B, 1, T, T] or None.
        causal: query t sees keys 0..t, by attention's own rule, and there is no mask.
    """

    mask: Tensor | None
    causal: bool


def target_mask(padding: Tensor, full_context: bool = False) -> TargetMask:
    """Return a mask, but only where a real position would else see padding.

    Where all padding is on the right, the causal rule hides it. The host waits for a GPU's answer,
    and so for all that it has queued.

    Args:
        padding: [B, T], True = padding.
        full_context: every position sees all others, and not just those before it.
    """
    exposed = padding if full_context else padding[:, :-1] & ~padding[:, 1:]
    if not exposed.any():
        return TargetMask(None, not full_context)
    length = padding.size(1)
    visible = torch.ones(length, length, dtype=torch.bool, device=padding.device)
    if not full_context:
        visible = visible.tril()
    visible = visible & key_mask(padding)
    # Padding before the first word sees itself, because a query without any key would be NaN.
    itself = torch.eye(length, dtype=torch.bool, device=padding.device)
    return TargetMask(visible | (itself & ~visible.any(dim=-1, keepdim=True)), False)


def key_mask(padding: Tensor) -> Tensor:
    """Return the mask [B, 1, 1, S] of keys that every query may see, for padding [B, S]."""
    return ~padding[:, None, None, :]
