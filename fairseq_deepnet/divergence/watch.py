"""The divergence watch: reads what fairseq measures anyway, asks the detectors, acts on events.

Rank 0 alone judges, since some of what it reads (gradient norms, the targets of its own batches) is
its own; where there are several processes and something is to be done, it tells the others at every
LOOK-th update, at which all of them listen. fairseq's own FloatingPointError reaches all at once.
Nothing here changes a number of the training, and no mistake here ends it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from fairseq.distributed import utils as distributed

from ..monitoring import records
from ..monitoring.gradients import LAYER, GradientNorms
from ..monitoring.trainer import Observer, gradient_scale, logged
from . import events, good_states, restart
from .broken import Broken
from .causes import likely_cause
from .detectors import LossScale, LossSpike, Stalled, VanishedGradients
from .events import Event, Finding, Kind
from .leaving import leave
from .options import Policy, WatchSettings
from .unigram import Unigram

logger = logging.getLogger(__name__)

LOOK: Final = 10
"""Updates between two looks at gradients; further looks follow at once where something is wrong."""
REMEMBERED: Final = 20
"""Looks whose statistics are kept, to tell of the last that was well."""

Method = TypeVar("Method", bound=Callable[..., Any])


def harmless(method: Method) -> Method:
    """A method of Watch whose mistakes end the watching, and not the training."""

    @functools.wraps(method)
    def guarded(self: Watch, *args: Any) -> Any:
        if self.broken:
            return None
        try:
            return method(self, *args)
        except Exception:
            self.broken = True
            logger.warning("the divergence watch has failed and is off from here on", exc_info=True)
            return None

    return guarded  # type: ignore[return-value]


class Watch(Observer):
    """Watches one training.

    Args:
        settings: of divergence.options
        trainer: fairseq's, just made
        folder: where divergence.jsonl and fallback.json lie: records.run_folder

    Raises:
        ConfigurationError: for the policy fallback in a program that cannot be started anew.
    """

    def __init__(self, settings: WatchSettings, trainer: Any, folder: Path) -> None:
        if settings.policy is Policy.FALLBACK:
            restart.require_program()
        self.settings = settings
        self.folder = folder
        self.save_dir = Path(trainer.cfg.checkpoint.save_dir)
        self.judges = bool(trainer.is_data_parallel_master)
        self.alone = trainer.data_parallel_world_size == 1
        self.broken = self.over = False
        self.norms: GradientNorms | None = None
        self.unigram: Unigram | None = None
        self.broken_modules = Broken() if self.judges else None
        self.epoch_itr: Any = None
        if settings.acts and settings.good_interval and not trainer.cfg.checkpoint.no_save:
            self._keep_iterator(trainer)
        self._begin_anew(trainer, 0)

    def _begin_anew(self, trainer: Any, update: int) -> None:
        self.start = good_states.Start(update, time.time())
        self.spike = LossSpike()
        self.stalled = Stalled(self.settings.circumstances.warmup)
        self.vanished = VanishedGradients(update)
        self.scale = LossScale(trainer.cfg.common.min_loss_scale)
        self.known: dict[Kind, Finding] = {}
        self.good: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.look: dict[str, Any] = {}
        self.last = -1
        self.due: Event | None = None

    def _keep_iterator(self, trainer: Any) -> None:
        """fairseq gives its trainer no epoch iterator, which a state to return to must hold."""
        make = trainer.get_train_iterator

        @functools.wraps(make)
        def get_train_iterator(*args: Any, **kwargs: Any) -> Any:
            self.epoch_itr = make(*args, **kwargs)
            return self.epoch_itr

        trainer.get_train_iterator = get_train_iterator

    @harmless
    def loaded(self, trainer: Any, update: int) -> None:
        self._begin_anew(trainer, update)
        if self.judges and self.settings.acts:
            good_states.begin(self.save_dir, update)

    @harmless
    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        if not self.judges or self.stalled.learnt:
            return
        if self.unigram is None:
            target = getattr(trainer.task, "target_dictionary", None)
            if target is None:
                return
            self.unigram = Unigram(len(target), target.pad())
        self.unigram.add(samples)

    @harmless
    def gradients(self, trainer: Any, update: int) -> None:
        self.look = {}
        if not self.judges or not self._looks(update):
            return
        if self.norms is None:
            self.norms = GradientNorms(trainer.get_model())
        measured = self.norms.measure(gradient_scale(trainer.optimizer)).get("gradient_norm", {})
        self.look = {side: parts[LAYER] for side, parts in measured.items()}

    def _looks(self, update: int) -> bool:
        suspects = self.vanished.suspected and self.vanished.finding is None
        # at once after a start: what was loaded is a state to return to only if it was well
        first = update == self.start.update + 1
        return first or update % LOOK == 0 or bool(suspects)

    def end(self, trainer: Any, update: int, made: bool) -> None:
        if self.over or (made and update == self.last):
            return  # fairseq's retries under --amp end twice
        self._judge(trainer, update, made)
        if made or self.alone:
            self._act(trainer, update)
        if made:
            self.last = update
            self._save(trainer, update)

    @harmless
    def _judge(self, trainer: Any, update: int, made: bool) -> None:
        if not self.judges:
            return
        scale = loss_scale(trainer.optimizer)
        if scale is not None:
            self.scale.add(update, scale, made)
        if made:
            self._read(trainer, update)
        found = [
            detector.finding
            for detector in (self.spike, self.stalled, self.vanished, self.scale)
            if detector.finding is not None
        ]
        self._tell(update, {finding.kind: finding for finding in found})

    def _read(self, trainer: Any, update: int) -> None:
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
            well = not self.vanished.suspected and not self.known
            if well:
                lr = float(trainer.get_lr())
                self.good.append(
                    {"update": update, **numbers, "lr": lr, "gradient_norm": self.look}
                )

    def _tell(self, update: int, found: Mapping[Kind, Finding]) -> None:
        """Report what is new, once an occurrence, and what has passed."""
        file = self.folder / events.NAME
        for kind, finding in found.items():
            if kind not in self.known:
                event = self._event(finding, update)
                logger.warning("%s", event)
                records.append(file, event.record())
                self.due = self.due or event
        for kind, finding in self.known.items():
            if kind not in found:
                logger.info("recovered at update %s: %s has passed", f"{update:,}", kind.value)
                records.append(file, events.ended(finding, update, self.settings.step))
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
        if not Broken.blames_numbers(error):
            return  # processes that disagree are no divergence
        self.over = True
        self._tell_of_failure(trainer, update, error)
        if self.settings.acts:
            leave(self, trainer, update)

    @harmless
    def _tell_of_failure(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        if self.broken_modules is None:
            return
        if self.norms is None:
            self.norms = GradientNorms(trainer.get_model())
        norms = self.norms.measure().get("gradient_norm", {})
        layers = {side: parts[LAYER] for side, parts in norms.items()}
        suspected = [finding.started for finding in self.known.values()]
        finding = self.broken_modules.finding(error, update, layers, suspected)
        self._tell(update, {**self.known, finding.kind: finding})

    def _act(self, trainer: Any, update: int) -> None:
        """End the training where an event is due; with several processes, all at one update."""
        if not self.settings.acts or not (self.alone or update % LOOK == 0):
            return
        due = self.due is not None
        if not self.alone:
            due = bool(distributed.broadcast_object(due, 0, trainer.data_parallel_process_group))
        if due:
            leave(self, trainer, update)

    @harmless
    def _save(self, trainer: Any, update: int) -> None:
        every = self.settings.good_interval
        if self.epoch_itr is not None and self.settings.acts and update % every == 0:
            good_states.save(trainer, self.epoch_itr, self.save_dir)


def loss_scale(optimizer: Any) -> float | None:
    """fp16's or --amp's loss scale; None where there is none."""
    scaler = getattr(optimizer, "scaler", None)
    if scaler is None:
        return None
    scale = getattr(scaler, "loss_scale", None)
    return float(scaler.get_scale() if scale is None else scale)
