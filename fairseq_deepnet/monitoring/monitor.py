"""At every due update, all wanted quantities into monitor.jsonl, TensorBoard and fairseq's log.

The process that writes checkpoints measures. Gradients are those of all processes together,
activations those of its own share of the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.logging import metrics
from torch.utils.tensorboard import SummaryWriter

from ..anatomy import find_stacks
from ..schemes import scheme_class
from . import origin, records
from .activations import padding_of
from .bound import UpdateBound
from .gradients import LAYER
from .instruments import INSTRUMENTS, ON_PROBE, Bounds, Instrument, Subject, Values
from .options import MonitorSettings
from .trainer import Observer, gradient_scale, logged

logger = logging.getLogger(__name__)


class Monitor(Observer):
    """Measures a training; see fairseq_deepnet.monitoring.quantities.

    Args:
        settings: what and how often.
        trainer: fairseq's, just made: its model has its initial weights.
        folder: where monitor.jsonl goes.
    """

    def __init__(self, settings: MonitorSettings, trainer: Any, folder: Path) -> None:
        self.settings, self.file = settings, folder / records.NAME
        self.subject = subject_of(trainer.get_model(), settings, folder)
        self.instruments = [kind(self.subject) for kind in INSTRUMENTS if kind.fits(self.subject)]
        self.on_probe = not self.subject.wanted.isdisjoint(ON_PROBE)
        self.events = EventWriter(trainer.cfg.common.tensorboard_logdir)
        self._record: records.Record = {}
        self._shown: dict[str, float] = {}

    def _due(self, update: int) -> list[Instrument]:
        return self.instruments if update % self.settings.interval == 0 else []

    def loaded(self, trainer: Any, update: int) -> None:
        """Go on after the last record that still holds, from the origin of the first start."""
        records.keep_until(self.file, update)
        last = trainer.cfg.optimization.max_update
        if 0 < last < self.settings.interval:
            logger.warning(
                "--monitor-interval %d: nothing is measured in a training of %d updates",
                self.settings.interval,
                last,
            )
        if update and self.on_probe:
            self.subject.origin.resume()

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        if self.on_probe:
            self.subject.origin.prepare(trainer, samples)
        for instrument in self._due(update):
            instrument.arm()

    def gradients(self, trainer: Any, update: int) -> None:
        # The last moment of the old parameters, and the first at which Admin has profiled.
        if self.on_probe:
            self.subject.origin.take()
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
        # at each update: fairseq empties its meters with every line, and would show nothing
        for name in self._shown:
            show(name, self._shown)

    def detach(self) -> None:
        for instrument in self.instruments:
            instrument.disarm()

    def _keep(self, values: Values) -> None:
        kept = {name: value for name, value in values.items() if name in self.subject.wanted}
        self._record["values"] |= kept

    def _write(self) -> None:
        values = self._record.pop("values")
        # the few numbers of a line before the many
        line = {**self._record, **logged("loss", "nll_loss", "gnorm"), "values": values}
        records.append(self.file, line)
        self.events.write(line["update"], values)
        self._shown |= highlights(values)


def subject_of(model: Any, settings: MonitorSettings, folder: Path) -> Subject:
    """Return what a run's instruments are made for; `model` is one of ours, as it was built."""
    stacks = tuple(find_stacks(model))
    placement, wanted = scheme_class(model.args.residual_scheme).norm, settings.quantities
    bound = Bounds.applies(placement) and "update_bound" in wanted
    start = origin.Origin(
        model,
        padding_of(stacks[0]),
        UpdateBound(stacks).weights if bound else [],
        folder / origin.NAME,
        [] if set(wanted).isdisjoint(ON_PROBE) else list(model.parameters()),
    )
    return Subject(model, stacks, placement, frozenset(wanted), start)


def show(name: str, shown: Mapping[str, float]) -> None:
    """Put a number into fairseq's progress line, as a derived one: checkpoints do not keep these,
    so that a run which goes on unmonitored does not repeat what was measured long ago.
    """
    metrics.log_derived(name, lambda _: round(shown[name], 5), priority=950)


def highlights(values: Values) -> dict[str, float]:
    """Return the few for fairseq's progress line: how far the model has moved, and whether
    gradients reach the bottom of the top stack.
    """
    chosen = {name: values.get(name) for name in ("model_update", "step_update")}
    sides = values.get("gradient_norm", {})
    layers = sides.get("decoder", sides.get("encoder", {})).get(LAYER)
    if layers:
        chosen |= {"gnorm_bottom": layers[0], "gnorm_top": layers[-1]}
    return {name: value for name, value in chosen.items() if value is not None}


class EventWriter:
    """Writes into the folder `monitor` of fairseq's --tensorboard-logdir; nowhere if there is none.

    Args:
        folder: that of --tensorboard-logdir, or None.
    """

    def __init__(self, folder: str | None) -> None:
        self.folder = Path(folder) / "monitor" if folder else None
        self._writer: SummaryWriter | None = None

    def write(self, update: int, values: dict[str, Any]) -> None:
        """All values of one update."""
        if self.folder is None:
            return
        if self._writer is None:
            # a run that goes on makes later updates again: TensorBoard drops the old ones
            self._writer = SummaryWriter(str(self.folder), purge_step=update)
        for tag, number in scalars(values):
            self._writer.add_scalar(tag, number, update)
        self._writer.flush()


def scalars(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield tags and numbers: quantity, quantity/side, quantity/side/part/layer (from 1)."""
    for quantity, value in values.items():
        if not isinstance(value, dict):
            yield quantity, value
            continue
        for side, parts in value.items():
            if not isinstance(parts, dict):
                yield f"{quantity}/{side}", parts
                continue
            for part, row in parts.items():
                for layer, number in enumerate(row, start=1):
                    if number is not None:
                        yield f"{quantity}/{side}/{part}/{layer:04d}", number
