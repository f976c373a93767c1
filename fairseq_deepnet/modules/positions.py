"""Attention masks, and batches without padding: the real positions as rows of one matrix.

Masks are boolean, True = may be attended to, until `additive` converts them. Batches are sorted by
source length. Target lengths differ, more so in small corpora and large batches
(docs/reports/speed.md). Everything but attention treats positions independently.

Shapes: B = batch, T = target or any length, S = keys, n = real positions, C = channels.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

WORTH_IT: Final = 20
"""Channels times the share of padding above which training without padding is faster: 8 % padding
at width 256, a third at width 64, where overhead per call dominates."""


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


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a mask [..., S] is True and -inf elsewhere.

    A model converts its masks once per batch, because attention would convert a boolean mask in
    each layer. Rows are padded in memory to a multiple of 8, as torch's memory-efficient kernel
    requires; always by at least one element, so that torch.compile sees one layout.
    """
    length = mask.size(-1)
    rows = mask.new_zeros(*mask.shape[:-1], length + 8 - length % 8, dtype=dtype)
    return rows[..., :length].masked_fill_(~mask, -math.inf)


class Unpadded:
    """Conversion between a padded batch and its real positions. It synchronises with a GPU.

    Args:
        padding: [B, T], True = padding; at least one position is real.

    Attributes:
        positions: indices of the real positions in the flattened batch, [n].
        rows: row of the n for each position of the flattened batch, [B T]. Padding refers to the
            row before it, as nothing attends to it.
    """

    def __init__(self, padding: Tensor) -> None:
        self.shape = padding.shape
        real = ~padding.flatten()
        self.positions = real.nonzero()[:, 0]
        self.rows = (real.cumsum(0) - 1).clamp_min(0)

    @classmethod
    def where_it_pays(cls, padding: Tensor, channels: int) -> Unpadded | None:
        """Return a batch if removing its padding speeds up a training pass, otherwise None.

        It is None on GPUs, where synchronising costs more.

        Args:
            padding: [B, T], True = padding.
            channels: C.
        """
        if padding.device.type != "cpu":
            return None
        share = padding.count_nonzero().item() / max(padding.numel(), 1)
        return cls(padding) if WORTH_IT / channels < share < 1 else None

    def take(self, x: Tensor) -> Tensor:
        """Return the real positions, [B, T, C] -> [n, C]; the gradient of padding is 0."""
        taken: Tensor = _Take.apply(x, self)  # type: ignore[no-untyped-call]
        return taken

    def spread(self, x: Tensor) -> Tensor:
        """Return x [n, C] as [B, T, C] for attention.

        Padding has arbitrary finite values. They must be masked, as their gradient is ignored.
        """
        spread: Tensor = _Spread.apply(x, self)  # type: ignore[no-untyped-call]
        return spread

    def restore(self, x: Tensor) -> Tensor:
        """Return x as a batch, [n, C] -> [B, T, C], with zeros at padding."""
        rows = x.new_zeros(self.rows.numel(), x.size(-1))
        return rows.index_copy(0, self.positions, x).unflatten(0, self.shape)


class _Take(torch.autograd.Function):
    """index_select with a backward pass that copies rows, where torch's adds them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: Unpadded) -> Tensor:
        ctx.batch = batch
        return x.flatten(0, 1).index_select(0, batch.positions)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.batch.restore(grad), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: Unpadded) -> Tensor:
        ctx.batch = batch
        return x.index_select(0, batch.rows).unflatten(0, batch.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad.flatten(0, 1).index_select(0, ctx.batch.positions), None
