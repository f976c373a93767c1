"""When a training counts as diverged: one rule for sweeps and reports. The paper states none.

`why_diverged` is a pure function of `Evidence`, so that a training can be judged while it runs just
as well as afterwards; experiments/runs.py reads the evidence off a run folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Points = Sequence[tuple[int, float]]
"""Updates and losses: bits a token, negative log-likelihood, in the order of the updates."""

RISE: Final = 1.0
"""Bits a token above its lowest value at which a loss has risen."""
OVERFITTED: Final = 0.5
"""Where the training loss is less than this above its lowest, a validation loss that rises tells of
overfitting."""
LEARNT: Final = 0.1
"""Bits a token below a unigram model that show something learnt."""
NEAR_UNIFORM: Final = 0.5
"""The same below log2(V), where the unigram level is not known."""
SMOOTHING: Final = 5
"""Training losses in the log that are averaged: each is of other sentences."""

STOPPED: Final = "the training diverged at update"
"""What the divergence watch says when it ends a training (--on-divergence stop)."""
STARTING: Final = "starting again from"
"""What the supervisor says, and writes into the log, when it takes a fallback."""
_FELL_BACK: Final = re.compile(rf"fallback \d+: {STARTING}")
_GAVE_UP: Final = re.compile(rf"FloatingPointError|Minimum loss scale reached|{STOPPED}")


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on; empty or None for what is not known."""

    log_tail: tuple[str, ...] = ()  # last lines of train.log
    # updates and training losses, as they are logged at intervals
    train: tuple[tuple[int, float], ...] = ()
    valid: tuple[tuple[int, float], ...] = ()  # updates and validation losses
    warmup: int = 0  # updates until the learning rate is at its peak
    vocabulary: int | None = None  # symbols of the target side
    # validation loss of a unigram model (unigram_nll of tools.corpora.binarise)
    unigram: float | None = None

    @property
    def updates(self) -> int:
        """The last update in the log."""
        return max((points[-1][0] for points in (self.train, self.valid) if points), default=0)

    @property
    def train_loss(self) -> float | None:
        """The last one logged."""
        return self.train[-1][1] if self.train else None

    @property
    def valid_loss(self) -> float | None:
        """The last one logged."""
        return self.valid[-1][1] if self.valid else None


def why_diverged(seen: Evidence, crashed: bool = False) -> str | None:
    """Return the reason why a training has diverged; None where it has not.

    Args:
        crashed: whether it was killed or broke off; then it never had the updates in which it
            might have learnt, and rule 4 does not count

    All losses are negative log-likelihoods without label smoothing, in bits a token. The first of
    these that is true counts:

    1. It was given up: the last 200 lines of the log hold "FloatingPointError" (gradients that are
       not finite), "Minimum loss scale reached", or what the divergence watch says when it stops,
       and no fallback came after.
    2. Not finite: the last training or the last validation loss is nan or infinite.
    3. It rose and stayed up: the training loss, as the mean of its last 5 values in the log (of
       half of them where there are fewer than 10), is at least 1 bit above the lowest such mean;
       or the last validation loss is at least 1 bit above the lowest, and the training loss at
       least 0.5 above its own. A validation loss that rises alone is overfitting.
    4. It stalled: after the warm-up, the last validation loss is not at least 0.1 bits below that
       of a unigram model of the same data. Such a model knows how frequent subwords are, and
       neither the source nor a context. One that has come below the level, if only just, and is
       still falling (by as much since the last validation in the first half of the run) is slow,
       and has not stalled. Where the level is not known (the data are not there, or are of many
       directions) it is log2(V) for a vocabulary of V, and the margin is 0.5 bits.

    BLEU has no part in it: a model that is healthy and young scores below 1, and what a diverged
    one scores depends on the metric, the language and the search.
    """
    found = _gave_up(seen) or _not_finite(seen) or _rose(seen)
    return found or (None if crashed else _stalled(seen))


def _gave_up(seen: Evidence) -> str | None:
    for line in reversed(seen.log_tail):
        if _FELL_BACK.match(line):
            return None
        found = _GAVE_UP.search(line)
        if found:
            if found[0] == STOPPED:
                return line[found.start() :].strip()
            return f"fairseq gave up after update {seen.updates:,}: {found[0]}"
    return None


def _not_finite(seen: Evidence) -> str | None:
    for name, points in (("training", seen.train), ("validation", seen.valid)):
        if points and not math.isfinite(points[-1][1]):
            update, loss = points[-1]
            return f"the last {name} loss, at update {update:,}, is {loss}"
    return None


def _rose(seen: Evidence) -> str | None:
    train = smoothed(seen.train)
    in_training = _rise(train)
    if in_training >= RISE:
        name, points = "training", _finite(train)
    elif _rise(seen.valid) >= RISE and (in_training >= OVERFITTED or not seen.train):
        name, points = "validation", _finite(seen.valid)
    else:
        return None
    before, lowest = min(points, key=lambda point: point[1])
    update, loss = points[-1]
    return (
        f"the {name} loss rose from {lowest:.2f} bits a token at update {before:,} "
        f"to {loss:.2f} at update {update:,}"
    )


def _finite(points: Points) -> list[tuple[int, float]]:
    return [point for point in points if math.isfinite(point[1])]


def _rise(points: Points) -> float:
    """Return how far the last loss is above the lowest finite one."""
    finite = [loss for _, loss in _finite(points)]
    return finite[-1] - min(finite) if finite else 0.0


def smoothed(points: Points) -> list[tuple[int, float]]:
    """Return each mean of SMOOTHING neighbours (of half the points where they are few) at its last
    update; losses that are not finite are left out.
    """
    finite = _finite(points)
    width = min(SMOOTHING, max(1, len(finite) // 2))
    windows = [finite[end - width : end] for end in range(width, len(finite) + 1)]
    return [(window[-1][0], sum(loss for _, loss in window) / width) for window in windows]


def _stalled(seen: Evidence) -> str | None:
    if not seen.valid or seen.updates < max(1, seen.warmup):
        return None
    update, loss = seen.valid[-1]
    if seen.unigram is not None:
        level, margin, name = seen.unigram, LEARNT, "a unigram model has"
    elif seen.vocabulary:
        level, margin = math.log2(seen.vocabulary), NEAR_UNIFORM
        name = f"log2 of {seen.vocabulary:,} symbols is"
    else:
        return None
    earlier = [value for when, value in seen.valid if 2 * when <= seen.updates]
    falls = bool(earlier) and earlier[-1] - loss >= margin
    if loss <= level - margin or (loss < level and falls):
        return None
    return (
        f"stalled at a validation loss of {loss:.2f} bits a token at update {update:,}; "
        f"{name} {level:.2f}"
    )
