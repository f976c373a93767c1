"""The monitor: writes the quantities of each monitored update to monitor.jsonl and TensorBoard.

The process that writes checkpoints measures. Gradients cover all processes, activations only its
own share of the batch. To add a quantity, add a row to quantities.md and measure it in `gradients`
or `end`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from ..anatomy import find_stacks
from ..errors import ConfigurationError
from ..observers import Observer, gradient_scale, logged
from ..schemes import NormPlacement, scheme_class
from . import records
from .bound import UpdateBound
from .gradients import GradientNorms
from .instruments import GAINS, GRADIENTS, Activations, measure_gains, padding_of
from .probe import FILE, RANK, Probe, distance
from .records import EVERYTHING, QUANTITIES

ON_PROBE: Final = ("model_update", "step_update", RANK, "update_bound")
"""Quantities that need the probe, or the initial parameters."""


@dataclass(frozen=True)
class MonitorSettings:
    """Settings of the monitor: quantities and interval."""

    interval: int  # updates between two records
    quantities: tuple[str, ...]  # names in quantities.md


def add_monitor_arguments(parser: ArgumentParser) -> None:
    """Add --monitor-interval and --monitor."""
    parser.add_argument(
        "--monitor-interval",
        type=int,
        metavar="N",
        help="measure gradients, activations and model updates at every N-th update, into"
        " monitor.jsonl and TensorBoard (0, the default: never); changes no number of the training",
    )
    parser.add_argument(
        "--monitor",
        metavar="QUANTITIES",
        help=f"what to measure, separated by commas (default {EVERYTHING}); the table is"
        " monitoring/quantities.md",
    )


def monitor_settings(args: Any) -> MonitorSettings | None:
    """Return the settings of a model's arguments; None if nothing is measured.

    Raises:
        ConfigurationError: for a negative or missing interval, and for an unknown quantity.
    """
    interval, wanted = getattr(args, "monitor_interval", None), getattr(args, "monitor", None)
    if interval is None and wanted is not None:
        raise ConfigurationError(f"--monitor {wanted} needs --monitor-interval, such as 100")
    interval, wanted = interval or 0, wanted or EVERYTHING
    names = dict.fromkeys(name.strip() for name in wanted.split(","))
    quantities = tuple(QUANTITIES if EVERYTHING in names else names)
    unknown = [name for name in quantities if name not in QUANTITIES]
    if unknown:
        raise ConfigurationError(
            f"--monitor {wanted!r}: unknown {', '.join(unknown) or 'empty name'}; choose"
            f" {EVERYTHING} or some of {', '.join(QUANTITIES)}, separated by commas"
        )
    if interval < 0:
        raise ConfigurationError(f"--monitor-interval {interval}: give updates, or 0 for never")
    return MonitorSettings(interval, quantities) if interval else None


class Monitor(Observer):
    """Monitor of a training run; see quantities.md."""

    def __init__(self, settings: MonitorSettings, trainer: Any, folder: Path) -> None:
        self.interval, self.wanted = settings.interval, frozenset(settings.quantities)
        self.file = folder / records.NAME
        self.model = trainer.get_model()
        self.stacks = find_stacks(self.model)
        scheme = scheme_class(self.model.args.residual_scheme)
        self.placement = scheme.norm
        self.norms = GradientNorms(self.model) if self._wants(*GRADIENTS) else None
        self.activations = Activations(self.model, self.stacks, scheme.norm, self.wanted)
        has_bound = self._wants("update_bound") and scheme.bounded
        self.bound = UpdateBound(self.stacks) if has_bound else None
        weights = self.bound.weights if self.bound else []
        padding = padding_of(self.stacks[0])
        self.probe = Probe(self.model, padding, weights, folder / FILE)
        self.on_probe = self._wants(*ON_PROBE)
        self.logdir = trainer.cfg.common.tensorboard_logdir
        self.events: SummaryWriter | None = None
        self._record: records.Record = {}
        self._features: Tensor | None = None  # of the probe, before the step

    def _wants(self, *names: str) -> bool:
        return not self.wanted.isdisjoint(names)

    def _is_due(self, update: int) -> bool:
        return update % self.interval == 0

    def loaded(self, trainer: Any, update: int) -> None:
        """Continue after the last valid record, from the origin of the first start."""
        records.keep_until(self.file, update)
        if update and self.on_probe:
            self.probe.resume()

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        if self.on_probe:
            self.probe.prepare(trainer, samples)
        if self._is_due(update):
            self.activations.arm()

    def gradients(self, trainer: Any, update: int) -> None:
        # The last moment of the old parameters, and the first at which Admin has profiled.
        if self.on_probe:
            self.probe.start()
        if not self._is_due(update):
            return
        values = self.norms.measure(gradient_scale(trainer.optimizer)) if self.norms else {}
        self._record = {"update": update, "lr": float(trainer.get_lr()), "values": values}
        self._features = self.probe.features() if self._wants("step_update") else None

    def end(self, trainer: Any, update: int, updated: bool) -> None:
        if self._is_due(update) and updated:
            self._record["values"] |= self.activations.collect() | self._on_probe()
            if self._wants(*GAINS) and self.placement is NormPlacement.POST:
                self._record["values"] |= measure_gains(self.stacks)
            self._write()
        self.detach()

    def detach(self) -> None:
        self.activations.disarm()
        self._features = None

    def _on_probe(self) -> dict[str, Any]:
        """Measure the new parameters on the probe, and their distance from the initial ones."""
        if not self.on_probe:
            return {}
        features, values = self.probe.measure_ranks(self.stacks, self.placement)
        if self.probe.initial is not None:
            values["model_update"] = distance(features, self.probe.initial)
        if self._features is not None:
            values["step_update"] = distance(features, self._features)
        if self.bound and self.probe.weights:
            values["update_bound"] = self.bound.measure(self.probe.weights)
        return values

    def _write(self) -> None:
        measured = self._record.pop("values")
        values = {
            name: measured[name] for name in QUANTITIES if name in self.wanted & set(measured)
        }
        # the few numbers of a line before the many
        line = {**self._record, **logged("loss", "nll_loss", "gnorm"), "values": values}
        records.append(self.file, line)
        if not self.logdir:
            return
        if self.events is None:
            # a resumed run repeats later updates: TensorBoard drops the old ones
            self.events = SummaryWriter(f"{self.logdir}/monitor", purge_step=line["update"])
        for tag, number in scalars(values):
            self.events.add_scalar(tag, number, line["update"])
        self.events.flush()


def scalars(value: Any, tag: str = "") -> Iterator[tuple[str, float]]:
    """Yield tags and numbers: quantity, quantity/side, quantity/side/part/layer (from 1)."""
    if isinstance(value, list):
        value = {f"{layer:04d}": number for layer, number in enumerate(value, start=1)}
    if isinstance(value, dict):
        for name, item in value.items():
            yield from scalars(item, f"{tag}/{name}" if tag else name)
    elif value is not None:
        yield tag, value
