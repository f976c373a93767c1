"""What measures which quantities, and at which moments of an update. The next metric goes here.

A new quantity needs a row in `quantities` and an instrument that names it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from ..anatomy import Stack
from ..schemes import NormPlacement
from .activations import BACKWARD, FORWARD, ActivationWatch
from .bound import UpdateBound
from .gradients import LAYER, GradientNorms, Slot, arrange
from .origin import Origin
from .probe import distance

OF_NORMS: Final = ("layer_norm_input", BACKWARD)
"""What is measured at LayerNorms."""
Values = dict[str, Any]
"""Quantity -> what a record holds of it."""


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Args:
        model: with initial weights.
        stacks: its stacks.
        placement: where LayerNorm stands in it.
        wanted: names of quantities.
        origin: what accumulated updates count from.
    """

    model: nn.Module
    stacks: tuple[Stack, ...]
    placement: NormPlacement
    wanted: frozenset[str]
    origin: Origin


class Instrument:
    """Measures some quantities of an update that is due."""

    quantities: ClassVar[tuple[str, ...]]

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @classmethod
    def fits(cls, subject: Subject) -> bool:
        """True if one of its quantities is wanted, and there is such a thing in the model."""
        return not subject.wanted.isdisjoint(cls.quantities)

    @classmethod
    def absent(cls, placement: NormPlacement, embedding_norm: bool) -> tuple[str, ...]:
        """Return those of its quantities that no model with such LayerNorms has."""
        return ()

    def arm(self) -> None:
        """Before the forward pass."""

    def before_step(self, gradient_scale: float) -> Values:
        """Measure gradients, which are times 1 / gradient_scale, and parameters before the step."""
        return {}

    def after_step(self) -> Values:
        """Measure the new parameters."""
        return {}

    def disarm(self) -> None:
        """At the end, whatever happened: leave nothing in the model."""


class Gradients(Instrument):
    """Norms of parameters' gradients."""

    quantities = ("gradient_norm", "weight_gradient_norm", "embedding_gradient_norm")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.norms = GradientNorms(subject.model)

    def before_step(self, gradient_scale: float) -> Values:
        return self.norms.measure(gradient_scale)


class Activations(Instrument):
    """Norms of what passes through the training's own forward and backward pass."""

    quantities = (*FORWARD, BACKWARD)

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        names = sorted(subject.wanted)
        self.watch = ActivationWatch(subject.model, subject.stacks, subject.placement, names)

    @classmethod
    def absent(cls, placement: NormPlacement, embedding_norm: bool) -> tuple[str, ...]:
        has_norm = embedding_norm or placement is not NormPlacement.NONE
        return () if has_norm else OF_NORMS

    def arm(self) -> None:
        self.watch.attach()

    def after_step(self) -> Values:
        return self.watch.values()

    def disarm(self) -> None:
        self.watch.detach()


class OnProbe(Instrument):
    """What the model makes of the probe: how far its output has moved, in all and in this update,
    and how spread its attention is.
    """

    quantities = ("model_update", "step_update", "attention_entropy")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._before: Tensor | None = None

    def before_step(self, gradient_scale: float) -> Values:
        probe = self.subject.origin.probe
        if "step_update" in self.subject.wanted and probe is not None:
            self._before = probe.features(self.subject.model)
        return {}

    def after_step(self) -> Values:
        subject = self.subject
        found: Values = {}
        origin, probe = subject.origin, subject.origin.probe
        if probe is None:
            return {}
        if "attention_entropy" in subject.wanted:
            features, found = probe.features_and_entropy(subject.model, subject.stacks)
        else:
            features = probe.features(subject.model)
        if origin.features is not None:
            found["model_update"] = distance(features, origin.features).item()
        if self._before is not None:
            found["step_update"] = distance(features, self._before).item()
        return found

    def disarm(self) -> None:
        self._before = None


class Step:
    """Copies of parameters, taken before the optimiser's step.

    With half precision the parameters are the model's, not the optimiser's copies in float32: a
    change that the model does not see does not count.

    Args:
        parameters: what to copy, on its device.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.before = {parameter: parameter.detach().clone() for parameter in parameters}

    @torch.no_grad()
    def ratios(self, stacks: Sequence[Stack]) -> dict[str, Any]:
        """Return |theta_i - theta_{i-1}| / |theta_{i-1}| of every layer."""
        found: dict[Slot, Tensor] = {}
        for stack in stacks:
            for index, layer in enumerate(stack.layers):
                now = [p.detach().float() for p in layer.module.parameters()]
                old = [self.before[p].float() for p in layer.module.parameters()]
                change = torch._foreach_norm(torch._foreach_sub(now, old))
                slot = ("parameter_update_ratio", stack.side.value, LAYER, index)
                found[slot] = _total(change) / _total(torch._foreach_norm(old))
        numbers = torch.stack(list(found.values())).tolist()
        return arrange(dict(zip(found, numbers, strict=True)))


def layer_parameters(stacks: Sequence[Stack]) -> list[nn.Parameter]:
    """Return the parameters of all layers, each once."""
    layers = [layer.module for stack in stacks for layer in stack.layers]
    return list(dict.fromkeys(p for layer in layers for p in layer.parameters()))


def _total(norms: Sequence[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(list(norms)))


class Bounds(Instrument):
    """The theorems' bounds on the model update; they are about LN(alpha x + G(x))."""

    quantities = ("update_bound", "step_bound")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.bound = UpdateBound(subject.stacks)
        self._step: Step | None = None

    @classmethod
    def fits(cls, subject: Subject) -> bool:
        return super().fits(subject) and cls.applies(subject.placement)

    @classmethod
    def absent(cls, placement: NormPlacement, embedding_norm: bool) -> tuple[str, ...]:
        return () if cls.applies(placement) else cls.quantities

    @staticmethod
    def applies(placement: NormPlacement) -> bool:
        """True if the theorems speak of such a model."""
        return placement is NormPlacement.POST

    def before_step(self, gradient_scale: float) -> Values:
        if "step_bound" in self.subject.wanted:
            self._step = Step(self.bound.weights)
        return {}

    def after_step(self) -> Values:
        found, initial = {}, self.subject.origin.weights
        if initial:
            found["update_bound"] = self.bound.measure(initial)
        if self._step is not None:
            found["step_bound"] = self.bound.measure(list(self._step.before.values()))
        return found

    def disarm(self) -> None:
        self._step = None


class ParameterUpdates(Instrument):
    """How large an update is beside the parameters."""

    quantities = ("parameter_update_ratio",)

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._step: Step | None = None

    def before_step(self, gradient_scale: float) -> Values:
        self._step = Step(layer_parameters(self.subject.stacks))
        return {}

    def after_step(self) -> Values:
        return {} if self._step is None else self._step.ratios(self.subject.stacks)

    def disarm(self) -> None:
        self._step = None


INSTRUMENTS: Final[tuple[type[Instrument], ...]] = (
    Gradients,
    Activations,
    OnProbe,
    Bounds,
    ParameterUpdates,
)
OF_SPLIT: Final = (*Gradients.quantities, *Activations.quantities)
"""What can be measured of a model whose parameters are split over processes: rank 0, which
measures, has neither all numbers of a parameter nor a forward pass of its own."""
ON_PROBE: Final = (*OnProbe.quantities, "update_bound")
"""What needs the origin: its probe, or theta_0."""


def absent(placement: NormPlacement, embedding_norm: bool) -> frozenset[str]:
    """Return the quantities that a model does not have.

    Args:
        placement: where its scheme puts LayerNorm.
        embedding_norm: whether LayerNorm follows its embeddings.
    """
    return frozenset(
        name for kind in INSTRUMENTS for name in kind.absent(placement, embedding_norm)
    )
