"""Detectors of divergence: each receives a series and holds its current finding.

They do not depend on fairseq, files or policies. `finding` is the current problem, or None if there
is none or it has passed. Losses are in bits per token, without label smoothing if the criterion
logs that.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from .events import LEARNT, Event, Kind, Region, region_text

WINDOW: Final = 50
"""Number of losses before a spike, to compare it with."""
RECENT: Final = 5
"""Number of losses whose median is a spike: one or two bad batches are no divergence."""
LEAST: Final = 10
"""Minimum number of losses in the window."""
SIGMAS: Final = 8.0
"""Standard deviations, of a mean of RECENT losses, above the window's mean. They are estimated from
a window: 6 gave a false alarm in 100,000 updates of Gaussian noise, 8 none."""
EARLY: Final = 3.0
"""Bits above the very first loss that are a spike while the window has too few losses."""
FLOOR: Final = 0.5
"""Minimum spike in bits above the window's mean, however even the losses were."""
RISE: Final = 1.0
"""Rise of the loss above its lowest value, in bits per token."""
AS_LOW: Final = 3.0
"""Standard deviations, of a mean of WINDOW losses, within which a window counts as the lowest. A
slow rise starts after the last such window, not after the one that noise made the lowest."""

STALL_WINDOW: Final = 200
"""Updates after the warm-up within which a model must learn something."""
ENOUGH: Final = 10
"""Tokens per distinct token that are needed to estimate frequencies."""

VANISHED: Final = 1e-4
"""Ratio of a stack's lowest to its highest gradient norm below which gradients have vanished.
Post-LN with 18 layers starts at 4e-3 (paper, Fig. 4(d), and measured at 64/128/2)."""
NEGLIGIBLE: Final = 1e-2
"""The same ratio for the layers to name: the paper's Fig. 4(d) shows lower ones as zero."""
CONFIRMED: Final = 3
"""Number of consecutive looks that confirm vanished gradients."""
DEEP: Final = 4
"""Minimum number of layers of a stack in which gradients can vanish."""

SETTLED: Final = 20
"""Updates before fp16's loss scale has settled; earlier halvings are ignored."""
HALVINGS: Final = 7
"""Number of halvings within TRIES that is a collapse."""
TRIES: Final = 100
NEAR_MINIMUM: Final = 16.0
"""Multiple of the minimum, at which fairseq gives up, below which the loss scale has collapsed."""


class LossSpike:
    """The loss rose: suddenly (RECENT losses against the WINDOW before), or by RISE over time."""

    def __init__(self) -> None:
        self.finding: Event | None = None
        self._losses: deque[tuple[int, float]] = deque(maxlen=WINDOW + RECENT)
        self._lowest = math.inf
        self._bottom = 0
        self._level = math.inf

    def add(self, update: int, loss: float) -> None:
        """Add the loss of an update."""
        if not math.isfinite(loss):
            return
        self._losses.append((update, loss))
        updates, losses = zip(*self._losses, strict=True)
        before, recent = losses[:-RECENT], losses[-RECENT:]
        if not before:
            return
        now = statistics.median(recent)
        if self.finding is not None:
            if now <= self._level:
                self.finding = None
                self._lowest = math.inf  # what is learnt after a spike is measured again
            return

        def onset(usual: float) -> int:
            """Return the first update whose loss is halfway to the highest."""
            return next(u for u, x in [*self._losses][-RECENT:] if x >= (usual + max(recent)) / 2)

        if len(before) < LEAST:
            if now - before[0] >= EARLY:
                self._report(onset(before[0]), "rose", before[0], now, " at once")
            return
        usual, deviation = statistics.fmean(before), statistics.stdev(before)
        sigma = deviation / math.sqrt(RECENT)
        if now - usual >= max(SIGMAS * sigma, FLOOR):
            how = f" ({(now - usual) / max(sigma, 1e-9):.0f} sigmas)"
            self._report(onset(usual), "spiked", usual, now, how)
        elif len(before) == WINDOW:
            middle, noise = statistics.median(before), deviation / math.sqrt(WINDOW)
            self._lowest = min(self._lowest, middle)
            if middle - self._lowest <= AS_LOW * noise:
                self._bottom = updates[0]
            if middle - self._lowest >= RISE + SIGMAS * noise:
                self._report(self._bottom, "rose", self._lowest, middle, " and stayed up")

    def _report(self, started: int, rose: str, before: float, loss: float, how: str) -> None:
        self._level = before + FLOOR
        what = f"the loss {rose} from {before:.2f} to {loss:.2f} bits per token{how}"
        values = {"loss": loss, "before": before}
        self.finding = Event(Kind.LOSS_SPIKE, started, what, values=values)


class Stalled:
    """After this number of updates past the warm-up, the model is still at the unigram level."""

    def __init__(self, warmup: int) -> None:
        self.finding: Event | None = None
        self.learnt = False
        self._warmup = warmup
        self._losses: deque[tuple[int, float]] = deque(maxlen=STALL_WINDOW)
        self._since: int | None = None

    def add(self, update: int, loss: float) -> None:
        """Add the loss of an update."""
        if update > self._warmup and not self.learnt and math.isfinite(loss):
            self._losses.append((update, loss))

    def judge(self, level: float | None) -> None:
        """Compare with the unigram level, in bits per token, or None if it is unknown."""
        if self.learnt or len(self._losses) < STALL_WINDOW:
            return
        updates, losses = zip(*self._losses, strict=True)
        half = STALL_WINDOW // 2
        earlier, later = statistics.fmean(losses[:half]), statistics.fmean(losses[half:])
        if earlier - later >= LEARNT:
            self._since = None
        elif self._since is None:
            self._since = updates[0]  # also if the level becomes known much later
        if level is None:
            return
        self.learnt = later < level - LEARNT
        if self.learnt or self._since is None:
            self.finding = None
        elif self.finding is None:
            what = f"the loss stalls at {later:.2f} bits per token; a unigram model has {level:.2f}"
            values = {"loss": later, "unigram": level}
            self.finding = Event(Kind.STALLED, self._since, what, values=values)


class Unigram:
    """Loss of a unigram model of the targets seen so far.

    Args:
        symbols: V, entries of the target dictionary
        pad: index of the padding symbol
    """

    def __init__(self, symbols: int, pad: int) -> None:
        self.counts = torch.zeros(symbols, dtype=torch.int64)
        self._pad = pad

    def add(self, samples: Sequence[Any]) -> None:
        """Count the targets, [B, T], of an update's micro-batches."""
        for sample in samples:
            target = sample.get("target") if isinstance(sample, Mapping) else None
            if isinstance(target, torch.Tensor):
                flat = target.reshape(-1).cpu()
                self.counts += torch.bincount(flat, minlength=len(self.counts))
        self.counts[self._pad] = 0

    def level(self) -> float | None:
        """Return their entropy in bits per token (Miller and Madow); None with too few tokens.

        The entropy of observed frequencies is too low by (K - 1) / 2N nats for K distinct symbols
        among N.
        """
        seen = self.counts[self.counts > 0].double()
        total = float(seen.sum())
        if not len(seen) or total < ENOUGH * len(seen):
            return None
        share = seen / total
        entropy = -float((share * share.log2()).sum())
        return entropy + (len(seen) - 1) / (2 * total * math.log(2))


class VanishedGradients:
    """Gradients vanish in the lower layers of a stack: its lowest norm over its highest."""

    def __init__(self, start: int = 0) -> None:
        self.finding: Event | None = None
        self.suspected = 0
        self._well = start

    def add(self, update: int, norms: Mapping[str, Sequence[float | None]]) -> None:
        """Add gradient norms by side and layer, bottom first; None means no gradient."""
        regions = {side: vanished_region(layers) for side, layers in norms.items()}
        gone = {side: region for side, region in regions.items() if region is not None}
        if not gone:
            self.finding, self.suspected, self._well = None, 0, update
            return
        self.suspected += 1
        if self.finding is None and self.suspected >= CONFIRMED:
            ratios = {side: lowest_ratio(norms[side]) for side in gone}
            worst = ", ".join(f"{ratio:.0e} in the {side}" for side, ratio in ratios.items())
            what = f"gradients have vanished in {region_text(gone)} (lowest to highest: {worst})"
            values = {"ratio": ratios, "gradient_norm": {k: list(v) for k, v in norms.items()}}
            self.finding = Event(Kind.VANISHED, self._well + 1, what, gone, values)


def lowest_ratio(layers: Sequence[float | None]) -> float:
    """Return a stack's lowest gradient norm over its highest; 1 if unknown."""
    norms = [norm for norm in layers if norm is not None]
    highest = max(norms, default=0.0)
    if len(norms) < DEEP or not all(map(math.isfinite, norms)) or highest <= 0:
        return 1.0
    return min(norms) / highest


def vanished_region(layers: Sequence[float | None]) -> Region | None:
    """Return the layers whose gradients have vanished, or None.

    A small gradient above a layer with a larger one does not count: the signal passes through it,
    and a disabled branch has small gradients.
    """
    if lowest_ratio(layers) >= VANISHED:
        return None
    norms = [(index, norm) for index, norm in enumerate(layers, 1) if norm is not None]
    highest = max(norm for _, norm in norms)
    below = list(itertools.takewhile(lambda layer: layer[1] < NEGLIGIBLE * highest, norms))
    if not below or min(norm for _, norm in below) >= VANISHED * highest:
        return None
    return below[0][0], below[-1][0], len(layers)


class LossScale:
    """Half precision reduces its loss scale repeatedly; at `minimum` fairseq gives up."""

    def __init__(self, minimum: float) -> None:
        self.finding: Event | None = None
        self._minimum = minimum
        self._updates = 0
        self._scales: deque[tuple[int, float]] = deque(maxlen=TRIES)

    def add(self, update: int, scale: float, updated: bool) -> None:
        """Add the loss scale after an attempted update."""
        self._updates += updated
        if self._updates < SETTLED:
            self._scales.clear()
        self._scales.append((update, scale))
        highest = max(value for _, value in self._scales)
        fallen = scale * 2**HALVINGS <= highest
        if not fallen and scale >= NEAR_MINIMUM * self._minimum:
            self.finding = None
        elif self.finding is None:
            started = next((when for when, value in self._scales if value < highest), update)
            what = f"the loss scale fell to {scale:g}; fairseq gives up at {self._minimum:g}"
            values = {"loss_scale": scale, "highest": highest}
            self.finding = Event(Kind.LOSS_SCALE, started, what, values=values)
