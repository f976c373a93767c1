"""Attention masks, and removal of padding from batches.

Masks are boolean (True = may attend) until `additive` converts them. Sentences are batched by
source length, but their target lengths differ, especially in small corpora and large batches
(docs/reports/speed.md). Operations other than attention do not need padding.

Shapes: B = batch, T = target or any length, S = keys, n = real positions, C = channels.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

WORTH_IT: Final = 20
"""Training without padding is faster if the number of channels times the share of padding exceeds
this number, e.g. from 8 % padding at width 256 and from a third at width 64."""


def target_mask(padding: Tensor, full_context: bool = False) -> tuple[Tensor | None, bool]:
    """Return the decoder's self-attention mask and whether its attention is in causal mode.

    The mask is [B, 1, T, T], or None if no real position can attend to padding.

    In causal mode, query t attends to keys 0..t, which hides padding on the right. On a GPU, this
    function causes a synchronisation.

    Args:
        padding: [B, T], True = padding.
        full_context: let every position attend to all positions, not only to earlier ones.
    """
    exposed = padding if full_context else padding[:, :-1] & ~padding[:, 1:]
    if not exposed.any():
        return None, not full_context
    length = padding.size(1)
    visible = torch.ones(length, length, dtype=torch.bool, device=padding.device)
    if not full_context:
        visible = visible.tril()
    visible = visible & key_mask(padding)
    # Padding before the first word attends to itself, because a query without keys gives NaN.
    itself = torch.eye(length, dtype=torch.bool, device=padding.device)
    return visible | (itself & ~visible.any(dim=-1, keepdim=True)), False


def key_mask(padding: Tensor) -> Tensor:
    """Return a mask [B, 1, 1, S] that excludes the padded keys [B, S]."""
    return ~padding[:, None, None, :]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a boolean mask [..., S] to an additive mask: True to 0, and False to -inf.

    Models convert masks once per batch; attention would convert boolean masks again in every layer.
    In memory, rows are padded to a multiple of 8, as torch's memory-efficient kernel requires, and
    by at least one element, so that torch.compile sees only one layout.
    """
    length = mask.size(-1)
    rows = mask.new_zeros(*mask.shape[:-1], length + 8 - length % 8, dtype=dtype)
    return rows[..., :length].masked_fill_(~mask, -math.inf)


class Unpadded:
    """Conversion between a padded batch and its real positions.

    On a GPU, creating an instance causes a synchronisation.

    Args:
        padding: [B, T], True = padding; at least one position is real.
        packed: let attention run without padding as well, by torch's `varlen_attn`.

    Attributes:
        positions: indices of the real positions in the flattened batch, [n].
        rows: for each position in the flattened batch, its index in `positions`, [B T]. Padding, to
            which no position attends, has the index of the preceding real position.
        starts: index of each sentence's first real position, and n, [B + 1].
    """

    def __init__(self, padding: Tensor, packed: bool = False) -> None:
        self.shape = padding.shape
        self.packed = packed
        lengths = padding.size(1) - padding.sum(dim=1)
        self.starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        real = ~padding.flatten()
        self.positions = real.nonzero()[:, 0]
        self.rows = (real.cumsum(0) - 1).clamp_min(0)

    @classmethod
    def where_it_pays(cls, padding: Tensor, channels: int) -> Unpadded | None:
        """Return an instance if training without padding is faster, otherwise None.

        On GPUs, return None, because the limit was measured on CPUs.

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
        return _Take.apply(x, self)  # type: ignore[no-untyped-call]

    def spread(self, x: Tensor) -> Tensor:
        """Return x [n, C] as [B, T, C] for attention.

        Padding has arbitrary finite values, which must be masked: the backward pass ignores their
        gradients.
        """
        return _Spread.apply(x, self)  # type: ignore[no-untyped-call]

    def restore(self, x: Tensor) -> Tensor:
        """Return x [n, C] as [B, T, C] with zeros at padding."""
        rows = x.new_zeros(self.rows.numel(), x.size(-1))
        return rows.index_copy(0, self.positions, x).unflatten(0, self.shape)


class TargetMask(NamedTuple):
    """Self-attention mask [B, 1, T, T] or None, causal mode, and the batch to run unpadded."""

    mask: Tensor | None
    causal: bool
    batch: Unpadded | None = None


class _Take(torch.autograd.Function):
    """index_select whose backward pass copies rows; that of torch's index_select adds them."""

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
