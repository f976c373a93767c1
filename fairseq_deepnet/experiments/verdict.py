"""Rule for divergence in sweeps and reports. The paper states none.

All losses are negative log-likelihoods without label smoothing, in bits per token. BLEU is not
used: a healthy young model scores below 1, and the score of a diverged model depends on metric,
language and search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.divergence import events
from fairseq_deepnet.divergence.events import LEARNT, Kind

_TROUBLE: Final = (Kind.NOT_FINITE, Kind.LOSS_SPIKE, Kind.STALLED, Kind.LOSS_SCALE)
"""Events of the divergence watch that make a run diverged; vanished gradients do not."""
Points = Sequence[tuple[int, float]]
"""Updates and losses, in the order of updates."""


def why_diverged(
    run: Path,
    train: Points,
    valid: Points,
    warmup: int = 0,
    unigram: float | None = None,
    crashed: bool = False,
) -> str | None:
    """Return the reason why a run has diverged, or None. The first matching rule decides:

    1. The last training loss or the last validation loss is not finite.
    2. The divergence watch reported an event (divergence.jsonl) that had not ended with the run: a
       gradient that is not finite, a rising loss, a stalled loss, or a collapsed loss scale. A
       fallback that ended well rescues a run.
    3. After the warm-up, the last validation loss is not at least LEARNT below that of a unigram
        model of
       the same data. A model that is just below that loss and still improves is slow, not
           stalled. A
       run that crashed did not have the updates to learn.
    """
    for name, points in (("training", train), ("validation", valid)):
        if points and not math.isfinite(points[-1][1]):
            return f"the last {name} loss, at update {points[-1][0]:,}, is {points[-1][1]}"
    return _unresolved(run, crashed) or (
        None if crashed else _stalled(train, valid, warmup, unigram)
    )


def _unresolved(run: Path, crashed: bool) -> str | None:
    """Return the last event of the watch that had not ended with the run."""
    trouble: dict[Kind, events.Event] = {}
    for event in events.read(run / events.NAME):
        was_rescued = event.policy != "warn" and not crashed
        if event.finding.kind in _TROUBLE:
            trouble.pop(event.finding.kind, None)
            if not (event.is_end or was_rescued):
                trouble[event.finding.kind] = event
    last = next(reversed(trouble.values()), None)
    return f"{last.finding.what}, at update {last.update:,}" if last is not None else None


def _stalled(train: Points, valid: Points, warmup: int, unigram: float | None) -> str | None:
    updates = max((points[-1][0] for points in (train, valid) if points), default=0)
    if unigram is None or not valid or updates < max(1, warmup):
        return None
    update, loss = valid[-1]
    earlier = [value for when, value in valid if 2 * when <= updates]
    falls = bool(earlier) and earlier[-1] - loss >= LEARNT
    if loss <= unigram - LEARNT or (loss < unigram and falls):
        return None
    return (
        f"stalled at a validation loss of {loss:.2f} bits per token at update {update:,}; "
        f"a unigram model has {unigram:.2f}"
    )
