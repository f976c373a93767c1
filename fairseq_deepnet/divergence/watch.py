"""The divergence watch: rank 0 judges, and all processes stop together.

Rank 0 decides, because some of its numbers (gradient norms, targets of its batches) are its own.
With several processes it broadcasts its decision at every LOOK-th update. fairseq's
FloatingPointError reaches all processes at once. The watch changes no number of the training, and
an error in it does not stop the run.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from .. import ended, signals
from ..checkpoints import load_checkpoint, num_updates
from ..errors import ConfigurationError, describe_os_error
from ..monitoring import records
from ..monitoring.gradients import LAYER, GradientNorms
from ..observers import Observer, broadcast_from_rank0, gradient_scale, logged
from . import events
from .causes import likely_cause
from .detectors import LossScale, LossSpike, Stalled, Unigram, VanishedGradients
from .events import Event, Finding, Kind
from .nan_report import NanReport
from .options import Policy, WatchSettings

logger = logging.getLogger(__name__)

LOOK: Final = 10
"""Updates between two looks at gradients; after a suspicious look, every update is examined."""
TESTED: Final = 2
"""Number of updates by which a checkpoint should precede the trouble: its parameters are first used
by the next update, which must have been healthy."""
STOPPED: Final = "the training diverged at update"
REMEMBERED: Final = 20
"""Number of looks whose statistics are kept, to report the last healthy one."""


class Judge(Observer):
    """Judge on rank 0: passes fairseq's numbers to the detectors and returns events."""

    def __init__(self, settings: WatchSettings, trainer: Any, folder: Path) -> None:
        self.settings, self.file = settings, folder / events.NAME
        self.norms = GradientNorms(trainer.get_model())
        self.nan_report = NanReport()
        self.unigram: Unigram | None = None
        self._start_over(trainer, 0)

    def _start_over(self, trainer: Any, update: int) -> None:
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
        self.over = False

    def loaded(self, trainer: Any, update: int) -> None:
        self._start_over(trainer, update)
        # what this attempt is going to make again; those before it keep their events
        records.keep_until(self.file, update, self.settings.attempt)

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        target = getattr(trainer.task, "target_dictionary", None)
        if self.stalled.learnt or target is None:
            return
        if self.unigram is None:
            self.unigram = Unigram(len(target), target.pad())
        self.unigram.add(samples)

    def gradients(self, trainer: Any, update: int) -> None:
        self.look, self.lr = {}, float(trainer.get_lr())
        suspects = self.vanished.suspected and self.vanished.finding is None
        # at once after a start: what was loaded is a state to return to only if it was well
        if update == self.start + 1 or update % LOOK == 0 or suspects:
            self.look = self._norms(gradient_scale(trainer.optimizer))

    def _norms(self, scale: float = 1.0) -> dict[str, Any]:
        """Return gradient norms by side and layer."""
        measured = self.norms.measure(scale).get("gradient_norm", {})
        return {side: parts[LAYER] for side, parts in measured.items()}

    def end(self, trainer: Any, update: int, made: bool) -> None:
        if self.over:
            return  # with an error, which has been reported
        scale = loss_scale(trainer.optimizer)
        if scale is not None:
            self.scale.add(update, scale, made)
        if made:
            self._read(update)
        detectors = (self.spike, self.stalled, self.vanished, self.scale)
        found = [detector.finding for detector in detectors if detector.finding is not None]
        self._report(update, {finding.kind: finding for finding in found})

    def _read(self, update: int) -> None:
        """Pass an update's numbers, as reduced and logged by fairseq, to the detectors."""
        numbers = logged("loss", "nll_loss", "gnorm")
        loss = numbers.get("nll_loss", numbers.get("loss"))
        if loss is not None:
            self.spike.add(update, loss)
            self.stalled.add(update, loss)
        if update % LOOK == 0 and self.unigram is not None:
            self.stalled.judge(self.unigram.level())
        if self.look:
            self.vanished.add(update, self.look)
            if not self.known and not self.vanished.suspected:
                good = {"update": update, **numbers, "lr": self.lr, "gradient_norm": self.look}
                self.good.append(good)

    def _report(self, update: int, found: Mapping[Kind, Finding]) -> None:
        """Report new findings once each, and recoveries."""
        settings = self.settings
        for kind, finding in found.items():
            if kind in self.known:
                continue
            before = [look for look in self.good if look["update"] < finding.started]
            event = Event(
                finding,
                update,
                likely_cause(finding, settings.circumstances),
                before[-1] if before else {},
                settings.policy.value,
                settings.attempt,
            )
            logger.warning("%s", event)
            records.append(self.file, event.record())
            self.due = self.due or event
        for kind, finding in self.known.items():
            if kind not in found:
                logger.info("recovered at update %s: %s has passed", f"{update:,}", kind.value)
                records.append(self.file, events.ended(finding, update, settings.attempt))
        self.known = dict(found)

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        if not NanReport.blames_numbers(error):
            return  # processes that disagree are no divergence
        self.over = True
        # fairseq has run the update a second time, to search for the module; its gradients are
        # neither reduced nor scaled, so that only whether they are finite means anything
        suspected = [finding.started for finding in self.known.values()]
        finding = self.nan_report.finding(error, update, self._norms(), suspected)
        self._report(update, {**self.known, finding.kind: finding})

    def detach(self) -> None:
        self.nan_report.detach()


class Watch(Observer):
    """Part of the watch that runs in every process: with the policy stop, all end together.

    Args:
        settings: settings of divergence.options
        trainer: fairseq's trainer, just built
        folder: folder of divergence.jsonl and ended.json (monitoring.records.run_folder)
        judge: judge on rank 0, which is notified first; None in other processes
    """

    def __init__(
        self, settings: WatchSettings, trainer: Any, folder: Path, judge: Judge | None
    ) -> None:
        self.settings, self.folder, self.judge = settings, folder, judge
        self.save_dir = Path(trainer.cfg.checkpoint.save_dir)
        self.alone = trainer.data_parallel_world_size == 1
        self.over = False

    def loaded(self, trainer: Any, update: int) -> None:
        problem = ""
        if self.judge is not None:
            try:
                ended.clear(self.folder)
            except OSError as error:
                problem = describe_os_error(error)
        if self.settings.stops:  # off in all processes alike: `end` exchanges
            problem = broadcast_from_rank0(trainer, problem)
        if problem:
            raise OSError(problem)

    def end(self, trainer: Any, update: int, made: bool) -> None:
        if not self.settings.stops or self.over:
            return
        if self.alone or (made and update % LOOK == 0):
            due = self.judge is not None and self.judge.due is not None
            if broadcast_from_rank0(trainer, due):
                self._stop(trainer, update)

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        if self.settings.stops and NanReport.blames_numbers(error):
            self._stop(trainer, update)

    def _stop(self, trainer: Any, update: int) -> NoReturn:
        """End the run in every process.

        Rank 0 finishes its work before the others continue, because the first process that exits
        may take the others with it. An error in that work does not prevent the end.
        """
        self.over = True  # fairseq's trainer is left by way of `end`
        if self.judge is not None:
            try:
                text = self._record(update)
            except Exception as error:
                logger.exception("the divergence could not be recorded")
                text = f"{STOPPED} {update:,}; it could not be recorded: {error}"
            with contextlib.suppress(OSError):  # the others wait below, terminal or not
                print(f"fairseq_deepnet: {text}", file=sys.stderr, flush=True)
        broadcast_from_rank0(trainer, True)
        raise SystemExit(signals.DIVERGED)

    def _record(self, update: int) -> str:
        """Write the record of the end; return a message about it."""
        event = self.judge.due if self.judge is not None else None
        started = event.finding.started if event else update
        record: dict[str, Any] = {"attempt": self.settings.attempt, "started": started}
        what = ""
        if event is not None:
            line = event.record()
            record |= {key: line[key] for key in ("layers", "kind", "what", "cause")}
            what = f" ({event.finding.what})"
        ended.write(self.folder, ended.Why.DIVERGED, update, **record)
        good = newest_before(self.save_dir, started)
        text = f"{STOPPED} {update:,}{what}; {self.folder / events.NAME} has the details. "
        if good is None:
            return f"{text}No checkpoint is from before; train again with other options"
        return (
            f"{text}The newest checkpoint from before, of update {good[0]:,}, is {good[1]}: start"
            f" another run from it, --restore-file {good[1]}, with other options"
        )


def newest_before(save_dir: Path, started: int) -> tuple[int, Path] | None:
    """Return the newest checkpoint from before trouble that started at update `started`, or None.

    It is TESTED updates older if possible.
    """
    before = [found for found in resumable(save_dir) if found[0] < started]
    tested = [found for found in before if found[0] <= started - TESTED]
    return max(tested or before, key=lambda found: found[0], default=None)


def resumable(save_dir: Path) -> Iterator[tuple[int, Path]]:
    """Yield every checkpoint that can be resumed, with its update."""
    for path in sorted(save_dir.glob("checkpoint*.pt")):
        with contextlib.suppress(ValueError, OSError):
            state = load_checkpoint(path)
            if state.get("last_optimizer_state") is not None:
                yield num_updates(state), path


def observers(settings: WatchSettings, trainer: Any, folder: Path) -> list[Observer]:
    """Return the observers for a new trainer; none if the policy is off."""
    if settings.policy is Policy.OFF:
        return []
    if settings.policy is Policy.FALLBACK:
        raise ConfigurationError(
            "--on-divergence fallback: fairseq-train does not start itself again; train with"
            " scripts/train.sh or `deepnet train`, which do, or use --on-divergence stop"
        )
    judge = Judge(settings, trainer, folder) if trainer.is_data_parallel_master else None
    watch = Watch(settings, trainer, folder, judge)
    return [watch] if judge is None else [judge, watch]


def loss_scale(optimizer: Any) -> float | None:
    """Return the loss scale of fp16 or --amp, or None."""
    scaler = getattr(optimizer, "scaler", None)
    if scaler is None:
        return None
    scale = getattr(scaler, "loss_scale", None)
    return float(scaler.get_scale() if scale is None else scale)
