"""Norms of activations, and gradients through LayerNorm, by hooks on one update's passes.

Shapes: B = batch, T = length, C = channels. Sums stay on the device until `values` is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..anatomy import Layer, Stack
from ..schemes import NormPlacement, Sublayer
from .gradients import Slot, arrange

_STACK_NORMS: Final = {
    "layernorm_embedding": "embedding",
    "combination": "combination",  # DLCL's, of every output that it combines
    "layer_norm": "final",
    "output_transform": "final",  # ResiDual's, of its second stream
}
"""Where a stack has LayerNorms of its own, and which part they are."""
_NORMS: Final = {
    "self_attn_layer_norm": Sublayer.SELF_ATTN.value,
    "encoder_attn_layer_norm": Sublayer.ENCODER_ATTN.value,
    "final_layer_norm": Sublayer.FFN.value,
}
FORWARD: Final = ("branch_norm", "residual_norm", "layer_norm_input")
BACKWARD: Final = "layer_norm_gradient"


def layer_norms(stack: Stack) -> Iterator[tuple[nn.Module, str, int]]:
    """Yield a stack's LayerNorms with part and layer; those that only some schemes have (as
    NormFormer's) by their path in the layer.
    """
    for index, layer in enumerate(stack.layers):
        for path, module in layer.module.named_modules():
            if isinstance(module, nn.LayerNorm):
                yield module, _NORMS.get(path, path), index
    for name, part in _STACK_NORMS.items():
        owner = getattr(stack.module, name, None)
        if isinstance(owner, nn.Module):
            norms = [module for module in owner.modules() if isinstance(module, nn.LayerNorm)]
            for number, module in enumerate(norms):
                yield module, part, number


def padding_of(stack: Stack) -> int:
    """Return the padding symbol's index, as fairseq's encoders and decoders keep it."""
    index: Any = stack.module.padding_idx
    return int(index)


class ActivationWatch:
    """Collects what passes through a model in training mode, between `attach` and `detach`.

    Args:
        model: its forward takes src_tokens [B, S] and, with a decoder above an encoder,
            prev_output_tokens [B, T] by name.
        stacks: its stacks.
        placement: where LayerNorm stands.
        quantities: which of this module's are wanted.
    """

    def __init__(
        self,
        model: nn.Module,
        stacks: Sequence[Stack],
        placement: NormPlacement,
        quantities: Sequence[str],
    ) -> None:
        self.model, self.stacks, self.placement = model, stacks, placement
        self.wanted = frozenset(quantities)
        self._handles: list[Any] = []
        self._clear()

    def _clear(self) -> None:
        self._slots: dict[Slot, None] = {}  # all that were hooked
        self._sums: dict[Slot, Tensor] = {}
        self._squares: dict[tuple[Slot, str], Tensor] = {}
        # LayerDrop leaves layers out, others in each micro-batch: every slot has its own tokens
        self._batches: dict[Slot, list[int]] = {}
        self._tokens: list[dict[str, Tensor]] = []
        self._masks: dict[str, Tensor] = {}
        self._forward = False

    def attach(self) -> None:
        """Hook what is wanted; sums start at zero."""
        self.detach()
        self._clear()
        if not self.wanted.intersection((*FORWARD, BACKWARD)):
            return
        enter = self.model.register_forward_pre_hook(self._enter, with_kwargs=True)
        self._handles += [enter, self.model.register_forward_hook(self._leave)]
        for stack in self.stacks:
            for index, layer in enumerate(stack.layers):
                self._attach_branches(stack.side.value, index, layer)
            for norm, part, index in layer_norms(stack):
                self._attach_norm(norm, (stack.side.value, part, index))

    def detach(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _attach_branches(self, side: str, index: int, layer: Layer) -> None:
        for branch in layer.branches:
            place = (side, branch.sublayer.value, index)
            if "branch_norm" in self.wanted:
                hook = self._output_hook(("branch_norm", *place))
                self._handles.append(branch.exit.register_forward_hook(hook))
            if "residual_norm" in self.wanted:
                before = self.placement is NormPlacement.PRE and branch.norm is not None
                first = branch.norm if before and branch.norm is not None else branch.entry
                hook = self._input_hook(("residual_norm", *place))
                self._handles.append(first.register_forward_pre_hook(hook))

    def _attach_norm(self, norm: nn.Module, place: tuple[str, str, int]) -> None:
        if "layer_norm_input" in self.wanted:
            hook = self._input_hook(("layer_norm_input", *place))
            self._handles.append(norm.register_forward_pre_hook(hook))
        if BACKWARD in self.wanted:
            slot = (BACKWARD, *place)
            self._handles.append(norm.register_forward_pre_hook(self._alias_hook(slot)))
            self._handles.append(norm.register_forward_hook(self._result_hook(slot)))

    # The model's own forward pass. Activation checkpointing runs layers again in backward, when
    # this pass is over: what they say then is passed over.

    def _enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._forward = model.training and torch.is_grad_enabled()
        if not self._forward:
            return
        source = kwargs["src_tokens"] if "src_tokens" in kwargs else args[0]
        for stack in self.stacks:
            side = stack.side.value
            above = side == "decoder" and "prev_output_tokens" in kwargs
            tokens = kwargs["prev_output_tokens"] if above else source
            self._masks[side] = tokens.ne(padding_of(stack))
        self._tokens.append({side: mask.sum() for side, mask in self._masks.items()})

    def _leave(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._forward = False

    def _add(self, slot: Slot, x: Tensor) -> None:
        """Add the norms over C of the tokens of x [B, T, C], or [n, C] without padding."""
        norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.float32)
        if norms.dim() == 2:
            norms = torch.where(self._masks[slot[1]], norms, 0)
        total = norms.sum()
        self._sums[slot] = self._sums[slot] + total if slot in self._sums else total
        self._batches.setdefault(slot, []).append(len(self._tokens) - 1)

    def _tokens_of(self, slot: Slot) -> Tensor:
        return torch.stack([self._tokens[batch][slot[1]] for batch in self._batches[slot]]).sum()

    def _input_hook(self, slot: Slot) -> Callable[..., None]:
        self._slots[slot] = None

        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            if self._forward:
                self._add(slot, args[0])

        return hook

    def _output_hook(self, slot: Slot) -> Callable[..., None]:
        self._slots[slot] = None

        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if self._forward:
                self._add(slot, output)

        return hook

    def _alias_hook(self, slot: Slot) -> Callable[..., Any]:
        self._slots[slot] = None

        # Under Pre-LN the stream goes on past the norm: an alias has the norm's gradient alone.
        def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
            if not self._forward or not args[0].requires_grad:
                return None
            alias = args[0].view_as(args[0])
            alias.register_hook(self._gradient_hook(slot, "in"))
            return (alias, *args[1:])

        return hook

    def _result_hook(self, slot: Slot) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if self._forward and output.requires_grad:
                output.register_hook(self._gradient_hook(slot, "out"))

        return hook

    def _gradient_hook(self, slot: Slot, end: str) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            square = torch.linalg.vector_norm(gradient, dtype=torch.float32).double().square()
            key = (slot, end)
            self._squares[key] = self._squares[key] + square if key in self._squares else square

        return hook

    def values(self) -> dict[str, Any]:
        """Return what was collected, as records have it; one transfer from the device."""
        means = {slot: total / self._tokens_of(slot) for slot, total in self._sums.items()}
        for (slot, end), square in self._squares.items():
            if end == "in" and (slot, "out") in self._squares:
                means[slot] = (square / self._squares[slot, "out"]).sqrt()
        if not means:
            return {}
        numbers = torch.stack([mean.double() for mean in means.values()]).tolist()
        return arrange(dict.fromkeys(self._slots) | dict(zip(means, numbers, strict=True)))
