"""Slots: the positions stored per sentence, and the histories of its hypotheses among them.

Shapes: B = sentences, K = hypotheses per sentence, n = slots per sentence, H = heads.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MULTIPLE = 16  # torch's softmax on the CPU is several times slower on rows shorter than a vector


def padded(length: int) -> int:
    """Round `length` up to a multiple of MULTIPLE."""
    return -(-length // MULTIPLE) * MULTIPLE


class Slots:
    """Slots that hold the history of each hypothesis.

    Hypotheses of one beam share most of their past. Each position has one slot, to which all
    hypotheses that descend from it attend. Reordering beams changes only `mask`. A slot is free
    again when no hypothesis descends from it.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask  # [B, K, n], True = of this hypothesis's history
        self.newest = mask.new_zeros((0,))  # [B, K], slots of the positions being written
        self._bias: Tensor | None = None

    @classmethod
    def empty(cls, sentences: int, hypotheses: int, device: torch.device) -> "Slots":
        return cls(torch.zeros(sentences, hypotheses, 0, dtype=torch.bool, device=device))

    @classmethod
    def full(cls, sentences: int, length: int, device: torch.device) -> "Slots":
        """Return slots for one hypothesis per sentence with the history 0 .. length - 1."""
        mask = torch.arange(padded(length), device=device) < length
        return cls(mask.expand(sentences, 1, -1).clone())

    def __len__(self) -> int:
        """Return n, including free slots."""
        return self.mask.size(2)

    def add(self) -> None:
        """Assign each hypothesis a slot for its next position."""
        hypotheses = self.mask.size(1)
        used = self.mask.any(dim=1)
        missing = int(used.sum(dim=1).max()) + hypotheses - len(self)
        if missing > 0:
            grow = (0, padded(missing))
            self.mask, used = F.pad(self.mask, grow), F.pad(used, grow)
        nth_free = torch.arange(1, hypotheses + 1, device=used.device).expand(len(used), -1)
        self.newest = torch.searchsorted((~used).cumsum(dim=1), nth_free.contiguous())
        self.mask.scatter_(2, self.newest.unsqueeze(2), True)
        self._bias = None

    def repeat(self, hypotheses: int) -> None:
        """Continue each hypothesis as this number of hypotheses."""
        self.mask = self.mask.repeat_interleave(hypotheses, dim=1)
        self._bias = None

    def bias(self, heads: int, like: Tensor) -> Tensor:
        """Return the additive mask [B H, K, n]: 0, or -inf outside the history."""
        if self._bias is None:
            bias = additive(self.mask, like)[:, None].expand(-1, heads, -1, -1)
            self._bias = bias.flatten(0, 1)
        return self._bias

    def select(self, rows: Tensor) -> None:
        """Continue row rows[b, k] of all B K as hypothesis k of sentence b. rows: [B', K]."""
        histories = self.mask.flatten(0, 1).index_select(0, rows.flatten())
        self.mask = histories.view(*rows.shape, len(self))
        self._bias = None

    def histories(self, rows: Tensor) -> Tensor:
        """Return the slots [R, T] of the T positions of `rows` [R], indices of all B K rows."""
        slots = self.mask.flatten(0, 1).index_select(0, rows).nonzero()[:, 1]
        return slots.view(rows.numel(), -1)


def additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return 0 where a mask is True and -inf elsewhere, with the dtype of `like`."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, -math.inf)
