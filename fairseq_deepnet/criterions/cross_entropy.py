"""`--criterion chunked_cross_entropy`: fairseq's, without the table of logits."""

from __future__ import annotations

from typing import Any

from fairseq.criterions import cross_entropy as stock
from fairseq.criterions import register_criterion
from torch import Tensor

from .chunked import Losses
from .output_layer import AtOutputLayer

NAME = "chunked_cross_entropy"


@register_criterion(NAME, dataclass=stock.CrossEntropyCriterionConfig)
class CrossEntropyCriterion(AtOutputLayer, stock.CrossEntropyCriterion):
    """fairseq's options, numbers, log and class name: a training may go on with either."""

    criterion = NAME

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The loss, twice; `net_output` holds it already, unless it is a model's own."""
        losses = net_output[0]
        if not isinstance(losses, Losses):
            return super().compute_loss(model, net_output, sample, reduce)
        return losses.loss, losses.loss
