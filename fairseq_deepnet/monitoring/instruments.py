"""Measurements of gradients, activations and LayerNorm gains during an update.

Shapes: B = batch, T = length, C = channels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import torch
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

from ..anatomy import Stack, find_stacks
from ..schemes import NormPlacement, Sublayer

LAYER: Final = "layer"
"""Name of the part that covers a whole layer."""
Slot = tuple[str, str, str, int]
"""What a number measures: its quantity, side, part, and layer (counted from 0)."""

GRADIENTS: Final = ("gradient_norm", "embedding_gradient_norm")
ACTIVATIONS: Final = ("branch_norm", "residual_norm", "layer_norm_input", "layer_norm_gradient")
GAINS: Final = ("gain_drift", "gain_spread")
ON_SHARDS: Final = (*GRADIENTS, *ACTIVATIONS)
"""Quantities that can be measured on a sharded model, of which no process has all parameters."""

_LAYER_PARTS: Final = {
    "self_attn_layer_norm": "self_attn",
    "encoder_attn_layer_norm": "encoder_attn",
    "final_layer_norm": "ffn",
}
_STACK_PARTS: Final = {
    "layernorm_embedding": "embedding",
    "combination": "combination",  # DLCL's LayerNorms of the outputs that it combines
    "layer_norm": "final",
    "output_transform": "final",  # ResiDual's LayerNorm of its second stream
}
"""Names of the parts of a layer and of a stack, by the attribute names of their LayerNorms."""


def arrange(values: dict[Slot, float | None]) -> dict[str, Any]:
    """Return lists of one number per layer, in dictionaries nested by quantity, side and part.

    If a slot has no part, its number replaces the dictionary of parts.
    """
    arranged: dict[str, Any] = {}
    for (quantity, side, part, layer), value in values.items():
        sides = arranged.setdefault(quantity, {})
        if not part:
            sides[side] = value
            continue
        row = sides.setdefault(side, {}).setdefault(part, [])
        row.extend([None] * (layer + 1 - len(row)))
        row[layer] = value
    return arranged


class GradientNorms:
    """L2 norms of a model's gradients, as defined in quantities.md.

    Args:
        model: model whose layers fairseq_deepnet.anatomy.find_stacks can find.
    """

    def __init__(self, model: nn.Module) -> None:
        self._slots: dict[Tensor, list[Slot]] = {}
        self._drops = any(isinstance(module, LayerDropModuleList) for module in model.modules())
        for stack in find_stacks(model):
            side = stack.side.value
            for index, layer in enumerate(stack.layers):
                for parameter in layer.module.parameters():
                    self._join(parameter, ("gradient_norm", side, LAYER, index))
                # ReZero's factor, one per layer, belongs to each of the layer's sublayers
                for name, parameter in layer.module.named_parameters(remove_duplicate=False):
                    inner = name.removeprefix("residuals.")
                    matches = (sublayer for sublayer in Sublayer if inner.startswith(sublayer))
                    sublayer = next(matches, Sublayer.FFN)
                    self._join(parameter, ("gradient_norm", side, sublayer.value, index))
            if stack.table is not None:
                self._join(stack.table.weight, ("embedding_gradient_norm", side, "", 0))

    def _join(self, parameter: Tensor, slot: Slot) -> None:
        self._slots.setdefault(parameter, []).append(slot)

    @torch.no_grad()
    def measure(self, scale: float = 1.0) -> dict[str, Any]:
        """Return the norms, nested by `arrange`, after a single transfer from the device.

        The norm is None for a layer that LayerDrop has skipped.

        Args:
            scale: factor by which every gradient is multiplied.
        """
        norms = norms_by_parameter(self._slots)
        if not norms:
            return {}
        sums = dict.fromkeys(slot for slots in self._slots.values() for slot in slots)
        squares = torch.stack([*norms.values()]).double().square().tolist()
        for parameter, square in zip(norms, squares, strict=True):
            for slot in self._slots[parameter]:
                sums[slot] = (sums[slot] or 0.0) + square
        if self._drops:  # legacy_ddp gives a skipped layer gradients of 0
            sums = {slot: x or None for slot, x in sums.items()}
        return arrange({slot: x if x is None else math.sqrt(x) * scale for slot, x in sums.items()})


def norms_by_parameter(parameters: Collection[Tensor]) -> dict[Tensor, Tensor]:
    """Return the L2 norm of each parameter's gradient, if it has one, in float32.

    sharding.ShardedModel stores the norm of a sharded parameter's full gradient as an attribute.
    """
    whole = {p: getattr(p, "whole_gradient_norm", None) for p in parameters}
    norms = {p: norm for p, norm in whole.items() if norm is not None}
    gradients = {p: p.grad for p in parameters if p.grad is not None}
    if gradients and not norms:
        values = torch._foreach_norm([*gradients.values()], 2, dtype=torch.float32)
        norms = dict(zip(gradients, values, strict=True))
    return norms


class Activations:
    """Norms of activations in training passes, and of gradients through LayerNorm.

    The model's forward method receives src_tokens [B, S], by name or as its first argument, and, in
    an encoder-decoder, prev_output_tokens [B, T] by name. Sums stay on the device until `collect`
    is called.

    Args:
        model: model whose forward passes are measured.
        stacks: the model's stacks.
        placement: position of LayerNorm in the model's scheme.
        quantities: names of the quantities to measure.
    """

    def __init__(
        self,
        model: nn.Module,
        stacks: Sequence[Stack],
        placement: NormPlacement,
        quantities: Collection[str],
    ) -> None:
        self.model, self.stacks, self.placement = model, stacks, placement
        self.quantities = quantities
        self._handles: list[Any] = []

    def arm(self) -> None:
        """Add the hooks; call this method before the forward pass."""
        self.disarm()
        # Numerator and denominator of each slot, or None if nothing was measured. Both are summed
        # over micro-batches, as LayerDrop skips different layers in each.
        self._sums: dict[Slot, Tensor | None] = {}
        self._masks: dict[str, Tensor] = {}  # by side: [B, T], True for tokens
        self._is_forward = False
        self._handles += [
            self.model.register_forward_pre_hook(self._enter, with_kwargs=True),
            self.model.register_forward_hook(self._leave),
        ]
        for stack in self.stacks:
            side = stack.side.value
            for index, layer in enumerate(stack.layers):
                for branch in layer.branches:
                    place = (side, branch.sublayer.value, index)
                    self._watch(("branch_norm", *place), branch.exit)
                    self._watch(("residual_norm", *place), branch.first(self.placement))
            for norm, part, index in layer_norms(stack):
                self._watch(("layer_norm_input", side, part, index), norm)
                self._watch(("layer_norm_gradient", side, part, index), norm)

    def disarm(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def collect(self) -> dict[str, Any]:
        """Return means and ratios, nested by `arrange`, after a single transfer from the device."""
        sums = {slot: pair for slot, pair in self._sums.items() if pair is not None}
        if not sums:
            return {}
        pairs = torch.stack([*sums.values()])
        values: dict[Slot, float | None] = dict.fromkeys(self._sums)
        for slot, ratio in zip(sums, (pairs[:, 0] / pairs[:, 1]).tolist(), strict=True):
            values[slot] = math.sqrt(ratio) if slot[0] == "layer_norm_gradient" else ratio
        return arrange(values)

    def _enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._is_forward = model.training and torch.is_grad_enabled()
        if not self._is_forward:
            return
        source = kwargs["src_tokens"] if "src_tokens" in kwargs else args[0]
        for stack in self.stacks:
            side = stack.side.value
            tokens = kwargs.get("prev_output_tokens", source) if side == "decoder" else source
            self._masks[side] = tokens.ne(padding_of(stack))

    def _leave(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        # activation checkpointing repeats layers in the backward pass, which is not measured
        self._is_forward = False

    def _watch(self, slot: Slot, module: nn.Module) -> None:
        """Add to a module the hooks that measure a slot's quantity."""
        if slot[0] not in self.quantities:
            return
        self._sums[slot] = None

        # In Pre-LN the stream bypasses the norm. An alias receives only the norm's gradient.
        def alias_input(module: nn.Module, args: tuple[Any, ...]) -> Any:
            if not self._is_forward or not args[0].requires_grad:
                return None
            alias = args[0].view_as(args[0])
            alias.register_hook(lambda gradient: self._add_square(slot, 0, gradient))
            return (alias, *args[1:])

        def measure(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if not self._is_forward:
                return
            if slot[0] != "layer_norm_gradient":
                self._add_norms(slot, output if slot[0] == "branch_norm" else args[0])
            elif args[0].requires_grad:
                output.register_hook(lambda gradient: self._add_square(slot, 1, gradient))

        self._handles.append(module.register_forward_hook(measure))
        if slot[0] == "layer_norm_gradient":
            self._handles.append(module.register_forward_pre_hook(alias_input))

    def _add_norms(self, slot: Slot, x: Tensor) -> None:
        """Add the norms of the token vectors in x: [B, T, C], or [..., n, C] without padding."""
        mask = self._masks[slot[1]]
        norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.float32)
        if norms.shape == mask.shape:
            norms = torch.where(mask, norms, 0)
        self._add(slot, torch.stack([norms.sum(), mask.sum().float()]).double())

    def _add_square(self, slot: Slot, end: int, gradient: Tensor) -> None:
        pair = gradient.new_zeros(2, dtype=torch.float64)
        pair[end] = torch.linalg.vector_norm(gradient, dtype=torch.float32).double().square()
        self._add(slot, pair)

    def _add(self, slot: Slot, pair: Tensor) -> None:
        total = self._sums[slot]
        self._sums[slot] = pair if total is None else total + pair


def layer_norms(stack: Stack) -> Iterator[tuple[nn.Module, str, int]]:
    """Yield each LayerNorm of a stack with the name of its part and its index in that part.

    If only some schemes have a LayerNorm, the name of its part is the LayerNorm's path in the
    layer.
    """
    for index, layer in enumerate(stack.layers):
        for path, module in layer.module.named_modules():
            if isinstance(module, nn.LayerNorm):
                yield module, _LAYER_PARTS.get(path, path), index
    for name, part in _STACK_PARTS.items():
        owner = getattr(stack.module, name, None)
        modules = owner.modules() if isinstance(owner, nn.Module) else ()
        norms = [module for module in modules if isinstance(module, nn.LayerNorm)]
        for number, module in enumerate(norms):
            yield module, part, number


def padding_of(stack: Stack) -> int:
    """Return the padding symbol's index."""
    index: Any = stack.module.padding_idx
    return int(index)


@torch.no_grad()
def measure_gains(stacks: Sequence[Stack]) -> dict[str, dict[str, float]]:
    """Return `gain_drift` and `gain_spread` for each side of a Post-LN model."""
    values: dict[str, dict[str, float]] = {name: {} for name in GAINS}
    for stack in stacks:
        branches = [branch for layer in stack.layers for branch in layer.branches]
        norms = [branch.norm for branch in branches if isinstance(branch.norm, nn.LayerNorm)]
        if norms:
            gains = torch.stack([norm.weight.float() for norm in norms])  # [N, C]
            side = stack.side.value
            values["gain_drift"][side] = (gains - 1).abs().mean().item()
            values["gain_spread"][side] = gains.abs().log().sum(dim=0).std().item()
    return values
