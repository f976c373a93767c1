"""Monitor that writes the quantities of measured updates to monitor.jsonl and TensorBoard.

Only the process that writes checkpoints measures quantities: gradients of the whole batch, but
activations of only its own part of the batch. To add a quantity, add a row to quantities.md and
measure the quantity in `Monitor.gradients` or `Monitor.end`.
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from ..anatomy import find_stacks
from ..errors import ConfigurationError
from ..observers import Observer, gradient_scale, logged
from ..schemes import NormPlacement, scheme_class
from . import records
from .instruments import GAINS, GRADIENTS, Activations, GradientNorms, measure_gains, padding_of
from .records import QUANTITIES
from .updates import FILE, TOKENS, Probe, UpdateBound, distance

logger = logging.getLogger(__name__)


def add_monitor_arguments(parser: ArgumentParser) -> None:
    """Add --monitor-interval and --monitor."""
    parser.add_argument(
        "--monitor-interval",
        type=int,
        metavar="N",
        help="record gradients, activations and model updates in monitor.jsonl and TensorBoard"
        " at every N-th update (default: 0, never); the trained model does not change",
    )
    parser.add_argument(
        "--monitor",
        metavar="QUANTITIES",
        help="quantities to measure, separated by commas (default: all); monitoring/quantities.md"
        " lists them",
    )


def monitored_quantities(args: Any) -> tuple[str, ...]:
    """Return the quantities to measure, according to a model's arguments.

    Raises:
        ConfigurationError: if the interval is negative, if --monitor is set without an interval,
            or if a quantity is unknown.
    """
    interval, request = getattr(args, "monitor_interval", None), getattr(args, "monitor", None)
    if interval is None and request is not None:
        raise ConfigurationError(f"--monitor {request} needs --monitor-interval, such as 100")
    names = [name.strip() for name in (request or "all").split(",")]
    unknown = [name for name in names if name not in (*QUANTITIES, "all")]
    if unknown:
        raise ConfigurationError(
            f"--monitor {request!r}: unknown {', '.join(unknown) or 'empty name'}; choose all or"
            f" some of {', '.join(QUANTITIES)}, separated by commas"
        )
    if interval is not None and interval < 0:
        raise ConfigurationError(f"--monitor-interval {interval}: the minimum is 0 (never)")
    if not interval:
        return ()
    return tuple(QUANTITIES) if "all" in names else tuple(dict.fromkeys(names))


class Monitor(Observer):
    """Observer that measures and writes quantities.

    Args:
        quantities: names of the quantities to measure
        trainer: fairseq's trainer
        folder: folder for monitor.jsonl
    """

    def __init__(self, quantities: Sequence[str], trainer: Any, folder: Path) -> None:
        self.quantities = frozenset(quantities)
        self.interval: int = trainer.cfg.model.monitor_interval
        self.file = folder / records.NAME
        self.model = trainer.get_model()
        self.stacks = find_stacks(self.model)
        scheme = scheme_class(self.model.args.residual_scheme)
        self.placement = scheme.norm
        self.norms = GradientNorms(self.model) if self._wants(*GRADIENTS) else None
        self.activations = Activations(self.model, self.stacks, scheme.norm, self.quantities)
        has_bound = self._wants("update_bound") and scheme.bounded
        self.bound = UpdateBound(self.stacks) if has_bound else None
        on_probe = self._wants("model_update", "step_update", *TOKENS, "update_bound")
        padding = padding_of(self.stacks[0])
        self.probe = Probe(self.model, padding, folder / FILE) if on_probe else None
        self.logdir = trainer.cfg.common.tensorboard_logdir
        self.events: SummaryWriter | None = None
        self.record: records.Record = {}  # of the last measured update
        self._features: Tensor | None = None  # features of the probe before the step

    def _wants(self, *names: str) -> bool:
        return not self.quantities.isdisjoint(names)

    def _is_due(self, update: int) -> bool:
        return update % self.interval == 0

    def loaded(self, trainer: Any, update: int) -> None:
        records.keep_until(self.file, update)
        if update and self.probe:
            self.probe.resume()
            if self.bound and self.probe.moved:
                logger.warning("update_bound is not measured: the run began with loaded weights")
                self.bound = None

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        if self.probe:
            self.probe.prepare(trainer, samples)
        if self._is_due(update):
            self.activations.arm()

    def gradients(self, trainer: Any, update: int) -> None:
        # The parameters have not been updated yet, and Admin has finished profiling.
        if self.probe and self.probe.initial is None:
            self.probe.start(self.bound.measure() if self.bound else 0.0)
            if self.bound:
                self.bound.start()
        if not self._is_due(update):
            return
        values = self.norms.measure(gradient_scale(trainer.optimizer)) if self.norms else {}
        self.record = {"update": update, "lr": float(trainer.get_lr()), "values": values}
        if self.probe and self._wants("step_update"):
            self._features = self.probe.features()

    def end(self, trainer: Any, update: int, updated: bool) -> None:
        if self._is_due(update) and updated:
            self.record["values"] |= self.activations.collect() | self._on_probe()
            if self._wants(*GAINS) and self.placement is NormPlacement.POST:
                self.record["values"] |= measure_gains(self.stacks)
            self._write()
        self.detach()

    def detach(self) -> None:
        self.activations.disarm()
        self._features = None

    def _on_probe(self) -> dict[str, Any]:
        """Measure the token vectors and the model updates on the probe, and the updates' bound."""
        if self.probe is None or self.probe.initial is None:
            return {}
        features, values = self.probe.measure_tokens(self.stacks, self.placement)
        values["model_update"] = distance(features, self.probe.initial)
        if self._features is not None:
            values["step_update"] = distance(features, self._features)
        if self.bound:
            values["update_bound"] = self.bound.measure()
        return values

    def _write(self) -> None:
        measured = self.record.pop("values")
        names = self.quantities & measured.keys()
        values = {name: measured[name] for name in QUANTITIES if name in names}
        self.record |= {**logged("loss", "nll_loss", "gnorm"), "values": values}
        records.append(self.file, self.record)
        if not self.logdir:
            return
        if self.events is None:
            # TensorBoard drops later updates, which a resumed run repeats
            self.events = SummaryWriter(f"{self.logdir}/monitor", purge_step=self.record["update"])
        for tag, number in scalars(values):
            self.events.add_scalar(tag, number, self.record["update"])
        self.events.flush()


def scalars(value: Any, tag: str = "") -> Iterator[tuple[str, float]]:
    """Yield tags, such as gradient_norm/decoder/ffn/0001 (the lowest layer), with their numbers."""
    if isinstance(value, list):
        value = {f"{layer:04d}": number for layer, number in enumerate(value, start=1)}
    if isinstance(value, dict):
        for name, item in value.items():
            yield from scalars(item, f"{tag}/{name}" if tag else name)
    elif value is not None:
        yield tag, value
