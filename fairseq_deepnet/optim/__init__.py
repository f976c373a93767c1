"""Optimisers for models of many thousand small tensors."""

from . import fairseq_adam, half_precision

half_precision.install(fairseq_adam.FairseqAdam)

__all__ = ["fairseq_adam"]
