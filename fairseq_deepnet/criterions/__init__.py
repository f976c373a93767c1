"""fairseq's cross-entropies, computed in chunks to save memory."""

from . import cross_entropy

__all__ = ["cross_entropy"]
