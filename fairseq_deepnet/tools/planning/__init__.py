"""What a training will need: parameters, memory, time, and the options that make it fit."""

from fairseq_deepnet.tools.planning.plan import Plan, estimate

__all__ = ["Plan", "estimate"]
