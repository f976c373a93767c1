"""Optimisers for models with thousands of small tensors."""

from . import fairseq_adam

__all__ = ["fairseq_adam"]
