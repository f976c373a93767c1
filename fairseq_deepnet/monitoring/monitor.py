"""The instrument: at every due update, all wanted quantities, into file, TensorBoard and log.

The process that writes checkpoints measures. Gradients are those of all processes together,
activations those of its own share of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fairseq import utils
from fairseq.logging import metrics
from torch import Tensor

from ..anatomy import find_stacks
from ..schemes import NormPlacement, scheme_class
from . import records
from .activations import BACKWARD, FORWARD, ActivationWatch
from .bound import UpdateBound
from .gradients import LAYER, GradientNorms
from .options import MonitorSettings
from .probe import Probe, distance, first_sentences
from .reference import NAME, Reference, copy_to_host, fingerprint
from .steps import Step, layer_parameters
from .tensorboard import EventWriter
from .trainer import Observer, gradient_scale

GRADIENTS: Final = ("gradient_norm", "weight_gradient_norm", "embedding_gradient_norm")
_LOGGED: Final = ("loss", "nll_loss", "gnorm")
"""Meters of fairseq's that a record repeats."""


class Monitor(Observer):
    """Measures a training; see fairseq_deepnet.monitoring.quantities.

    Args:
        settings: what and how often.
        trainer: fairseq's, just made: its model has its initial weights.
        folder: where monitor.jsonl goes.
    """

    def __init__(self, settings: MonitorSettings, trainer: Any, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.file = folder / records.NAME
        self.model = trainer.get_model()
        self.stacks = find_stacks(self.model)
        placement = scheme_class(self.model.args.residual_scheme).norm
        self.gradient_norms = GradientNorms(self.model)
        self.activations = ActivationWatch(self.model, self.stacks, placement, settings.quantities)
        self.bound: UpdateBound | None = None
        if placement is NormPlacement.POST and self.wants("update_bound", "step_bound"):
            width = self.stacks[-1].layers[0].branches[0].norm
            self.bound = UpdateBound(self.stacks, width.normalized_shape[0])  # type: ignore
        self.initial: list[Tensor] = self._bound_weights()
        self.probe: Probe | None = None
        self.reference: Reference | None = None
        self._step: Step | None = None
        self._before: Tensor | None = None
        self._values: dict[str, Any] = {}
        self._lr = 0.0
        self._events = EventWriter(trainer.cfg.common.tensorboard_logdir)

    def wants(self, *names: str) -> bool:
        """Whether one of these quantities was asked for."""
        return any(name in self.settings.quantities for name in names)

    def due(self, update: int) -> bool:
        """Whether this update is to be measured."""
        return update % self.settings.interval == 0

    def _bound_weights(self) -> list[Tensor]:
        wanted = self.bound is not None and self.wants("update_bound")
        return copy_to_host(self.bound.weights) if wanted and self.bound is not None else []

    # The training, as the trainer tells it

    def loaded(self, trainer: Any, update: int) -> None:
        """Go on after the last record that still holds, from the initial state of the first start."""
        records.keep_until(self.file, update)
        if update and self.wants("model_update", "update_bound"):
            device = next(self.model.parameters()).device
            self.reference = Reference.load(self.folder / NAME, self.initial, device)
            if self.reference is not None:
                self.probe = Probe(self.reference.net_input, self._padding)

    def begin(self, trainer: Any, update: int, samples: Sequence[Any]) -> None:
        needed = self.wants("model_update", "step_update", "attention_entropy", "update_bound")
        if self.probe is None and needed:
            net_input = first_sentences(trainer, samples)
            if trainer.cuda:
                net_input = utils.move_to_cuda(net_input)
            self.probe = Probe(net_input, self._padding)
        if self.due(update):
            self.activations.attach()

    @property
    def _padding(self) -> int:
        return int(self.stacks[0].module.padding_idx)

    def gradients(self, trainer: Any, update: int) -> None:
        """The last moment of the old parameters; Admin has profiled its first batch by now."""
        if self.reference is None and self.probe is not None:
            self._take_reference()
        if not self.due(update):
            return
        self._values, self._lr = {}, float(trainer.get_lr())
        if self.wants(*GRADIENTS):
            norms = self.gradient_norms.measure(gradient_scale(trainer.optimizer))
            self._values |= {name: norms[name] for name in norms if self.wants(name)}
        parameters = layer_parameters(self.stacks) if self.wants("parameter_update_ratio") else []
        if self.bound is not None and self.wants("step_bound"):
            parameters += self.bound.weights
        self._step = Step(parameters)
        if self.wants("step_update") and self.probe is not None:
            self._before = self.probe.features(self.model)

    def _take_reference(self) -> None:
        assert self.probe is not None
        self.initial = self._bound_weights()
        features = self.probe.features(self.model)
        self.reference = Reference(
            self.probe.net_input, features, self.initial, fingerprint(self.initial)
        )
        self.reference.save(self.folder / NAME)

    def end(self, trainer: Any, update: int, made: bool) -> None:
        if not self.due(update):
            return
        self.activations.detach()
        if made:
            self._values |= self._after_the_step()
            self._write(trainer, update)
        self._step, self._before, self._values = None, None, {}

    # What is measured

    def _after_the_step(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.wants(*FORWARD, BACKWARD):
            found |= self.activations.values()
        if self.wants("parameter_update_ratio") and self._step is not None:
            found |= self._step.ratios(self.stacks)
        if self.probe is not None:
            found |= self._probed(self.probe)
        if self.bound is not None and self._step is not None:
            if self.reference is not None and self.reference.weights:
                found["update_bound"] = self.bound.measure(self.reference.weights)
            if self.wants("step_bound"):
                before = [self._step.before[weight] for weight in self.bound.weights]
                found["step_bound"] = self.bound.measure(before)
        return found

    def _probed(self, probe: Probe) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.wants("model_update", "step_update"):
            features = probe.features(self.model)
            if self.wants("model_update") and self.reference is not None:
                found["model_update"] = distance(features, self.reference.features).item()
            if self._before is not None:
                found["step_update"] = distance(features, self._before).item()
        if self.wants("attention_entropy"):
            found |= probe.attention_entropy(self.model, self.stacks)
        return found

    def _write(self, trainer: Any, update: int) -> None:
        meters = {name: metrics.get_meter("default", name) for name in _LOGGED}
        record: records.Record = {"update": update}
        record |= {name: float(meter.val) for name, meter in meters.items() if meter is not None}
        record |= {"lr": self._lr, "values": self._values}
        records.append(self.file, record)
        self._events.write(update, self._values)
        for name, value in highlights(self._values).items():
            metrics.log_scalar(name, value, weight=0, priority=950, round=5)


def highlights(values: dict[str, Any]) -> dict[str, float]:
    """The chosen few for fairseq's progress line: how far the model has moved, and whether
    gradients reach the bottom of the top stack.
    """
    chosen = {name: values.get(name) for name in ("model_update", "step_update")}
    sides = values.get("gradient_norm", {})
    layers = sides.get("decoder", sides.get("encoder", {})).get(LAYER)
    if layers:
        chosen |= {"gnorm_bottom": layers[0], "gnorm_top": layers[-1]}
    return {name: value for name, value in chosen.items() if value is not None}
