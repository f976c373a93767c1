"""What a table of a sweep's own can hold: one number of a run each."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fairseq_deepnet.experiments.report.results import Result


@dataclass(frozen=True)
class Measure:
    """A number of a run that has come to its end.

    Arguments:
        heading: of a column
        meaning: what it is, with its unit
        digits: behind the point
        value: reads it; None where a run has none
        axis: label of an axis
    """

    heading: str
    meaning: str
    axis: str
    digits: int
    value: Callable[[Result], float | None]


def bleu(result: Result) -> float | None:
    """The test set's: tokenised where a run has that too, as the paper's; otherwise sacreBLEU."""
    from fairseq_deepnet.tools.evaluation.scores import TOKENISED

    score = result.score
    return None if score is None else score.values.get(TOKENISED, score.headline)


def _last_train(result: Result) -> float | None:
    from fairseq_deepnet.divergence.verdict import smoothed

    points = smoothed(result.train_nll)
    return points[-1][1] if points else None


def _last(points: list[tuple[int, float]]) -> float | None:
    return points[-1][1] if points else None


def _lowest(points: list[tuple[int, float]]) -> float | None:
    return min((loss for _, loss in points), default=None)


def _seconds(result: Result) -> float | None:
    speeds = [speed for _, speed in result.updates_a_second if speed > 0]
    return 1 / statistics.median(speeds) if speeds else None


MEASURES: Final[dict[str, Measure]] = {
    "bleu": Measure("BLEU", "BLEU of the test set", "BLEU, more is better", 1, bleu),
    "valid_nll": Measure(
        "valid nll",
        "validation loss of the last update: negative log-likelihood, bits a token",
        "validation nll (bits a token), less is better",
        2,
        lambda run: _last(run.valid_nll),
    ),
    "best_valid_nll": Measure(
        "best valid nll",
        "lowest validation loss of the run: negative log-likelihood, bits a token",
        "lowest validation nll (bits a token), less is better",
        2,
        lambda run: _lowest(run.valid_nll),
    ),
    "valid_loss": Measure(
        "valid loss",
        "validation loss of the last update, with label smoothing, bits a token",
        "validation loss (bits a token), less is better",
        2,
        lambda run: _last(run.valid_loss),
    ),
    "train_nll": Measure(
        "train nll",
        "training loss, mean of the last 5 in the log: negative log-likelihood, bits a token",
        "training nll (bits a token), less is better",
        2,
        _last_train,
    ),
    "seconds_per_update": Measure(
        "s/update",
        "seconds an update, median of the log, with whatever else the machine did",
        "seconds an update",
        2,
        _seconds,
    ),
}
"""Name -> measure."""
