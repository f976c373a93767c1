"""Bytes that a training holds on a device: parameters, states, activations, and what to keep.

Knows layers and schemes, not the models: these ask it how many of their layers to checkpoint.
"""

from .choice import auto_segment, fit
from .memory import Memory, follow, micro_batch, needed_gib
from .parameters import Parameters, count
from .setting import Model, Training

__all__ = [
    "Memory",
    "Model",
    "Parameters",
    "Training",
    "auto_segment",
    "count",
    "fit",
    "follow",
    "micro_batch",
    "needed_gib",
]
