"""Rank 0's part of the watch: numbers that fairseq has anyway go in, events come out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..monitoring import records
from ..monitoring.gradients import LAYER, GradientNorms
from ..monitoring.trainer import Observer, gradient_scale, logged
from . import events
from .broken import Broken
from .causes import likely_cause
from .detectors import LossScale, LossSpike, Stalled, VanishedGradients
from .events import Event, Finding, Kind
from .options import WatchSettings
from .unigram import Unigram

logger = logging.getLogger(__name__)

LOOK: Final = 10
"""Updates between two looks at gradients; further looks follow at once where something is wrong."""
REMEMBERED: Final = 20
"""Looks whose statistics are kept, to tell of the last that was well."""


class Judge(Observer):
    """Asks the detectors after each update and tells what they find.

    Args:
        settings: of divergence.options
        trainer: fairseq's, just made
        folder: where divergence.jsonl lies
    """

    def __init__(self, settings: WatchSettings, trainer: Any, folder: Path) -> None:
        self.settings = settings
        self.file = folder / events.NAME
        self.norms = GradientNorms(trainer.get_model())
        self.broken = Broken()
        self.unigram: Unigram | None = None
        self._begin_anew(trainer, 0)

    def _begin_anew(self, trainer: Any, update: int) -> None:
        self.start = update
        self.spike = LossSpike()
        self.stalled = Stalled(self.settings.circumstances.warmup)
        self.vanished = VanishedGradients(update)
        self.scale = LossScale(trainer.cfg.common.min_loss_scale)
        self.known: dict[Kind, Finding] = {}
        self.good: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.look: dict[str, Any] = {}
        self.lr = 0.0
        self.due: Event | None = None

    def loaded(self, trainer: Any, update: int) -> None:
        self._begin_anew(trainer, update)
        # what this attempt is going to make again; those before it keep their events
        records.keep_until(self.file, update, self.settings.step)

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        if self.stalled.learnt:
            return
        if self.unigram is None:
            target = getattr(trainer.task, "target_dictionary", None)
            if target is None:
                return
            self.unigram = Unigram(len(target), target.pad())
        self.unigram.add(samples)

    def gradients(self, trainer: Any, update: int) -> None:
        self.look, self.lr = {}, float(trainer.get_lr())
        if self._looks(update):
            scale = gradient_scale(trainer.optimizer)
            measured = self.norms.measure(scale).get("gradient_norm", {})
            self.look = {side: parts[LAYER] for side, parts in measured.items()}

    def _looks(self, update: int) -> bool:
        suspects = self.vanished.suspected and self.vanished.finding is None
        # at once after a start: what was loaded is a state to return to only if it was well
        return update == self.start + 1 or update % LOOK == 0 or bool(suspects)

    def end(self, trainer: Any, update: int, made: bool) -> None:
        scale = loss_scale(trainer.optimizer)
        if scale is not None:
            self.scale.add(update, scale, made)
        if made:
            self._read(update)
        detectors = (self.spike, self.stalled, self.vanished, self.scale)
        found = [detector.finding for detector in detectors if detector.finding is not None]
        self._tell(update, {finding.kind: finding for finding in found})

    def _read(self, update: int) -> None:
        """Feed the detectors an update's numbers: those that fairseq has reduced and logged."""
        numbers = logged("loss", "nll_loss", "gnorm")
        loss = numbers.get("nll_loss", numbers.get("loss"))
        if loss is not None:
            self.spike.add(update, loss)
            self.stalled.add(update, loss)
        if update % LOOK == 0 and self.unigram is not None:
            self.stalled.judge(self.unigram.level())
        if self.look:
            self.vanished.add(update, self.look)
            if self.is_well:
                self.good.append(
                    {"update": update, **numbers, "lr": self.lr, "gradient_norm": self.look}
                )

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong or suspected."""
        return not self.known and not self.vanished.suspected

    def _tell(self, update: int, found: Mapping[Kind, Finding]) -> None:
        """Report what is new, once an occurrence, and what has passed."""
        for kind, finding in found.items():
            if kind not in self.known:
                event = self._event(finding, update)
                logger.warning("%s", event)
                records.append(self.file, event.record())
                self.due = self.due or event
        for kind, finding in self.known.items():
            if kind not in found:
                logger.info("recovered at update %s: %s has passed", f"{update:,}", kind.value)
                records.append(self.file, events.ended(finding, update, self.settings.step))
        self.known = dict(found)

    def _event(self, finding: Finding, update: int) -> Event:
        before = [look for look in self.good if look["update"] < finding.started]
        return Event(
            finding,
            update,
            likely_cause(finding, self.settings.circumstances),
            before[-1] if before else {},
            self.settings.policy.value,
            self.settings.step,
        )

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        # fairseq has run the update a second time, to search for the module; its gradients are
        # neither reduced nor scaled, so that only whether they are finite tells something
        norms = self.norms.measure().get("gradient_norm", {})
        layers = {side: parts[LAYER] for side, parts in norms.items()}
        suspected = [finding.started for finding in self.known.values()]
        finding = self.broken.finding(error, update, layers, suspected)
        self._tell(update, {**self.known, finding.kind: finding})

    def detach(self) -> None:
        self.broken.detach()


def loss_scale(optimizer: Any) -> float | None:
    """fp16's or --amp's loss scale; None where there is none."""
    scaler = getattr(optimizer, "scaler", None)
    if scaler is None:
        return None
    scale = getattr(scaler, "loss_scale", None)
    return float(scaler.get_scale() if scale is None else scale)
