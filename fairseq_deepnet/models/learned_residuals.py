"""What training does to learned residuals (omega, ReZero's factor, DLCL's weights), in the logs."""

from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor

from ..schemes import Side


def learned_means(stack: Any) -> dict[str, Tensor]:
    """The mean over a stack's sublayers of everything learned in its residuals, by name."""
    residuals = [residual for layer in stack.layers for residual in layer.residuals.values()]
    found: dict[str, list[Tensor]] = {}
    for module in (*residuals, *filter(None, [stack.combination])):
        for name, tensor in module.learned().items():
            found.setdefault(name, []).append(tensor.detach().float().mean())
    return {name: torch.stack(means).mean() for name, means in found.items()}


def log_learned(stack: Any, side: Side, update: int, interval: int) -> None:
    """Give the means to fairseq's log, as SIDE_NAME, in the last update before each of its lines.

    Args:
        stack: our encoder or decoder.
        side: which of the two it is.
        update: updates that are finished, as in set_num_updates.
        interval: fairseq's --log-interval; 0 logs nothing.
    """
    if interval and (update + 1) % interval == 0:
        for name, mean in learned_means(stack).items():
            metrics.log_scalar(f"{side.value}_{name}", mean.item(), priority=900, round=4)
