"""Optimisers for models of many thousand small tensors."""

from . import fairseq_adam

__all__ = ["fairseq_adam"]
