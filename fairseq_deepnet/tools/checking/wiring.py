"""Which tensors are broken, shared, copied, or out of the optimiser's reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import PROJECTIONS, TABLE, Layer, Stack
from fairseq_deepnet.schemes import Place
from fairseq_deepnet.tools.checking.claim import Claim
from fairseq_deepnet.tools.checking.findings import Fault
from fairseq_deepnet.tools.checking.words import listed, plural_of


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
