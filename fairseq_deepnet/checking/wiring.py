"""Which tensors are shared, copied, unused, broken, or out of the optimiser's reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from fairseq_deepnet.checking.anatomy import PROJECTIONS, TABLE, Layer, Stack
from fairseq_deepnet.checking.behaviour import first_tensor, recording_streams, same
from fairseq_deepnet.checking.claim import Claim
from fairseq_deepnet.checking.findings import Fault
from fairseq_deepnet.checking.weights import plural
from fairseq_deepnet.schemes import Place, Role

SHOWN: Final = 3
SMALL: Final = 1e-2
"""What tensors of zeros are moved by, to see what is behind them."""


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def check_finite(model: nn.Module) -> list[Fault]:
    """Parameters with NaN or infinity; these become 0, so that the rest can be measured."""
    faults = []
    for name, parameter in model.named_parameters():
        broken = ~torch.isfinite(parameter.detach())
        if broken.any():
            found = f"{int(broken.sum())} of {parameter.numel()} numbers are not finite"
            faults.append(Fault("finite", name, found, "numbers"))
            with torch.no_grad():
                parameter[broken] = 0.0
    return faults


def check_sharing(model: nn.Module, stacks: Sequence[Stack], claim: Claim) -> list[Fault]:
    """Tensors that stand in two places without being a tie of embeddings or the scheme's own."""
    places: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places[id(parameter)].append(name)
    allowed = shared_by_schemes(stacks, claim)
    shared = []
    for names in places.values():
        if len(names) < 2 or all(_is_end(name) for name in names):
            continue
        if not any(_within(layer, names) in allowed for stack in stacks for layer in stack.layers):
            shared.append(names)
    if not shared:
        return []
    found = f"one tensor in {len(shared[0])} places ({listed(shared[0])})"
    rest = f", and {len(shared) - 1} more such tensors" if len(shared) > 1 else ""
    return [Fault("sharing", shared[0][0], found + rest, "a tensor of its own")]


def _is_end(name: str) -> bool:
    parts = name.split(".")
    return len(parts) > 1 and parts[-2] in (TABLE, *PROJECTIONS)


def _within(layer: Layer, names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.removeprefix(f"{layer.name}.") for name in names)


def shared_by_schemes(stacks: Sequence[Stack], claim: Claim) -> set[frozenset[str]]:
    """Names within a layer of the residual parameters that the schemes share between sublayers."""
    found = set()
    for stack in stacks:
        branches = stack.layers[0].branches
        residuals = claim.schemes[stack.side].build_residuals(
            Place(stack.side, 0), tuple(branch.sublayer for branch in branches), 2
        )
        names: dict[int, list[str]] = defaultdict(list)
        for sublayer, residual in residuals.items():
            for name, parameter in residual.named_parameters():
                names[id(parameter)].append(f"residuals.{sublayer.value}.{name}")
        found |= {frozenset(group) for group in names.values() if len(group) > 1}
    return found


def check_copies(model: nn.Module) -> list[Fault]:
    """Different tensors with the same numbers, where numbers are random."""
    seen: dict[tuple[object, ...], list[tuple[str, Tensor]]] = defaultdict(list)
    pairs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        body = parameter.detach().flatten()
        if body.numel() < 2 or bool((body == body[0]).all()):
            continue
        key = (tuple(parameter.shape), *body[:4].tolist(), float(body.double().sum()))
        for other, tensor in seen[key]:
            if torch.equal(tensor, body):
                pairs[_owner(other), _owner(name)].append(name)
                break
        seen[key].append((name, body))
    return [
        Fault("copies", copy, f"a copy of {original} ({listed(names)})", "weights of its own")
        for (original, copy), names in pairs.items()
    ]


def _owner(name: str) -> str:
    """The layer that a parameter belongs to, or the parameter itself."""
    parts = name.split(".")
    if "layers" in parts[:-2]:
        return ".".join(parts[: parts.index("layers") + 2])
    return name


def check_reach(model: nn.Module) -> list[Fault]:
    """What the optimiser will not train: frozen parameters, tensors that are not registered."""
    faults = []
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    if frozen:
        text = f"{plural_of(len(frozen), 'parameter')} without requires_grad"
        faults.append(Fault("reach", listed(frozen), text, "trained by the optimiser"))
    registered = {id(parameter) for parameter in model.parameters()}
    hidden = []
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_"):
                continue
            for tensor in _leaves(value):
                if tensor.requires_grad and tensor.is_leaf and id(tensor) not in registered:
                    hidden.append(f"{name}.{attribute}")
    if hidden:
        names = list(dict.fromkeys(hidden))
        text = f"{plural_of(len(hidden), 'trainable tensor')} outside model.parameters()"
        cause = "a parameter or module kept in a plain list or attribute is not registered"
        faults.append(Fault("reach", listed(names), text, "registered with the model", cause))
    return faults


def _leaves(value: object) -> Iterable[Tensor]:
    """Tensors in an attribute: itself, in a list or dictionary, or in modules that those hold."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)


def plural_of(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
    says = f"{scheme.name}: {scheme.summary}"
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
            f"{scheme.name}: {scheme.summary}",
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
