"""fairseq's positions: counted from the index of <pad> on, and their sinusoids."""

from __future__ import annotations

from typing import Final

from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

PADDING: Final = 1
"""fairseq's index of <pad>."""
FIRST: Final = PADDING + 1
"""The position of a sentence's first word: the row of a table that is added to it."""


def sinusoids(longest: int, width: int) -> Tensor:
    """The table [FIRST + longest, width] of a model without learned positions."""
    return SinusoidalPositionalEmbedding.get_embedding(FIRST + longest, width, PADDING)
