"""The divergence watch: rank 0 judges the run, and all processes stop together.

Rank 0 decides, because its gradient norms and the targets in its batches are not known to other
processes. With several processes, rank 0 broadcasts its decision every INTERVAL updates, except
when fairseq raises FloatingPointError, which happens in all processes at once. The watch does not
change the run's numbers, and an error in the watch does not stop the run.
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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from .. import ended
from ..checkpoints import load_checkpoint, num_updates
from ..errors import ConfigurationError
from ..monitoring import records
from ..monitoring.instruments import LAYER, GradientNorms
from ..monitoring.monitor import Monitor
from ..observers import Observer, broadcast_from_rank0, gradient_scale, logged
from ..optim.schedule import warmup_of
from ..schemes import NormPlacement
from . import events
from .detectors import LossScale, LossSpike, RankCollapse, Stalled, Unigram, VanishedGradients
from .events import Event, Kind, likely_cause, region_text

logger = logging.getLogger(__name__)

DEFAULT_FALLBACKS: Final = "lr*0.5, lr*0.5, update-freq*2"
INTERVAL: Final = 10  # updates between two checks of the gradients, unless a check was suspicious
TESTED: Final = 2
"""Number of updates by which a checkpoint should precede a divergence: the checkpoint's parameters
are first used by the next update, which must have been healthy."""
HISTORY: Final = 20  # healthy checks that are kept; an event reports the last one before it


def add_watch_arguments(parser: ArgumentParser) -> None:
    """Add --on-divergence, and --fallbacks for `deepnet train`."""
    parser.add_argument(
        "--on-divergence",
        choices=["off", "warn", "stop", "fallback"],
        help="reaction to a divergence: warn with layers and likely cause (the default), stop, or"
        " resume from the newest earlier checkpoint with the next step of --fallbacks (fallback:"
        " scripts/train.sh and deepnet train only)",
    )
    parser.add_argument(
        "--fallbacks",
        metavar="STEPS",
        help="for --on-divergence fallback: changes to apply one after another, separated by"
        f" commas, each as OPTION*FACTOR (default {DEFAULT_FALLBACKS!r})",
    )
    parser.add_argument(f"--{ended.ATTEMPT}", type=int, default=0, help=SUPPRESS)


def policy_of(args: Any) -> str:
    """Return the value of --on-divergence.

    Raises:
        ConfigurationError: if --fallbacks is set without --on-divergence fallback.
    """
    policy: str = getattr(args, "on_divergence", None) or "warn"
    if getattr(args, "fallbacks", None) is not None and policy != "fallback":
        raise ConfigurationError("--fallbacks needs --on-divergence fallback")
    return policy


def not_finite(
    error: FloatingPointError, started: int, norms: Mapping[str, Sequence[float | None]]
) -> Event:
    """Return the event for fairseq's error, with the layers that have no finite gradient norm."""
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
    """Return False if fairseq aborts only because gradients differ between processes."""
    return (
        "inconsistent" not in str(error) or re.search(r"\b(?i:nan|inf)\b", str(error)) is not None
    )


class Judge(Observer):
    """Observer on rank 0 that passes fairseq's numbers to the detectors and reports events."""

    def __init__(self, trainer: Any, folder: Path, monitor: Monitor | None) -> None:
        self.args, self.file = trainer.cfg.model, folder / events.NAME
        is_post = monitor is not None and monitor.placement is NormPlacement.POST
        self.monitor = monitor if is_post else None
        self.attempt: int = getattr(self.args, "fallback_step", 0)
        self.norms = GradientNorms(trainer.get_model())
        self.unigram: Unigram | None = None
        self._start_over(trainer, 0)

    def _start_over(self, trainer: Any, update: int) -> None:
        self.start = update
        self.spike = LossSpike()
        self.stalled = Stalled(warmup_of(self.args))
        self.vanished = VanishedGradients(update)
        self.rank = RankCollapse(update)
        self.scale = LossScale(trainer.cfg.common.min_loss_scale)
        self.current: dict[Kind, Event] = {}
        self.healthy: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.gradient_norms: dict[str, Any] = {}
        self.lr = 0.0
        self.due: Event | None = None
        self.has_ended = False

    def loaded(self, trainer: Any, update: int) -> None:
        self._start_over(trainer, update)
        # this attempt repeats later updates; events of earlier attempts stay
        records.keep_until(self.file, update, self.attempt)
        own = (event for event in events.read(self.file) if event.attempt == self.attempt)
        self.current = events.not_ended(own)  # a problem may outlast a restart
        self.due = min(self.current.values(), key=lambda due: due.started, default=None)
        self.spike.resume(self.current.get(Kind.LOSS_SPIKE))
        self.stalled.finding = self.current.get(Kind.STALLED)
        self.vanished.finding = self.current.get(Kind.VANISHED)
        self.rank.finding = self.current.get(Kind.RANK)
        self.scale.finding = self.current.get(Kind.LOSS_SCALE)

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        dictionary = trainer.task.target_dictionary
        if dictionary is not None and not self.stalled.learnt:
            self.unigram = self.unigram or Unigram(dictionary)
            self.unigram.add(samples)

    def gradients(self, trainer: Any, update: int) -> None:
        self.gradient_norms, self.lr = {}, float(trainer.get_lr())
        suspects = self.vanished.suspected and self.vanished.finding is None
        # the first update after a start shows whether the loaded state is healthy
        if update == self.start + 1 or update % INTERVAL == 0 or suspects:
            self.gradient_norms = self._norms(gradient_scale(trainer.optimizer))

    def _norms(self, scale: float = 1.0) -> dict[str, Any]:
        """Return gradient norms by side and layer."""
        measured = self.norms.measure(scale).get("gradient_norm", {})
        return {side: parts[LAYER] for side, parts in measured.items()}

    def end(self, trainer: Any, update: int, updated: bool) -> None:
        if self.has_ended:
            return  # `failed` has reported the error
        scaler = getattr(trainer.optimizer, "scaler", None)
        if scaler is not None:
            self.scale.add(update, float(scaler.loss_scale), updated)
        if updated:
            self._read(update)
        detectors = (self.spike, self.stalled, self.vanished, self.rank, self.scale)
        findings = [detector.finding for detector in detectors if detector.finding is not None]
        self._report(update, {finding.kind: finding for finding in findings})

    def _read(self, update: int) -> None:
        """Pass an update's numbers, as reduced and logged by fairseq, to the detectors."""
        numbers = logged("loss", "nll_loss", "gnorm")
        loss = numbers.get("nll_loss", numbers.get("loss"))
        if loss is not None:
            self.spike.add(update, loss)
            self.stalled.add(update, loss)
        if update % INTERVAL == 0:
            self.stalled.judge(self.unigram.level() if self.unigram else None)
        if self.gradient_norms:
            self.vanished.add(update, self.gradient_norms)
            if not self.current and not self.vanished.suspected:
                facts = {**numbers, "lr": self.lr, "gradient_norm": self.gradient_norms}
                self.healthy.append({"update": update, **facts})
        record = self.monitor.record if self.monitor else {}
        ranks = record["values"].get("token_rank", {}) if record.get("update") == update else {}
        if ranks.keys() >= {"encoder", "decoder"}:  # a single stack has low ranks at first
            self.rank.add(update, ranks["encoder"][LAYER])

    def _report(self, update: int, findings: Mapping[Kind, Event]) -> None:
        """Report each new finding once, and each recovery."""
        for kind, finding in findings.items():
            if kind in self.current:
                continue
            before = [record for record in self.healthy if record["update"] < finding.started]
            event = replace(
                finding,
                update=update,
                cause=likely_cause(finding, self.args),
                last_good=before[-1] if before else {},
                policy=policy_of(self.args),
                attempt=self.attempt,
            )
            logger.warning("%s", event)
            self.due = min(filter(None, (self.due, event)), key=lambda due: due.started)
            self.current[kind] = event
            records.append(self.file, asdict(event))  # last, as the disk may be full
        for kind in self.current.keys() - findings.keys():
            logger.info("recovered at update %s: %s has passed", f"{update:,}", kind.value)
            event = replace(self.current.pop(kind), update=update, ended=True)
            records.append(self.file, asdict(event))

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        if not blames_numbers(error):
            return
        self.has_ended = True
        # fairseq has repeated the update to search for the module. The gradients are neither
        # reduced nor scaled, so only their finiteness has a meaning.
        started = min([update, *(event.started for event in self.current.values())])
        finding = not_finite(error, started, self._norms())
        self._report(update, {**self.current, finding.kind: finding})


class Watch(Observer):
    """Observer that ends all processes together (--on-divergence stop).

    Args:
        trainer: fairseq's trainer
        folder: folder for divergence.jsonl and ended.json (see monitoring.records.run_folder)
        judge: on rank 0, the Judge, which is notified before this observer; None on other ranks
    """

    def __init__(self, trainer: Any, folder: Path, judge: Judge | None) -> None:
        self.folder, self.judge = folder, judge
        self.save_dir = Path(trainer.cfg.checkpoint.save_dir)
        self.has_ended = False

    def end(self, trainer: Any, update: int, updated: bool) -> None:
        is_single = trainer.data_parallel_world_size == 1
        if not self.has_ended and (is_single or (updated and update % INTERVAL == 0)):
            due = self.judge is not None and self.judge.due is not None
            if broadcast_from_rank0(trainer, due):
                self._stop(trainer, update)

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        if blames_numbers(error):
            self._stop(trainer, update)

    def _stop(self, trainer: Any, update: int) -> NoReturn:
        """End the run in every process.

        The other processes wait for rank 0, because the exit of one process may end all others. An
        error while rank 0 writes the record does not prevent the end.
        """
        self.has_ended = True  # fairseq's trainer calls `end` while it unwinds
        if self.judge is not None:
            try:
                text = self._record(self.judge, update)
                print(f"fairseq_deepnet: {text}", file=sys.stderr, flush=True)
            except Exception:
                logger.exception("the divergence at update %d could not be recorded", update)
        broadcast_from_rank0(trainer, True)
        raise SystemExit(ended.DIVERGED)

    def _record(self, judge: Judge, update: int) -> str:
        """Write ended.json and return a message about the divergence."""
        event = judge.due or Event(Kind.NOT_FINITE, update)  # the judge itself may have failed
        keys = ("kind", "started", "what", "layers", "cause", "attempt")
        facts = {key: getattr(event, key) for key in keys}
        ended.write(self.folder, ended.Why.DIVERGED, update, **facts)
        before = newest_before(self.save_dir, event.started)
        restart = "no checkpoint precedes it"
        if before is not None:  # no advice, because a supervisor may fall back
            restart = f"--restore-file {before[1]} starts another run from update {before[0]}"
        return f"the run diverged at update {update}: {event.what} (see {judge.file}); {restart}"


def newest_before(save_dir: Path, started: int) -> tuple[int, Path] | None:
    """Return the update and path of the newest checkpoint from before update `started`, or None.

    If possible, this checkpoint precedes `started` by at least TESTED updates.
    """
    before = [checkpoint for checkpoint in resumable(save_dir) if checkpoint[0] < started]
    tested = [checkpoint for checkpoint in before if checkpoint[0] <= started - TESTED]
    return max(tested or before, key=lambda checkpoint: checkpoint[0], default=None)


def resumable(save_dir: Path) -> Iterator[tuple[int, Path]]:
    """Yield the update and path of every checkpoint from which a run can resume."""
    for path in sorted(save_dir.glob("checkpoint*.pt")):
        with contextlib.suppress(ValueError, OSError):
            state = load_checkpoint(path)
            if state.get("last_optimizer_state") is not None:
                yield num_updates(state), path


def observers(trainer: Any, folder: Path, monitor: Monitor | None) -> list[Observer]:
    """Return the observers of a new trainer, or an empty list if --on-divergence is off."""
    policy = policy_of(trainer.cfg.model)
    if policy == "off":
        return []
    if policy == "fallback":
        raise ConfigurationError("--on-divergence fallback needs `deepnet train`; or use stop")
    judge = Judge(trainer, folder, monitor) if trainer.is_data_parallel_master else None
    watch = Watch(trainer, folder, judge) if policy == "stop" else None
    return [*filter(None, (judge, watch))]
