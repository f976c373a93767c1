"""The loss of a model that knows nothing but how frequent subwords are, as training goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

ENOUGH: Final = 10
"""Tokens to have seen for each different one: before, the frequencies say little."""


class Unigram:
    """Counts the targets that a process trains on.

    Args:
        symbols: V, entries of the target dictionary
        pad: the entry that is no token
    """

    def __init__(self, symbols: int, pad: int) -> None:
        self.counts = torch.zeros(symbols, dtype=torch.int64)
        self._pad = pad

    def add(self, samples: Sequence[Any]) -> None:
        """The micro-batches of an update, as fairseq's iterators give them; targets are [B, T]."""
        for sample in samples:
            target = sample.get("target") if isinstance(sample, Mapping) else None
            if isinstance(target, torch.Tensor):
                flat = target.reshape(-1).cpu()
                self.counts += torch.bincount(flat, minlength=len(self.counts))
        self.counts[self._pad] = 0

    def level(self) -> float | None:
        """Their entropy in bits a token, after Miller and Madow; None while too few are counted.

        The entropy of observed frequencies is too low, by (K - 1) / 2N nats for K different symbols
        among N.
        """
        seen = self.counts[self.counts > 0].double()
        total = float(seen.sum())
        if not len(seen) or total < ENOUGH * len(seen):
            return None
        share = seen / total
        entropy = -float((share * share.log2()).sum())
        return entropy + (len(seen) - 1) / (2 * total * math.log(2))
