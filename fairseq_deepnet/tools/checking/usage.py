"""Which parameters matter: gradients of a random batch, and what layers read and carry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Layer, Stack
from fairseq_deepnet.schemes import Place, Role
from fairseq_deepnet.tools.checking.behaviour import same
from fairseq_deepnet.tools.checking.claim import Claim
from fairseq_deepnet.tools.checking.findings import Fault
from fairseq_deepnet.tools.checking.mistakes import name_and_summary
from fairseq_deepnet.tools.checking.recording import first_tensor, recording_streams
from fairseq_deepnet.tools.checking.words import listed, plural, plural_of

SMALL: Final = 1e-2
"""What tensors of zeros are moved by, to see what is behind them."""


class Gradients:
    """One forward and backward pass of the model as it is, on a random batch and a random loss.

    Arguments:
        unused: parameters that have no gradient at all
        zero: parameters whose gradient is 0 everywhere
        finite: whether the output is
        streams: of each stack, inputs and outputs of its layers, [n, C] each
    """

    def __init__(self, model: nn.Module, stacks: Sequence[Stack], batch: dict[str, Tensor]) -> None:
        model.zero_grad(set_to_none=True)
        with recording_streams(stacks) as self.streams:
            output = first_tensor(model(**batch))
        self.finite = bool(torch.isfinite(output).all())
        (output * torch.randn_like(output)).sum().backward()
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.unused = [name for name, p in trained if p.grad is None]
        self.zero = [
            name
            for name, p in trained
            # softmax does not see what all keys have in common: their bias's gradient is 0
            if p.grad is not None and not p.grad.any() and not name.endswith(f"{Role.K_PROJ}.bias")
        ]
        model.zero_grad(set_to_none=True)


def check_use(
    model: nn.Module, stacks: Sequence[Stack], batch: dict[str, Tensor], before: Gradients
) -> tuple[list[str], list[Fault]]:
    """Notes and faults about parameters without a gradient.

    Schemes start some tensors at 0, and what is behind them has no gradient in the first update.
    So those tensors are moved a little, and only what still has none is at fault. The model is not
    the same afterwards.
    """
    faults = []
    if before.unused:
        found = f"{plural_of(len(before.unused), 'parameter')} never used in the forward pass"
        faults.append(Fault("unused", listed(before.unused), found, "used"))
    if not before.zero or not before.finite:
        return [], faults
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                fan = parameter.size(-1) if parameter.dim() > 1 else 1
                parameter.add_(torch.randn_like(parameter) * SMALL / fan**0.5)
    dead = Gradients(model, stacks, batch).zero
    later = len(set(before.zero) - set(dead))
    notes = []
    if later:
        notes.append(
            f"{later} parameter tensors get no gradient in the first update, because others start"
            " at 0; they do once those have moved"
        )
    if dead:
        found = f"{plural_of(len(dead), 'parameter')} with a gradient of 0"
        faults.append(
            Fault("unused", listed(dead), found, "a gradient", "nothing that is trained reads them")
        )
    return notes, faults


def check_chain(stack: Stack, claim: Claim, gradients: Gradients) -> list[Fault]:
    """Whether each layer reads the output of the one below, or a combination where that is due."""
    streams = gradients.streams[stack.name]
    if len(streams) < 2:
        return []
    plain = all(same(below[1], above[0]) for below, above in pairwise(streams))
    scheme = claim.schemes[stack.side]
    due = scheme.build_combination(stack.side, streams[0][0].size(-1)) is None
    if plain is due:
        return []
    found = "each reads the output of the one below" if plain else "read more than the layer below"
    expected = "the output of the one below" if due else "a combination of all outputs below"
    says = name_and_summary(scheme)
    return [Fault("wiring", f"{stack.side.value} layers", found, expected, "", says)]


def check_extras(stack: Stack, claim: Claim) -> list[Fault]:
    """Whether layers carry as many numbers besides linear maps and norms as the scheme says."""
    scheme = claim.schemes[stack.side]
    wrong: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, layer in enumerate(stack.layers):
        place = Place(stack.side, index)
        known = {id(p) for b in layer.branches for m in b.linears.values() for p in m.parameters()}
        for branch in layer.branches:
            known |= {id(p) for p in branch.norm.parameters()} if branch.norm is not None else set()
        extra = {id(p): p.numel() for p in layer.module.parameters() if id(p) not in known}
        found, due = sum(extra.values()), _extras_due(layer, claim, place)
        if found != due:
            wrong[found, due].append(index)
    return [
        Fault(
            "extras",
            f"{stack.side.value} {plural('layer', layers)}",
            f"{plural_of(found, 'number')} besides linear maps and LayerNorms",
            str(due),
            "",
            name_and_summary(scheme),
        )
        for (found, due), layers in wrong.items()
    ]


def _extras_due(layer: Layer, claim: Claim, place: Place) -> int:
    scheme = claim.schemes[place.side]
    branches = {branch.sublayer: branch for branch in layer.branches}
    ffn = layer.branches[-1].linears[Role.FC2]
    residuals = scheme.build_residuals(place, tuple(branches), ffn.out_features)
    parts: list[nn.Module | None] = [*residuals.values()]
    parts += scheme.build_ffn_transforms(place, ffn.in_features)
    for branch in layer.branches[:-1]:
        heads = getattr(branch.entry, "num_heads", 1)
        parts.append(scheme.build_head_transform(place, branch.sublayer, heads))
    unique = {id(p): p.numel() for part in parts if part is not None for p in part.parameters()}
    return sum(unique.values())
