"""Instruments: which quantities are measured, and when during an update. Add new ones here.

A quantity is a row in quantities.md and a name in one instrument's `quantities`; records, figures,
TensorBoard and documentation follow. Shapes: B = batch, T = length, C = channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from ..anatomy import Stack
from ..schemes import NormPlacement, ResidualScheme, Sublayer
from .bound import UpdateBound
from .gradients import GradientNorms, Slot, arrange
from .probe import ENTROPY, RANK, Origin, distance

Values = dict[str, Any]
"""Quantity -> its part of a record."""


@dataclass(frozen=True)
class Subject:
    """Context of a measurement."""

    model: nn.Module  # with initial weights
    stacks: tuple[Stack, ...]  # its stacks
    scheme: type[ResidualScheme]  # how its sublayers join
    wanted: frozenset[str]  # names of quantities
    origin: Origin  # what accumulated updates count from


class Instrument:
    """Base of the instruments, which measure quantities of an update that is due."""

    quantities: ClassVar[tuple[str, ...]]

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.before: Any = None  # what was kept before the step

    @classmethod
    def fits(cls, subject: Subject) -> bool:
        """Return True if a quantity of the instrument is wanted and the model has it."""
        return not subject.wanted.isdisjoint(cls.quantities)

    def arm(self) -> None:
        """Prepare, before the forward pass."""

    def before_step(self, gradient_scale: float) -> Values:
        """Measure parameters before the step, and gradients, which are divided by the scale."""
        return {}

    def after_step(self) -> Values:
        """Measure the new parameters."""
        return {}

    def disarm(self) -> None:
        """Clean up at the end of the update, also after errors: leave nothing in the model."""
        self.before = None


class Gradients(Instrument):
    """Gradient norms of parameters."""

    quantities = ("gradient_norm", "weight_gradient_norm", "embedding_gradient_norm")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.norms = GradientNorms(subject.model)

    def before_step(self, gradient_scale: float) -> Values:
        return self.norms.measure(gradient_scale)


class Activations(Instrument):
    """Norms of activations in training passes, and of gradients through LayerNorm.

    The model's forward receives src_tokens [B, S] and, in an encoder-decoder, prev_output_tokens
    [B, T], by name. Sums stay on the device until `after_step`.
    """

    quantities = ("branch_norm", "residual_norm", "layer_norm_input", "layer_norm_gradient")

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._handles: list[Any] = []

    def arm(self) -> None:
        self.disarm()
        self._slots: dict[Slot, None] = {}  # all that were hooked
        self._sums: dict[Slot, Tensor] = {}
        self._squares: dict[tuple[Slot, str], Tensor] = {}
        # LayerDrop leaves layers out, others in each micro-batch: every slot has its own tokens
        self._batches: dict[Slot, list[int]] = {}
        self._tokens: list[dict[str, Tensor]] = []
        self._masks: dict[str, Tensor] = {}
        self._forward = False
        model = self.subject.model
        self._handles.append(model.register_forward_pre_hook(self._enter, with_kwargs=True))
        self._handles.append(model.register_forward_hook(self._leave))
        for stack in self.subject.stacks:
            side = stack.side.value
            for index, layer in enumerate(stack.layers):
                for branch in layer.branches:
                    place = (side, branch.sublayer.value, index)
                    self._watch_output(branch.exit, ("branch_norm", *place))
                    first = branch.first(self.subject.scheme.norm)
                    self._watch_input(first, ("residual_norm", *place))
            for norm, part, index in layer_norms(stack):
                self._watch_input(norm, ("layer_norm_input", side, part, index))
                self._watch_gradients(norm, ("layer_norm_gradient", side, part, index))

    def disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # The model's own forward pass. Activation checkpointing runs layers again in backward, when
    # this pass is over: what they say then is passed over.

    def _enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._forward = model.training and torch.is_grad_enabled()
        if not self._forward:
            return
        source = kwargs["src_tokens"] if "src_tokens" in kwargs else args[0]
        for stack in self.subject.stacks:
            above = stack.side.value == "decoder" and "prev_output_tokens" in kwargs
            tokens = kwargs["prev_output_tokens"] if above else source
            self._masks[stack.side.value] = tokens.ne(padding_of(stack))
        self._tokens.append({side: mask.sum() for side, mask in self._masks.items()})

    def _leave(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._forward = False

    def _takes(self, slot: Slot) -> bool:
        """Register a slot; return False if its quantity is not wanted."""
        if slot[0] in self.subject.wanted:
            self._slots[slot] = None
        return slot in self._slots

    def _watch_input(self, module: nn.Module, slot: Slot) -> None:
        if self._takes(slot):
            hook = module.register_forward_pre_hook(lambda _, args: self._add(slot, args[0]))
            self._handles.append(hook)

    def _watch_output(self, module: nn.Module, slot: Slot) -> None:
        if self._takes(slot):
            hook = module.register_forward_hook(lambda _, args, output: self._add(slot, output))
            self._handles.append(hook)

    def _add(self, slot: Slot, x: Tensor) -> None:
        """Add the norms over C of the tokens of x [B, T, C], or [n, C] without padding."""
        if not self._forward:
            return
        norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.float32)
        if norms.dim() == 2:
            norms = torch.where(self._masks[slot[1]], norms, 0)
        total = norms.sum()
        self._sums[slot] = self._sums[slot] + total if slot in self._sums else total
        self._batches.setdefault(slot, []).append(len(self._tokens) - 1)

    def _watch_gradients(self, norm: nn.Module, slot: Slot) -> None:
        # Under Pre-LN the stream continues past the norm: an alias has only the norm's gradient.
        def enters(module: nn.Module, args: tuple[Any, ...]) -> Any:
            if not self._forward or not args[0].requires_grad:
                return None
            alias = args[0].view_as(args[0])
            alias.register_hook(lambda gradient: self._square(slot, "in", gradient))
            return (alias, *args[1:])

        def leaves(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if self._forward and output.requires_grad:
                output.register_hook(lambda gradient: self._square(slot, "out", gradient))

        if self._takes(slot):
            self._handles.append(norm.register_forward_pre_hook(enters))
            self._handles.append(norm.register_forward_hook(leaves))

    def _square(self, slot: Slot, end: str, gradient: Tensor) -> None:
        square = torch.linalg.vector_norm(gradient, dtype=torch.float32).double().square()
        key = (slot, end)
        self._squares[key] = self._squares[key] + square if key in self._squares else square

    def after_step(self) -> Values:
        """Return the means, with one transfer from the device."""
        means = {}
        for slot, total in self._sums.items():
            tokens = [self._tokens[batch][slot[1]] for batch in self._batches[slot]]
            means[slot] = total / torch.stack(tokens).sum()
        for (slot, end), square in self._squares.items():
            if end == "in" and (slot, "out") in self._squares:
                means[slot] = (square / self._squares[slot, "out"]).sqrt()
        if not means:
            return {}
        numbers = torch.stack([mean.double() for mean in means.values()]).tolist()
        return arrange(dict.fromkeys(self._slots) | dict(zip(means, numbers, strict=True)))


_OF_LAYERS: Final = {
    "self_attn_layer_norm": Sublayer.SELF_ATTN.value,
    "encoder_attn_layer_norm": Sublayer.ENCODER_ATTN.value,
    "final_layer_norm": Sublayer.FFN.value,
}
_OF_STACKS: Final = {
    "layernorm_embedding": "embedding",
    "combination": "combination",  # DLCL's, of every output that it combines
    "layer_norm": "final",
    "output_transform": "final",  # ResiDual's, of its second stream
}
"""LayerNorms of layers and stacks, with their parts."""


def layer_norms(stack: Stack) -> Iterator[tuple[nn.Module, str, int]]:
    """Yield a stack's LayerNorms with part and layer; those of some schemes by their path."""
    for index, layer in enumerate(stack.layers):
        for path, module in layer.module.named_modules():
            if isinstance(module, nn.LayerNorm):
                yield module, _OF_LAYERS.get(path, path), index
    for name, part in _OF_STACKS.items():
        owner = getattr(stack.module, name, None)
        modules = owner.modules() if isinstance(owner, nn.Module) else ()
        norms = [module for module in modules if isinstance(module, nn.LayerNorm)]
        for number, module in enumerate(norms):
            yield module, part, number


def padding_of(stack: Stack) -> int:
    """Return the index of the padding symbol, as fairseq's encoders and decoders store it."""
    index: Any = stack.module.padding_idx
    return int(index)


class OnProbe(Instrument):
    """Outputs for the probe: accumulated and single model update, entropy of attention, rank of
    tokens.
    """

    quantities = ("model_update", "step_update", ENTROPY, RANK)

    def before_step(self, gradient_scale: float) -> Values:
        probe = self.subject.origin.probe
        if "step_update" in self.subject.wanted and probe is not None:
            self.before = probe.features(self.subject.model)
        return {}

    def after_step(self) -> Values:
        subject, origin, probe = self.subject, self.subject.origin, self.subject.origin.probe
        if probe is None:
            return {}
        features, found = probe.features_and_layers(
            subject.model, subject.stacks, subject.scheme.norm, subject.wanted
        )
        if origin.features is not None:
            found["model_update"] = distance(features, origin.features).item()
        if self.before is not None:
            found["step_update"] = distance(features, self.before).item()
        return found


class Bounds(Instrument):
    """Bound of the theorems on the model update, for LN(alpha x + G(x))."""

    quantities = ("update_bound",)

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.bound = UpdateBound(subject.stacks)

    @classmethod
    def fits(cls, subject: Subject) -> bool:
        return subject.scheme.bounded and super().fits(subject)

    def after_step(self) -> Values:
        initial = self.subject.origin.weights
        return {"update_bound": self.bound.measure(initial)} if initial else {}


class Gains(Instrument):
    """Drift of LayerNorm gains, and their product over a Post-LN stack."""

    quantities = ("gain_drift", "gain_spread")

    @classmethod
    def fits(cls, subject: Subject) -> bool:
        return subject.scheme.norm is NormPlacement.POST and super().fits(subject)

    @torch.no_grad()
    def after_step(self) -> Values:
        found: Values = {name: {} for name in self.quantities}
        for stack in self.subject.stacks:
            norms = [
                branch.norm
                for layer in stack.layers
                for branch in layer.branches
                if isinstance(branch.norm, nn.LayerNorm)
            ]
            if norms:
                gains = torch.stack([norm.weight.float() for norm in norms])  # [N, C]
                side = stack.side.value
                found["gain_drift"][side] = (gains - 1).abs().mean().item()
                found["gain_spread"][side] = gains.abs().log().sum(dim=0).std().item()
        return found


INSTRUMENTS: Final[tuple[type[Instrument], ...]] = (
    Gradients,
    Activations,
    OnProbe,
    Bounds,
    Gains,
)
OF_SPLIT: Final = (*Gradients.quantities, *Activations.quantities)
"""Quantities that can be measured on a sharded model: rank 0, which measures, has neither complete
parameters nor a forward pass of its own.
"""
ON_PROBE: Final = (*OnProbe.quantities, "update_bound")
"""Quantities that need the origin: its probe, or theta_0."""
