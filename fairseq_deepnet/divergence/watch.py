"""The divergence watch: rank 0 judges, and all processes stop together.

Rank 0 decides, because some of its numbers (gradient norms, targets of its batches) are its own.
With several processes it broadcasts its decision at every LOOK-th update. fairseq's
FloatingPointError reaches all processes at once. The watch changes no number of the training, and
an error in it does not stop the run.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import sys
from argparse import SUPPRESS, ArgumentParser
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NoReturn

from .. import ended
from ..checkpoints import load_checkpoint, num_updates
from ..errors import ConfigurationError
from ..monitoring import records
from ..monitoring.gradients import LAYER, GradientNorms
from ..observers import Observer, broadcast_from_rank0, gradient_scale, logged
from . import events
from .detectors import LossScale, LossSpike, Stalled, Unigram, VanishedGradients
from .events import Circumstances, Event, Kind, likely_cause, region_text

logger = logging.getLogger(__name__)

DEFAULT_FALLBACKS: Final = "lr*0.5, lr*0.5, update-freq*2"
LOOK: Final = 10
"""Updates between two looks at gradients; after a suspicious look, every update is examined."""
TESTED: Final = 2
"""Number of updates by which a checkpoint should precede the trouble: its parameters are first used
by the next update, which must have been healthy."""
REMEMBERED: Final = 20
"""Number of looks whose statistics are kept, to report the last healthy one."""


class Policy(StrEnum):
    """Reaction to a divergence."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"
    FALLBACK = "fallback"


@dataclass(frozen=True)
class WatchSettings:
    """Settings of the watch."""

    policy: Policy  # --on-divergence
    attempt: int  # fallbacks taken before this start
    circumstances: Circumstances


def add_watch_arguments(parser: ArgumentParser) -> None:
    """Add --on-divergence, and --fallbacks for `deepnet train`."""
    parser.add_argument(
        "--on-divergence",
        choices=[policy.value for policy in Policy],
        help="what to do when losses or gradients are not finite, the loss spikes or stalls,"
        " gradients vanish below a depth or the loss scale collapses: warn with layers and likely"
        " cause (the default), stop, or resume from the newest checkpoint from before with"
        " --fallbacks (fallback: scripts/train.sh and deepnet train only)",
    )
    parser.add_argument(
        "--fallbacks",
        metavar="STEPS",
        help="for --on-divergence fallback: changes to make one after another, separated by commas,"
        f" each as OPTION*FACTOR (default {DEFAULT_FALLBACKS!r})",
    )
    parser.add_argument(f"--{ended.ATTEMPT}", type=int, default=0, help=SUPPRESS)


def watch_settings(args: Any) -> WatchSettings:
    """Return the settings of parsed options; ConfigurationError for --fallbacks without effect."""
    policy = Policy(getattr(args, "on_divergence", None) or Policy.WARN)
    if getattr(args, "fallbacks", None) is not None and policy is not Policy.FALLBACK:
        raise ConfigurationError("--fallbacks needs --on-divergence fallback")
    return WatchSettings(policy, getattr(args, "fallback_step", 0), Circumstances.of(args))


def not_finite(
    error: FloatingPointError, started: int, norms: Mapping[str, Sequence[float | None]]
) -> Event:
    """Describe fairseq's error in terms of layers.

    Args:
        error: fairseq's error
        started: first bad update
        norms: gradient norms by side and layer of fairseq's repetition of the update. Only their
            finiteness is used: they are of this process's own batches, not normalised, and times
            the loss scale
    """
    layers = {}
    for side, row in norms.items():
        bad = [n for n, x in enumerate(row, 1) if x is not None and not math.isfinite(x)]
        if bad:
            layers[side] = (bad[0], bad[-1], len(row))
    at_minimum = "loss scale" in str(error)
    what = "the loss scale is at its minimum" if at_minimum else "gradients are not finite"
    what += f": no finite gradient in {region_text(layers)}" if layers else ""
    return Event(Kind.NOT_FINITE, started, what, layers, {"error": str(error).partition("\n")[0]})


def blames_numbers(error: FloatingPointError) -> bool:
    """Return False for gradients that differ between processes: that is no divergence."""
    return (
        "inconsistent" not in str(error) or re.search(r"\b(?i:nan|inf)\b", str(error)) is not None
    )


class Judge(Observer):
    """Judge on rank 0: passes fairseq's numbers to the detectors and returns events."""

    def __init__(self, settings: WatchSettings, trainer: Any, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.file = folder / events.NAME
        self.norms = GradientNorms(trainer.get_model())
        self.unigram: Unigram | None = None
        self._start_over(trainer, 0)

    def _start_over(self, trainer: Any, update: int) -> None:
        self.start = update
        self.spike = LossSpike()
        self.stalled = Stalled(self.settings.circumstances.warmup)
        self.vanished = VanishedGradients(update)
        self.scale = LossScale(trainer.cfg.common.min_loss_scale)
        self.current: dict[Kind, Event] = {}
        self.good: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.look: dict[str, Any] = {}
        self.lr = 0.0
        self.due: Event | None = None
        self.over = False

    def loaded(self, trainer: Any, update: int) -> None:
        self._start_over(trainer, update)
        ended.clear(self.folder)
        # this attempt repeats later updates; events of earlier attempts stay
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
        # at once after a start: what was loaded is a state to return to only if it was healthy
        if update == self.start + 1 or update % LOOK == 0 or suspects:
            self.look = self._norms(gradient_scale(trainer.optimizer))

    def _norms(self, scale: float = 1.0) -> dict[str, Any]:
        """Return gradient norms by side and layer."""
        measured = self.norms.measure(scale).get("gradient_norm", {})
        return {side: parts[LAYER] for side, parts in measured.items()}

    def end(self, trainer: Any, update: int, updated: bool) -> None:
        if self.over:
            return  # with an error, which has been reported
        scaler = getattr(trainer.optimizer, "scaler", None)
        if scaler is not None:
            self.scale.add(update, float(scaler.loss_scale), updated)
        if updated:
            self._read(update)
        detectors = (self.spike, self.stalled, self.vanished, self.scale)
        findings = [detector.finding for detector in detectors if detector.finding is not None]
        self._report(update, {finding.kind: finding for finding in findings})

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
            if not self.current and not self.vanished.suspected:
                good = {"update": update, **numbers, "lr": self.lr, "gradient_norm": self.look}
                self.good.append(good)

    def _report(self, update: int, findings: Mapping[Kind, Event]) -> None:
        """Report new findings once each, and recoveries."""
        for kind, finding in findings.items():
            if kind in self.current:
                continue
            before = [look for look in self.good if look["update"] < finding.started]
            event = replace(
                finding,
                update=update,
                cause=likely_cause(finding, self.settings.circumstances),
                last_good=before[-1] if before else {},
                policy=self.settings.policy.value,
                attempt=self.settings.attempt,
            )
            logger.warning("%s", event)
            records.append(self.file, event.record())
            self.due = self.due or event
            self.current[kind] = event
        for kind in self.current.keys() - findings.keys():
            logger.info("recovered at update %s: %s has passed", f"{update:,}", kind.value)
            event = replace(self.current.pop(kind), update=update, ended=True)
            records.append(self.file, event.record())

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        if not blames_numbers(error):
            return
        self.over = True
        # fairseq has run the update a second time, to search for the module; its gradients are
        # neither reduced nor scaled, so that only whether they are finite means anything
        started = min([update, *(event.started for event in self.current.values())])
        finding = not_finite(error, started, self._norms())
        self._report(update, {**self.current, finding.kind: finding})


class Watch(Observer):
    """Part of the watch that runs in every process with the policy stop: all end together.

    Args:
        trainer: fairseq's trainer, just built
        folder: folder of divergence.jsonl and ended.json (monitoring.records.run_folder)
        judge: judge on rank 0, which is notified first; None in other processes
    """

    def __init__(self, trainer: Any, folder: Path, judge: Judge | None) -> None:
        self.folder, self.judge = folder, judge
        self.save_dir = Path(trainer.cfg.checkpoint.save_dir)
        self.over = False

    def end(self, trainer: Any, update: int, updated: bool) -> None:
        is_single = trainer.data_parallel_world_size == 1
        if not self.over and (is_single or (updated and update % LOOK == 0)):
            due = self.judge is not None and self.judge.due is not None
            if broadcast_from_rank0(trainer, due):
                self._stop(trainer, update)

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        if blames_numbers(error):
            self._stop(trainer, update)

    def _stop(self, trainer: Any, update: int) -> NoReturn:
        """End the run in every process.

        Rank 0 finishes its work before the others continue, because the first process that exits
        may take the others with it. An error in that work does not prevent the end.
        """
        self.over = True  # fairseq's trainer is left by way of `end`
        if self.judge is not None:
            try:
                text = self._record(self.judge, update)
                print(f"fairseq_deepnet: {text}", file=sys.stderr, flush=True)
            except Exception:
                logger.exception("the divergence at update %d could not be recorded", update)
        broadcast_from_rank0(trainer, True)
        raise SystemExit(ended.DIVERGED)

    def _record(self, judge: Judge, update: int) -> str:
        """Write the record of the end; return a message about it."""
        event = judge.due or Event(Kind.NOT_FINITE, update)  # the judge itself may have failed
        keys = ("attempt", "started", "layers", "kind", "what", "cause")
        line = {key: value for key, value in event.record().items() if key in keys}
        ended.write(self.folder, ended.Why.DIVERGED, update, **line)
        good = newest_before(self.save_dir, event.started)
        text = f"the training diverged at update {update:,}: {event.what} (see {judge.file}). "
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
    before = [checkpoint for checkpoint in resumable(save_dir) if checkpoint[0] < started]
    tested = [checkpoint for checkpoint in before if checkpoint[0] <= started - TESTED]
    return max(tested or before, key=lambda checkpoint: checkpoint[0], default=None)


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
        raise ConfigurationError("--on-divergence fallback needs `deepnet train`; or use stop")
    judge = Judge(settings, trainer, folder) if trainer.is_data_parallel_master else None
    watch = Watch(trainer, folder, judge) if settings.policy is Policy.STOP else None
    return [observer for observer in (judge, watch) if observer is not None]
