"""`--criterion chunked_label_smoothed_cross_entropy`: fairseq's, without the table of logits."""

from __future__ import annotations

from typing import Any

from fairseq.criterions import label_smoothed_cross_entropy as stock
from fairseq.criterions import register_criterion
from torch import Tensor

from .chunked import Losses
from .output_layer import AtOutputLayer

NAME = "chunked_label_smoothed_cross_entropy"


@register_criterion(NAME, dataclass=stock.LabelSmoothedCrossEntropyCriterionConfig)
class LabelSmoothedCrossEntropyCriterion(AtOutputLayer, stock.LabelSmoothedCrossEntropyCriterion):
    """fairseq's options, numbers, log and class name: a training may go on with either.

    fairseq's trainer compares the names of classes when it loads a checkpoint.
    """

    criterion = NAME

    def __init__(  # fairseq fills the arguments by their names
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.smoothing = self.eps
        self.first_token = self.ignore_prefix_size
        self.accuracy = self.report_accuracy

    def compute_accuracy(
        self, model: Any, net_output: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """How many targets are likeliest, and of how many."""
        losses = net_output[0]
        if not isinstance(losses, Losses):
            return super().compute_accuracy(model, net_output, sample)
        target = model.get_targets(sample, None)[:, self.first_token :]
        return losses.correct, target.ne(self.padding_idx).sum()
