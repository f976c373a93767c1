"""What a training will need: parameters, memory, time, and the options that make it fit."""

from fairseq_deepnet.tools.planning.estimates import Plan, estimate

__all__ = ["Plan", "estimate"]
