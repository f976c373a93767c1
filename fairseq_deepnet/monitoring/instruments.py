"""Measurements of activations and LayerNorm gains during an update.

Shapes: B = batch, T = length, C = channels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..anatomy import Stack
from ..schemes import NormPlacement
from .gradients import Slot, arrange

GRADIENTS: Final = ("gradient_norm", "embedding_gradient_norm")
ACTIVATIONS: Final = ("branch_norm", "residual_norm", "layer_norm_input", "layer_norm_gradient")
GAINS: Final = ("gain_drift", "gain_spread")
OF_SPLIT: Final = (*GRADIENTS, *ACTIVATIONS)
"""Quantities that can be measured on a sharded model, of which no process has all parameters."""

_OF_LAYERS: Final = {
    "self_attn_layer_norm": "self_attn",
    "encoder_attn_layer_norm": "encoder_attn",
    "final_layer_norm": "ffn",
}
_OF_STACKS: Final = {
    "layernorm_embedding": "embedding",
    "combination": "combination",  # DLCL's, of every output that it combines
    "layer_norm": "final",
    "output_transform": "final",  # ResiDual's, of its second stream
}
"""Parts by the attribute names of LayerNorms in layers and stacks."""


class Activations:
    """Norms of activations in training passes, and of gradients through LayerNorm.

    The model's forward receives src_tokens [B, S] and, in an encoder-decoder, prev_output_tokens
    [B, T], by name. Numbers stay on the device until `collect`.
    """

    def __init__(
        self,
        model: nn.Module,
        stacks: Sequence[Stack],
        placement: NormPlacement,
        wanted: Collection[str],
    ) -> None:
        self.model, self.stacks, self.placement, self.wanted = model, stacks, placement, wanted
        self._handles: list[Any] = []

    def arm(self) -> None:
        """Add the hooks before the forward pass."""
        self.disarm()
        # numerator and denominator of each slot, summed over micro-batches: LayerDrop leaves out
        # other layers in each. None: not measured
        self._sums: dict[Slot, Tensor | None] = {}
        self._masks: dict[str, Tensor] = {}  # by side: [B, T], true for tokens
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
        """Remove the hooks, also after an error."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def collect(self) -> dict[str, Any]:
        """Return means and ratios in the layout of records, with one transfer from the device."""
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
        # activation checkpointing runs layers again in backward, which does not count
        self._is_forward = False

    def _watch(self, slot: Slot, module: nn.Module) -> None:
        """Add the hooks of a slot."""
        if slot[0] not in self.wanted:
            return
        self._sums[slot] = None

        def add_input(module: nn.Module, args: tuple[Any, ...]) -> None:
            self._add_norms(slot, args[0])

        def add_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self._add_norms(slot, output)

        # Under Pre-LN the stream continues past the norm: an alias has only the norm's gradient.
        def alias_input(module: nn.Module, args: tuple[Any, ...]) -> Any:
            if not self._is_forward or not args[0].requires_grad:
                return None
            alias = args[0].view_as(args[0])
            alias.register_hook(lambda gradient: self._add_square(slot, 0, gradient))
            return (alias, *args[1:])

        def watch_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if self._is_forward and args[0].requires_grad:
                output.register_hook(lambda gradient: self._add_square(slot, 1, gradient))

        if slot[0] == "branch_norm":
            self._handles.append(module.register_forward_hook(add_output))
        elif slot[0] == "layer_norm_gradient":
            self._handles.append(module.register_forward_pre_hook(alias_input))
            self._handles.append(module.register_forward_hook(watch_output))
        else:
            self._handles.append(module.register_forward_pre_hook(add_input))

    def _add_norms(self, slot: Slot, x: Tensor) -> None:
        """Add the norms over C of the tokens of x [B, T, C], or [n, C] without padding."""
        if not self._is_forward:
            return
        mask = self._masks[slot[1]]
        norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.float32)
        if norms.dim() == 2:
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


@torch.no_grad()
def measure_gains(stacks: Sequence[Stack]) -> dict[str, dict[str, float]]:
    """Return the drift of a Post-LN model's LayerNorm gains, and their spread over channels."""
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
