"""`--criterion chunked_cross_entropy`: fairseq's, without the table of logits."""

from __future__ import annotations

from fairseq.criterions import cross_entropy as stock
from fairseq.criterions import register_criterion

from .output_layer import AtOutputLayer

NAME = "chunked_cross_entropy"


@register_criterion(NAME, dataclass=stock.CrossEntropyCriterionConfig)
class CrossEntropyCriterion(AtOutputLayer, stock.CrossEntropyCriterion):
    """fairseq's options, numbers, log and class name: a training may go on with either."""

    criterion = NAME
