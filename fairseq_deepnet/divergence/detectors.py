"""Detectors of divergence. Each detector receives one series of numbers.

A detector's `finding` is the current problem, or None if there is no problem or the problem has
passed. Detectors depend neither on fairseq nor on --on-divergence. Losses are in bits per token,
without label smoothing if the criterion logs the unsmoothed loss.
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

WINDOW: Final = 50  # losses before a spike, for comparison
RECENT: Final = 5  # latest losses, whose median counts: one or two bad batches are no divergence
LEAST: Final = 10  # minimum number of losses in the window
SIGMAS: Final = 8.0
"""Height of a spike above the window's mean, in estimated standard deviations of a mean of RECENT
losses. In 100,000 updates of Gaussian noise, a limit of 6 raised a false alarm and 8 raised none.
"""
EARLY: Final = 3.0  # spike in bits above the very first loss, until the window has LEAST losses
FLOOR: Final = 0.5  # minimum spike in bits above the window's mean, however even the losses were
RISE: Final = 1.0  # rise of the loss above its lowest value, in bits per token
AS_LOW: Final = 3.0
"""Distance from the lowest window, in standard deviations of a mean of WINDOW losses, up to which a
window also counts as lowest. A slow rise starts after the last such window."""

STALL_WINDOW: Final = 200  # updates after warm-up within which a model must learn something
ENOUGH: Final = 10  # tokens per distinct token that are needed to estimate frequencies

VANISHED: Final = 1e-4
"""Ratio of a stack's lowest to its highest gradient norm below which gradients have vanished.
Post-LN with 18 layers starts at 4e-3 (paper, Fig. 4(d), and our measurement with 64 channels)."""
NEGLIGIBLE: Final = 1e-2
"""Ratio of a layer's gradient norm to the highest one, below which an event names the layer."""
RECOVERED: Final = 10 * VANISHED  # ratio from which gradients that had vanished have recovered
CONFIRMED: Final = 3  # consecutive checks that confirm vanished gradients
DEEP: Final = 4  # minimum number of layers of a stack in which gradients can vanish

LOW_RANK: Final = 2.0
"""Token rank in the top layer of a Post-LN encoder below which the encoder has collapsed. It fell
below 2 in seven of nine failing runs and in one that learned badly (docs/reports/collapse.md)."""

SETTLED: Final = 20  # updates before fp16's loss scale has settled; earlier halvings are ignored
HALVINGS: Final = 7  # number of halvings within TRIES that counts as a collapse
TRIES: Final = 100
NEAR_MINIMUM: Final = 16.0  # multiple of the minimum below which the loss scale has collapsed


class LossSpike:
    """Detector of a loss that rises suddenly or slowly."""

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
                self._lowest = math.inf  # measure the lowest loss again after a spike
            return

        def onset(usual: float) -> int:
            """Return the first update whose loss is at least halfway from `usual` to the peak."""
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
                self._report(self._bottom, "rose", self._lowest, middle, " and stayed high")

    def resume(self, finding: Event | None) -> None:
        """Continue with an earlier process's finding until the loss has recovered."""
        self.finding = finding
        self._level = finding.values["before"] + FLOOR if finding else math.inf

    def _report(self, started: int, rose: str, before: float, loss: float, how: str) -> None:
        self._level = before + FLOOR
        what = f"the loss {rose} from {before:.2f} to {loss:.2f} bits per token{how}"
        self.finding = Event(Kind.LOSS_SPIKE, started, what, {}, {"loss": loss, "before": before})


class Stalled:
    """Detector of a model whose loss, after warm-up, is no lower than that of a unigram model."""

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
        """Compare the losses with a unigram model's loss in bits per token; None means unknown."""
        if self.learnt or len(self._losses) < STALL_WINDOW:
            return
        updates, losses = zip(*self._losses, strict=True)
        half = STALL_WINDOW // 2
        earlier, later = statistics.fmean(losses[:half]), statistics.fmean(losses[half:])
        if earlier - later >= LEARNT:
            self._since = None
        elif self._since is None:
            self._since = updates[0]  # the level may become known much later
        if level is None:
            return
        self.learnt = later < level - LEARNT
        if self.learnt or self._since is None:
            self.finding = None
        elif self.finding is None:
            what = f"the loss stalls at {later:.2f} bits per token; a unigram model has {level:.2f}"
            values = {"loss": later, "unigram": level}
            self.finding = Event(Kind.STALLED, self._since, what, {}, values)


class Unigram:
    """Unigram model of the targets seen so far, over the symbols of fairseq's dictionary."""

    def __init__(self, dictionary: Any) -> None:
        self.counts = torch.zeros(len(dictionary), dtype=torch.int64)
        self._pad = dictionary.pad()

    def add(self, samples: Sequence[Any]) -> None:
        """Count the targets [B, T] in an update's micro-batches."""
        for sample in samples:
            target = (sample or {}).get("target")  # a process without a batch has no sample
            if target is not None:
                self.counts += torch.bincount(target.cpu().flatten(), minlength=len(self.counts))
        self.counts[self._pad] = 0

    def level(self) -> float | None:
        """Return the targets' entropy in bits per token, or None if there are too few tokens.

        The entropy of observed frequencies is corrected, because it is too low by (K - 1) / 2N nats
        for K distinct symbols among N (Miller and Madow).
        """
        seen = self.counts[self.counts > 0].double()
        total = float(seen.sum())
        if not len(seen) or total < ENOUGH * len(seen):
            return None
        share = seen / total
        entropy = -float((share * share.log2()).sum())
        return entropy + (len(seen) - 1) / (2 * total * math.log(2))


class VanishedGradients:
    """Detector of gradients that vanish in the lower layers of a stack."""

    def __init__(self, start: int = 0) -> None:
        self.finding: Event | None = None
        self.suspected = 0
        self._healthy = start

    def add(self, update: int, norms: Mapping[str, Sequence[float | None]]) -> None:
        """Add each side's gradient norms, from the bottom to the top layer (None if missing)."""
        limit = VANISHED if self.finding is None else RECOVERED
        regions = {side: vanished_region(row, limit) for side, row in norms.items()}
        layers = {side: region for side, region in regions.items() if region is not None}
        if not layers:
            self.finding, self.suspected, self._healthy = None, 0, update
            return
        self.suspected += 1
        if self.finding is None and self.suspected >= CONFIRMED:
            ratios = {side: lowest_ratio(norms[side]) for side in layers}
            worst = ", ".join(f"{ratio:.0e} in the {side}" for side, ratio in ratios.items())
            what = f"gradients have vanished in {region_text(layers)} (lowest to highest: {worst})"
            values = {"ratio": ratios, "gradient_norm": {k: list(v) for k, v in norms.items()}}
            self.finding = Event(Kind.VANISHED, self._healthy + 1, what, layers, values)


def lowest_ratio(layers: Sequence[float | None]) -> float:
    """Return a stack's lowest gradient norm divided by its highest, or 1 if undefined."""
    norms = [norm for norm in layers if norm is not None]
    highest = max(norms, default=0.0)
    if len(norms) < DEEP or not all(map(math.isfinite, norms)) or highest <= 0:
        return 1.0
    return min(norms) / highest


def vanished_region(layers: Sequence[float | None], limit: float = VANISHED) -> Region | None:
    """Return the layers whose gradients have vanished, or None if the ratio reaches `limit`.

    Layers above a layer with larger gradients do not count: the larger gradients have passed
    through the upper layers, whose branches may merely be disabled.
    """
    if lowest_ratio(layers) >= limit:
        return None
    norms = [(index, norm) for index, norm in enumerate(layers, 1) if norm is not None]
    highest = max(norm for _, norm in norms)
    below = list(itertools.takewhile(lambda layer: layer[1] < NEGLIGIBLE * highest, norms))
    if not below or min(norm for _, norm in below) >= limit * highest:
        return None
    return below[0][0], below[-1][0], len(layers)


class RankCollapse:
    """Detector of an encoder whose tokens differ in few directions (--monitor token_rank)."""

    def __init__(self, start: int = 0) -> None:
        self.finding: Event | None = None
        self._healthy = start

    def add(self, update: int, ranks: Sequence[float]) -> None:
        """Add each encoder layer's token rank, bottom to top; ignored if the top's is nan."""
        if ranks[-1] >= LOW_RANK * (1 if self.finding is None else 2):
            self.finding, self._healthy = None, update
        elif self.finding is None and ranks[-1] < LOW_RANK:
            lowest = next(number for number, rank in enumerate(ranks, 1) if rank < LOW_RANK)
            layers = {"encoder": (lowest, len(ranks), len(ranks))}
            where, rank = region_text(layers), ranks[-1]
            what = f"tokens differ in too few directions in {where} (token rank {rank:.1f})"
            values = {"token_rank": {"encoder": list(ranks)}}
            self.finding = Event(Kind.RANK, self._healthy + 1, what, layers, values)


class LossScale:
    """Detector of a loss scale that collapses towards `minimum`, at which fairseq aborts."""

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
        has_fallen = scale * 2**HALVINGS <= highest
        if not has_fallen and scale >= NEAR_MINIMUM * self._minimum:
            self.finding = None
        elif self.finding is None:
            started = next((when for when, value in self._scales if value < highest), update)
            what = f"the loss scale fell to {scale:g}; fairseq aborts at {self._minimum:g}"
            values = {"loss_scale": scale, "highest": highest}
            self.finding = Event(Kind.LOSS_SCALE, started, what, {}, values)
