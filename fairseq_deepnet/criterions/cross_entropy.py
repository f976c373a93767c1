"""`--criterion chunked_cross_entropy` and `chunked_label_smoothed_cross_entropy`.

These are fairseq's criterions, but they replace the model's output layer, so that the logits of
all tokens are never in memory together.

Shapes: B = batch, T = target length, C = channels.
"""

from typing import Any

from fairseq.criterions import cross_entropy, register_criterion
from fairseq.criterions import label_smoothed_cross_entropy as smoothed
from torch import Tensor, nn

from ..errors import ConfigurationError
from .chunked import Losses, counted, smoothed_cross_entropy

PLAIN = "chunked_cross_entropy"
SMOOTHED = "chunked_label_smoothed_cross_entropy"


def output_projection(model: nn.Module, criterion: str) -> nn.Linear:
    """Return the last linear map of a decoder, which may be ours or fairseq's.

    Raises:
        ConfigurationError: if the decoder does not end in a linear map.
    """
    decoder: Any = getattr(model, "decoder", None)
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise ConfigurationError(
            f"--criterion {criterion} needs one softmax over the vocabulary; leave out"
            " --adaptive-softmax-cutoff, or choose --criterion adaptive_loss"
        )
    projection = getattr(decoder, "output_projection", None)
    if not isinstance(projection, nn.Linear) or not hasattr(decoder, "output_layer"):
        raise ConfigurationError(
            f"--criterion {criterion} needs a decoder that ends in a linear map; choose --criterion"
            f" {criterion.removeprefix('chunked_')}"
        )
    return projection


class AtOutputLayer:
    """Mixin that computes the loss of one of fairseq's criterions in chunks.

    The gradients' divisor and the logged values are fairseq's.
    """

    criterion: str  # name on the command line
    padding_idx: int
    eps = 0.0  # smoothing
    ignore_prefix_size = 0
    report_accuracy = False

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> Any:
        """Return the summed loss, the divisor of its gradient, and values for the log.

        With `reduce=False` (one loss per token), fairseq's implementation computes all logits.

        Raises:
            ConfigurationError: if the model's output is not a single softmax.
        """
        projection = output_projection(model, self.criterion)
        stock: Any = super()
        if not reduce:
            return stock.forward(model, sample, reduce)
        target = model.get_targets(sample, None)[:, self.ignore_prefix_size :]
        # This synchronises with a GPU, so it comes before the model runs.
        rows = counted(target, self.padding_idx)

        def loss(features: Tensor) -> Losses:  # [B, T, C]
            return smoothed_cross_entropy(
                features[:, self.ignore_prefix_size :],
                projection.weight,
                projection.bias,
                target,
                self.eps,
                self.padding_idx,
                self.report_accuracy,
                rows,
            )

        # The loss is part of the model's forward pass. Otherwise, pytorch_ddp with
        # --find-unused-parameters would treat an untied output layer as unused.
        decoder = model.decoder  # fairseq's wrappers, too, have this attribute
        decoder.output_layer = loss
        try:
            return stock.forward(model, sample, reduce)
        finally:
            del decoder.output_layer

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return loss and nll; fairseq computes them if `net_output` contains logits."""
        losses = net_output[0]
        if not isinstance(losses, Losses):
            stock: Any = super()
            return stock.compute_loss(model, net_output, sample, reduce)
        return losses.loss, losses.nll


@register_criterion(PLAIN, dataclass=cross_entropy.CrossEntropyCriterionConfig)
class CrossEntropyCriterion(AtOutputLayer, cross_entropy.CrossEntropyCriterion):
    """fairseq's cross_entropy, computed in chunks, with the same options, results and class name.

    fairseq's trainer compares class names when it loads a checkpoint, so a run can resume with
    either criterion.
    """

    criterion = PLAIN


@register_criterion(SMOOTHED, dataclass=smoothed.LabelSmoothedCrossEntropyCriterionConfig)
class LabelSmoothedCrossEntropyCriterion(
    AtOutputLayer, smoothed.LabelSmoothedCrossEntropyCriterion
):
    """fairseq's label_smoothed_cross_entropy, computed in chunks; see `CrossEntropyCriterion`."""

    criterion = SMOOTHED

    def compute_accuracy(
        self, model: Any, net_output: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Return the number of correctly predicted targets, and the number of all targets."""
        losses = net_output[0]
        if not isinstance(losses, Losses):
            return super().compute_accuracy(model, net_output, sample)
        target = model.get_targets(sample, None)[:, self.ignore_prefix_size :]
        return losses.correct, target.ne(self.padding_idx).sum()
