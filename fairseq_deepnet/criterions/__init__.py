"""fairseq's cross-entropies without a tokens x vocabulary table, which need less memory."""

from . import cross_entropy

__all__ = ["cross_entropy"]
