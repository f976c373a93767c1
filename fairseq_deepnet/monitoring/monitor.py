"""The monitor: writes the quantities of each due update to monitor.jsonl and TensorBoard.

The process that writes checkpoints measures. Gradients include all processes, activations only its
own share of the batch.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from ..anatomy import find_stacks
from ..errors import ConfigurationError
from ..observers import Observer, gradient_scale, logged
from ..schemes import scheme_class
from . import records
from .bound import UpdateBound
from .instruments import (
    INSTRUMENTS,
    ON_PROBE,
    Instrument,
    Subject,
    Values,
    padding_of,
)
from .probe import ORIGIN, Origin
from .records import EVERYTHING, QUANTITIES


@dataclass(frozen=True)
class MonitorSettings:
    """Settings: what to measure, and how often."""

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
        ConfigurationError: for a negative interval, an unknown quantity, and quantities without
            an interval.
    """
    interval, wanted = getattr(args, "monitor_interval", None), getattr(args, "monitor", None)
    names = [name.strip() for name in (wanted or EVERYTHING).split(",") if name.strip()]
    quantities = tuple(QUANTITIES) if EVERYTHING in names else tuple(dict.fromkeys(names))
    unknown = [name for name in quantities if name not in QUANTITIES]
    if unknown or not quantities:
        raise ConfigurationError(
            f"--monitor {wanted!r}: unknown {', '.join(unknown) or 'empty list'}; choose"
            f" {EVERYTHING} or some of {', '.join(QUANTITIES)}, separated by commas"
        )
    if interval is None and wanted is not None:
        # an interval of 0 is no mistake: it turns off what a configuration file asks for
        raise ConfigurationError(
            f"--monitor {wanted} measures nothing without --monitor-interval; give the updates"
            " between two records, as in --monitor-interval 100, or leave out --monitor"
        )
    if interval is not None and interval < 0:
        raise ConfigurationError(f"--monitor-interval {interval}: give updates, or 0 for never")
    return MonitorSettings(interval, quantities) if interval else None


class Monitor(Observer):
    """Monitor of a training run; see quantities.md."""

    def __init__(self, settings: MonitorSettings, trainer: Any, folder: Path) -> None:
        self.settings, self.file = settings, folder / records.NAME
        model, wanted = trainer.get_model(), frozenset(settings.quantities)
        stacks = tuple(find_stacks(model))
        scheme = scheme_class(model.args.residual_scheme)
        bound = "update_bound" in wanted and scheme.bounded
        weights = UpdateBound(stacks).weights if bound else []
        self.origin = Origin(model, padding_of(stacks[0]), weights, folder / ORIGIN)
        subject = Subject(model, stacks, scheme, wanted, self.origin)
        self.wanted, self.on_probe = wanted, not wanted.isdisjoint(ON_PROBE)
        self.instruments = [kind(subject) for kind in INSTRUMENTS if kind.fits(subject)]
        self.logdir = trainer.cfg.common.tensorboard_logdir
        self.events: SummaryWriter | None = None
        self._record: records.Record = {}

    def _due(self, update: int) -> list[Instrument]:
        return self.instruments if update % self.settings.interval == 0 else []

    def loaded(self, trainer: Any, update: int) -> None:
        """Continue after the last valid record, from the origin of the first start."""
        records.keep_until(self.file, update)
        if update and self.on_probe:
            self.origin.resume()

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        if self.on_probe:
            self.origin.prepare(trainer, samples)
        for instrument in self._due(update):
            instrument.arm()

    def gradients(self, trainer: Any, update: int) -> None:
        # The last moment of the old parameters, and the first at which Admin has profiled.
        if self.on_probe:
            self.origin.take()
        due = self._due(update)
        if due:
            self._record = {"update": update, "lr": float(trainer.get_lr()), "values": {}}
        scale = gradient_scale(trainer.optimizer) if due else 1.0
        for instrument in due:
            self._keep(instrument.before_step(scale))

    def end(self, trainer: Any, update: int, made: bool) -> None:
        due = self._due(update)
        if due and made:
            for instrument in due:
                self._keep(instrument.after_step())
            self._write()
        for instrument in due:
            instrument.disarm()

    def detach(self) -> None:
        for instrument in self.instruments:
            instrument.disarm()

    def _keep(self, values: Values) -> None:
        kept = {name: value for name, value in values.items() if name in self.wanted}
        self._record["values"] |= kept

    def _write(self) -> None:
        values = self._record.pop("values")
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
