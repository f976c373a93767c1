"""Norms of gradients by layer and sublayer, in one transfer from the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..anatomy import find_stacks
from ..schemes import Sublayer

LAYER: Final = "layer"
"""Name of the part that covers a whole layer."""

Slot = tuple[str, str, str, int]
"""Quantity, side, part, layer from 0."""


def sublayer_of(name: str) -> Sublayer:
    """Return the sublayer of a parameter, by the parameter's name within its layer."""
    inner = name.removeprefix("residuals.")
    return next((sublayer for sublayer in Sublayer if inner.startswith(sublayer)), Sublayer.FFN)


class GradientNorms:
    """L2 norms of a model's gradients, as quantities.md defines them.

    Args:
        model: model with layers as in fairseq_deepnet.anatomy.
    """

    def __init__(self, model: nn.Module) -> None:
        self.slots: dict[Slot, int] = {}
        self._members: dict[Tensor, list[int]] = {}
        for stack in find_stacks(model):
            side = stack.side.value
            for index, layer in enumerate(stack.layers):
                for parameter in layer.module.parameters():
                    self._join(parameter, ("gradient_norm", side, LAYER, index))
                # ReZero's one factor per layer belongs to each of its sublayers
                for name, parameter in layer.module.named_parameters(remove_duplicate=False):
                    slot = ("gradient_norm", side, sublayer_of(name).value, index)
                    self._join(parameter, slot)
            if stack.table is not None:
                self._join(stack.table.weight, ("embedding_gradient_norm", side, "", 0))

    def _join(self, parameter: Tensor, slot: Slot) -> None:
        number = self.slots.setdefault(slot, len(self.slots))
        self._members.setdefault(parameter, []).append(number)

    @torch.no_grad()
    def measure(self, scale: float = 1.0) -> dict[str, Any]:
        """Return the norms in the layout of records; None for a layer without gradients
        (LayerDrop).

        Args:
            scale: factor on every gradient.
        """
        norms = norms_by_parameter(self._members)
        if not norms:
            return {}
        squares = torch.stack([*norms.values()]).double().square()
        pairs = [(row, slot) for row, p in enumerate(norms) for slot in self._members[p]]
        rows, slots = zip(*pairs, strict=True)
        sums = squares.new_zeros(len(self.slots))
        sums.index_add_(0, torch.tensor(slots, device=squares.device), squares[list(rows)])
        values, present = (sums.sqrt() * scale).tolist(), set(slots)
        return arrange(
            {slot: values[n] if n in present else None for slot, n in self.slots.items()}
        )


def norms_by_parameter(parameters: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """Return the L2 norm of each existing gradient, in float32.

    For a sharded parameter this is the norm of the whole gradient, which sharding.ShardedModel has
    stored with it, as it needs a sum over processes.
    """
    norms, gradients = {}, {}
    for p in parameters:
        if hasattr(p, "whole_gradient_norm"):
            norms[p] = p.whole_gradient_norm
        elif p.grad is not None:
            gradients[p] = p.grad
    if gradients and not norms:
        values = torch._foreach_norm([*gradients.values()], 2, dtype=torch.float32)
        return dict(zip(gradients, values, strict=True))
    return {p: norm for p, norm in norms.items() if norm is not None}


def arrange(values: dict[Slot, float | None]) -> dict[str, Any]:
    """Return numbers by slot in the layout of records: quantity -> side -> part -> list over
    layers.

    Slots without a part are one number per side. Lists end at the highest layer.
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
