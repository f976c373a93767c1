"""A batch without its padding: the positions that somebody reads, one below the other.

Batches are sorted by the source's length; the target's differ, the more the fewer pairs there are
and the larger the batches (docs/reports/speed.md). All but attention takes positions one by one.

Shapes: B = batch, T = length, n = positions that are no padding, C = channels.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from .masks import key_mask

WORTH_IT: Final = 20
"""Channels times the share of padding from which training without it is faster: at width 256 that
is padding of 8 %, at 64 of a third, where time goes into calls more than into rows."""


class Unpadded:
    """Brings a batch to its real positions, and back. The host waits for a GPU's n.

    Args:
        padding: [B, T], True = padding; not all of it.

    Attributes:
        mask: what may be attended to, [B, 1, 1, T].
        positions: where the real ones stand in the batch, flattened; [n].
        rows: which of the n stands at each position of the batch, flattened; [B T]. At padding it
            is the one before: any would do that is a number, because nobody attends to it.
    """

    def __init__(self, padding: Tensor) -> None:
        self.shape, self.mask = padding.shape, key_mask(padding)
        real = ~padding.flatten()
        self.positions = real.nonzero()[:, 0]
        self.rows = (real.cumsum(0) - 1).clamp_min(0)

    @classmethod
    def where_it_pays(cls, padding: Tensor, channels: int) -> Unpadded | None:
        """Return a batch for a training pass; None with too little padding.

        None on GPUs too, where waiting costs more.

        Args:
            padding: [B, T], True = padding. channels: C of what will be taken.
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
        """Return x [n, C] as [B, T, C], to be attended to.

        Padding holds a number that nobody may read, and whose gradient, 0 then, is not looked at.
        """
        spread: Tensor = _Spread.apply(x, self)  # type: ignore[no-untyped-call]
        return spread

    def restore(self, x: Tensor) -> Tensor:
        """Return x as a batch, [n, C] -> [B, T, C], 0 where there is padding."""
        rows = x.new_zeros(self.rows.numel(), x.size(-1))
        return rows.index_copy(0, self.positions, x).unflatten(0, self.shape)


class _Take(torch.autograd.Function):
    """The gradient that torch has for this adds up rows, which takes longer than to copy them."""

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
