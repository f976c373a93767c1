"""`check` for everybody's models: is this module the DeepNorm that its authors say it is?

    from fairseq_deepnet.tools.checking.audit import check
    print(check(model, {"input_ids": tokens}, claims="deepnorm"))

Layers are found by the names of their linear maps: `STYLES` knows some houses, others come as a
mapping of the same form. Nothing else is read off names: where a LayerNorm stands, whatever it is
called, shows in what enters and leaves it. Measured is what the paper prescribes, and no more: what
multiplies the residual, where LayerNorm stands, how weights and biases of the linear maps start.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from fairseq_deepnet.anatomy import Branch, Layer, Stack, kind_of
from fairseq_deepnet.schemes import (
    Depths,
    Place,
    ResidualScheme,
    Role,
    Side,
    Sublayer,
    scheme_class,
)
from fairseq_deepnet.tools.checking.compare import check_finite, check_inputs, check_residuals
from fairseq_deepnet.tools.checking.findings import Findings, StackFindings
from fairseq_deepnet.tools.checking.measure import (
    fit_residuals,
    recording,
    rms,
    run_on,
    same,
)
from fairseq_deepnet.tools.checking.weights import (
    DrawnMap,
    betas,
    check_biases,
    check_linears,
    shown_only,
    xavier_std,
)

Names = str | Sequence[str]
Layout = Mapping[str, Mapping[str, Names]]
"""Sublayer (self_attn, encoder_attn, ffn) -> part -> its path in a layer.

Parts are the linear maps q_proj, k_proj, v_proj, out_proj, or fc1 and fc2, and `branch`, the module
that the branch's input enters and its output leaves; without it these are fc1 and fc2. Of several
paths those count that a layer has: fc1 may be two maps, as in gated linear units. `PATH:0/3` is the
first of three equal blocks of rows of a map that holds several; of PATH with no module PATH_weight
and PATH_bias are taken. A sublayer that a layer does not have is passed over.
"""


def _attention(home: str, out: str, *qkv: str) -> dict[str, Names]:
    names = zip(("q_proj", "k_proj", "v_proj"), qkv, strict=True)
    parts = {role: f"{home}.{name}" for role, name in names}
    return {"branch": home, **parts, "out_proj": f"{home}.{out}"}


_QKV: Final = ("q_proj", "k_proj", "v_proj")
_BLOCKS: Final = ("in_proj:0/3", "in_proj:1/3", "in_proj:2/3")
_T5_FFN: Final = ("layer.1.DenseReluDense", "layer.2.DenseReluDense")

_FAIRSEQ: Final[Layout] = {
    "self_attn": _attention("self_attn", "out_proj", *_QKV),
    "encoder_attn": _attention("encoder_attn", "out_proj", *_QKV),
    "ffn": {"fc1": ("fc1", "ffn.fc1"), "fc2": ("fc2", "ffn.fc2")},
}

STYLES: Final[Mapping[str, Layout]] = {
    **dict.fromkeys(("fairseq", "torchscale", "bart", "marian"), _FAIRSEQ),
    "llama": {
        "self_attn": _attention("self_attn", "o_proj", *_QKV),
        "ffn": {
            "branch": "mlp",
            "fc1": ("mlp.gate_proj", "mlp.up_proj"),
            "fc2": "mlp.down_proj",
        },
    },
    "t5": {
        "self_attn": _attention("layer.0.SelfAttention", "o", "q", "k", "v"),
        "encoder_attn": _attention("layer.1.EncDecAttention", "o", "q", "k", "v"),
        "ffn": {
            "branch": _T5_FFN,
            "fc1": [f"{home}.{name}" for home in _T5_FFN for name in ("wi", "wi_0", "wi_1")],
            "fc2": [f"{home}.wo" for home in _T5_FFN],
        },
    },
    "torch": {
        "self_attn": _attention("self_attn", "out_proj", *_BLOCKS),
        "encoder_attn": _attention("multihead_attn", "out_proj", *_BLOCKS),
        "ffn": {"fc1": "linear1", "fc2": "linear2"},
    },
}
"""M2M-100, FSMT and others of Hugging Face have fairseq's names, too, Mistral, Qwen, Gemma and
others LLaMA's; "torch" is torch.nn.Transformer."""


def check(
    model: nn.Module,
    batch: Any,
    claims: str = "deepnorm",
    layers: str | Layout | None = None,
    trained: bool = False,
) -> Findings:
    """Measure a model of any house and compare it with a scheme; the model stays as it is.

    Args:
        model: with separate linear maps, or maps in equal blocks of rows.
        batch: arguments of its forward, without padding: a mapping, a tuple, or one tensor.
        claims: name of a residual scheme.
        layers: name of a style, or a `Layout`; None tries all styles.
        trained: whether weights have moved since they were drawn, and are not judged.

    Returns:
        what was found: `is_fine`, `faults`, and all of it as text by `print`.

    Raises:
        ValueError: for an unknown claim or style, and where no layers are found.
    """
    model, batch = copy.deepcopy(model).double().eval(), _as_double(batch)
    stacks = find_layers(model, layers)
    depths = Depths(*(sum(len(s.layers) for s in stacks if s.side is side) for side in Side))
    scheme = scheme_class(claims)(depths)
    sides = [StackFindings(s.side, scheme.name, len(s.layers)) for s in stacks]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = Findings(
        type(model).__name__, f"claims={claims!r} says", parameters, not trained, sides, [], [], []
    )
    found.faults += check_finite(model)
    for stack, side in zip(stacks, sides, strict=True):
        _check_weights(stack, side, scheme, found)
    streams = _follow_streams(model, stacks, batch)
    fits, _ = fit_residuals(model, stacks, batch, norms_beside_branches)
    for stack, side, layer_fits, stream in zip(stacks, sides, fits, streams, strict=True):
        found.faults += check_residuals(stack, side, layer_fits, scheme, not trained)
        calls, after = stream
        side.growth = rms(calls[0][0]), rms(calls[-1][1])
        side.norm += ", and after the stack" if after else ""
        if scheme.build_combination(stack.side, 1) is not None:
            found.faults += check_inputs(stack, scheme, calls)
    if parts := unmeasured(scheme, stacks[0].side):
        found.notes.append(f"{claims} is more than is measured here: {', '.join(parts)}")
    return found


def unmeasured(scheme: ResidualScheme, side: Side) -> list[str]:
    """Return what a scheme has besides residuals, norms and initial weights, in words."""
    place = Place(side, 0)
    before, after = scheme.build_ffn_transforms(place, 1)
    parts = {
        "what acts on the heads before out_proj": scheme.build_head_transform(
            place, Sublayer.SELF_ATTN, 1, 1
        ),
        "what acts before the activation": before,
        "what acts before fc2": after,
        "what follows the stack": scheme.build_output_transform(side, 1),
        "a LayerNorm after the embeddings": scheme.embedding_norm or None,
    }
    return [name for name, part in parts.items() if part is not None]


def find_layers(model: nn.Module, layers: str | Layout | None = None) -> list[Stack]:
    """Return the stacks of a model, encoder first; ValueError where there are none."""
    layouts: Sequence[Layout] = list(STYLES.values())
    if isinstance(layers, str):
        if layers not in STYLES:
            known = ", ".join(STYLES)
            raise ValueError(f"layers={layers!r} is no style; choose from {known}, or a mapping")
        layouts = [STYLES[layers]]
    elif layers is not None:
        layouts = [layers]
    for layout in layouts:
        stacks = []
        for name, module in model.named_modules():
            if not isinstance(module, nn.ModuleList) or not len(module):
                continue
            members = [find_branches(layer, layout) for layer in module]
            if all(members):
                side = _side(name, members[0])
                parts = [
                    Layer(f"{name}.{number}", layer, branches)
                    for number, (layer, branches) in enumerate(zip(module, members, strict=True))
                ]
                stacks.append(Stack(side, name, module, tuple(parts)))
        if len({stack.side for stack in stacks}) < len(stacks):
            names = ", ".join(stack.name for stack in stacks)
            raise ValueError(f"more than one stack of a side: {names}; check each by itself")
        if stacks:
            return sorted(stacks, key=lambda stack: list(Side).index(stack.side))
    raise ValueError(
        f"{type(model).__name__} has no list of layers with the names of"
        f" {', '.join(STYLES) if layers is None else 'this style'}; say where the linear maps are:"
        " layers={'self_attn': {'branch': ..., 'q_proj': ...}, 'ffn': {'fc1': ..., 'fc2': ...}}"
    )


@dataclasses.dataclass(frozen=True)
class _WideBranch(Branch):
    """A branch with all maps of each role, by the paths that they have."""

    maps: Mapping[str, tuple[Role, nn.Linear]] = dataclasses.field(default_factory=dict)


def find_branches(layer: nn.Module, layout: Layout) -> tuple[_WideBranch, ...]:
    """Return the branches of a layer; none where it is no layer of this layout."""
    branches = []
    for sublayer in Sublayer:
        parts = layout.get(sublayer.value)
        if parts is None:
            continue
        roles = (Role.FC1, Role.FC2) if sublayer is Sublayer.FFN else tuple(Role)[:4]
        maps: dict[str, tuple[Role, nn.Linear]] = {}
        for role in roles:
            for path in _paths(parts.get(role.value, ())):
                linear = linear_at(layer, path)
                if linear is not None:
                    maps[path] = role, linear
        linears = dict(reversed(maps.values()))
        if sublayer is Sublayer.ENCODER_ATTN and not maps:
            continue
        if len(linears) < len(roles):
            return ()
        homes = [home for path in _paths(parts.get("branch", ())) if (home := _at(layer, path))]
        if not homes:
            homes = [_at(layer, path) for path in maps]
        entry, leave = homes[0], homes[-1]
        branches.append(_WideBranch(sublayer, linears, entry, leave, None, maps))
    return tuple(branches)


def _paths(names: Names) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def _at(layer: nn.Module, path: str) -> Any:
    """Return what stands at a path of attributes; None where there is nothing."""
    found: Any = layer
    for part in path.split("."):
        known = found._modules if isinstance(found, nn.ModuleList) else None
        found = known.get(part) if known is not None else getattr(found, part, None)
        if found is None:
            return None
    return found


def linear_at(layer: nn.Module, path: str) -> nn.Linear | None:
    """Return the linear map at a path as one of torch's, in the same memory; None without one."""
    name, _, block = path.partition(":")
    module, prefix = _at(layer, name), ""
    if module is None:
        home, _, last = name.rpartition(".")
        module, prefix = _at(layer, home) if home else layer, f"{last}_"
    weight, bias = (getattr(module, f"{prefix}{part}", None) for part in ("weight", "bias"))
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    if type(module).__name__ == "Conv1D":  # GPT-2's, which keeps the transpose
        weight = weight.t()
    if block:
        number, count = map(int, block.split("/"))
        weight = weight.chunk(count)[number]
        bias = None if bias is None else bias.chunk(count)[number]
    linear = nn.Linear(weight.size(1), weight.size(0), bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach())
    return linear


def _side(name: str, branches: Sequence[Branch]) -> Side:
    crossed = any(branch.sublayer is Sublayer.ENCODER_ATTN for branch in branches)
    return Side.ENCODER if "encoder" in name.split(".") and not crossed else Side.DECODER


def _check_weights(
    stack: Stack, side: StackFindings, scheme: ResidualScheme, found: Findings
) -> None:
    """Add rows of the linear maps; where none has a bias, none is missed."""
    maps = []
    for index, layer in enumerate(stack.layers):
        for branch in layer.branches:
            assert isinstance(branch, _WideBranch)
            roles = [role for role, _ in branch.maps.values()]
            for path, (role, linear) in branch.maps.items():
                kind = kind_of(branch.sublayer, role)
                if roles.count(role) > 1:
                    kind += f" {path.rpartition('.')[2]}"
                gain = scheme.gain(Place(stack.side, index), branch.sublayer, role)
                maps.append(DrawnMap(kind, linear, gain * xavier_std(linear), 0.0))
    faults: list[Any] = []
    side.rows += check_linears(stack.side, maps, faults)
    biased = [drawn for drawn in maps if drawn.linear.bias is not None]
    side.rows += check_biases(stack.side, biased, scheme.bias, faults)
    side.beta, side.expected_beta = betas(side.rows)
    if found.judged:
        found.faults += faults
    else:
        side.rows, side.expected_beta = shown_only(side.rows), ""


def _as_double(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        return {name: _as_double(value) for name, value in batch.items()}
    return [_as_double(value) for value in batch] if isinstance(batch, tuple | list) else batch


def _follow_streams(
    model: nn.Module, stacks: Sequence[Stack], batch: Any
) -> list[tuple[list[list[Tensor]], bool]]:
    """Return what enters and leaves each stack's layers, and whether a norm follows the stack."""
    norms = [module for module in model.modules() if is_norm(module)]
    layers = [layer.module for stack in stacks for layer in stack.layers]
    with recording([*norms, *layers]) as calls, torch.no_grad():
        run_on(model, batch)
    found = []
    for stack in stacks:
        streams = [call[0] for layer in stack.layers if (call := calls[layer.module])]
        if len(streams) < len(stack.layers):
            raise ValueError(f"{stack.name}: its layers take no part in the forward pass")
        last = streams[-1][1]
        after = any(calls[norm] and same(calls[norm][0][0], last) for norm in norms)
        found.append((streams, after))
    return found


def is_norm(module: nn.Module) -> bool:
    """Return True if a module without parts is called a norm."""
    return "norm" in type(module).__name__.lower() and not any(module.children())


def norms_beside_branches(layer: Layer) -> list[nn.Module]:
    """Return the norms of a layer that are not within a branch."""
    within = {part for branch in layer.branches for part in branch.entry.modules()}
    return [part for part in layer.module.modules() if is_norm(part) and part not in within]
