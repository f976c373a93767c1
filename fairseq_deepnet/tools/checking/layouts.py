"""Search for the layers of any torch module by the names of their linear maps.

LayerNorms need no names, because `measure` infers their positions from inputs and outputs.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor, nn

from fairseq_deepnet.anatomy import Branch, Layer, Stack, in_order, kind_of
from fairseq_deepnet.schemes import Role, Side, Sublayer

Names = str | Sequence[str]
Layout = Mapping[str, Mapping[str, Names]]
"""For each sublayer (self_attn, encoder_attn, ffn), the paths of its parts in a layer.

Parts are the linear maps q_proj, k_proj, v_proj and out_proj, or fc1 and fc2. The part `branch` is
the module that receives the branch's input and returns its output; by default, these are the first
and the last map. A part may have several paths, such as the two maps of a gated linear unit;
missing paths are ignored. `PATH:0/3` is the first third of a combined map's rows. If PATH is not a
module, the parameters PATH_weight and PATH_bias are used. Cross-attention may be missing.
"""


@dataclasses.dataclass(frozen=True)
class WideBranch(Branch):
    """A branch in which a role may have several linear maps.

    `maps` contains all linear maps of the branch, keyed by their names in reports.
    """

    maps: dict[str, tuple[Role, nn.Linear]]


def _attention(home: str, out: str, *qkv: str) -> dict[str, Names]:
    names = zip(("q_proj", "k_proj", "v_proj"), qkv, strict=True)
    parts = {role: f"{home}.{name}" for role, name in names}
    return {"branch": home, **parts, "out_proj": f"{home}.{out}"}


_QKV: Final = ("q_proj", "k_proj", "v_proj")
_BLOCKS: Final = ("in_proj:0/3", "in_proj:1/3", "in_proj:2/3")
_T5_FFN: Final = ("layer.1.DenseReluDense", "layer.2.DenseReluDense")

LAYOUTS: Final[Mapping[str, Layout]] = {
    "fairseq": {  # also torchscale, BART, Marian, M2M-100 and FSMT
        "self_attn": _attention("self_attn", "out_proj", *_QKV),
        "encoder_attn": _attention("encoder_attn", "out_proj", *_QKV),
        "ffn": {"fc1": ("fc1", "ffn.fc1"), "fc2": ("fc2", "ffn.fc2")},
    },
    "LLaMA": {  # also Mistral, Qwen and Gemma
        "self_attn": _attention("self_attn", "o_proj", *_QKV),
        "ffn": {"branch": "mlp", "fc1": ("mlp.gate_proj", "mlp.up_proj"), "fc2": "mlp.down_proj"},
    },
    "T5": {
        "self_attn": _attention("layer.0.SelfAttention", "o", "q", "k", "v"),
        "encoder_attn": _attention("layer.1.EncDecAttention", "o", "q", "k", "v"),
        "ffn": {
            "branch": _T5_FFN,
            "fc1": [f"{home}.{name}" for home in _T5_FFN for name in ("wi", "wi_0", "wi_1")],
            "fc2": [f"{home}.wo" for home in _T5_FFN],
        },
    },
    "torch.nn.Transformer": {
        "self_attn": _attention("self_attn", "out_proj", *_BLOCKS),
        "encoder_attn": _attention("multihead_attn", "out_proj", *_BLOCKS),
        "ffn": {"fc1": "linear1", "fc2": "linear2"},
    },
}


def find_layers(model: nn.Module, layout: Layout | None = None) -> list[Stack]:
    """Return a model's stacks, encoder first.

    Raises:
        ValueError: if no layers match `layout` (default: LAYOUTS), if a list beside them seems to
            contain layers with other names, or if a side has several stacks.
    """
    for name in (layout or {}).keys() - set(Sublayer):
        raise ValueError(f"layers: no sublayer {name!r}; choose from {', '.join(Sublayer)}")
    layouts, stacks = [*LAYOUTS.values()] if layout is None else [layout], []
    lists = {n: m for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    for name, module in lists.items():
        matches = ([find_branches(layer, each) for layer in module] for each in layouts)
        if branches := next(filter(all, matches), None):
            crossed = any(b.sublayer is Sublayer.ENCODER_ATTN for b in branches[0])
            is_encoder = "encoder" in name.split(".") and not crossed
            parts = tuple(
                Layer(f"{name}.{number}", layer, of_layer)
                for number, (layer, of_layer) in enumerate(zip(module, branches, strict=True))
            )
            side = Side.ENCODER if is_encoder else Side.DECODER
            stacks.append(Stack(side, name, module, parts))
    if stacks:
        for name, module in lists.items():
            ends = [(f"{name}.", f"{stack.name}.") for stack in stacks]
            apart = not any(a.startswith(b) or b.startswith(a) for a, b in ends)
            if apart and all(sum(p.dim() == 2 for p in m.parameters()) >= 4 for m in module):
                raise ValueError(f"{name}: layers with unknown names; specify them with layers=")
        return in_order(stacks)
    raise ValueError(
        f"{type(model).__name__} has no list of layers with the names of"
        f" {', '.join(LAYOUTS) if layout is None else 'this mapping'}; specify them:"
        " layers={'self_attn': {'branch': ..., 'q_proj': ...}, 'ffn': {'fc1': ..., 'fc2': ...}}"
    )


def find_branches(layer: nn.Module, layout: Layout) -> tuple[WideBranch, ...]:
    """Return the branches of a layer, or an empty tuple if the layer does not match the layout."""
    branches = []
    for sublayer in Sublayer:
        parts = {
            role: (paths,) if isinstance(paths, str) else paths
            for role, paths in layout.get(sublayer.value, {}).items()
        }
        roles = (Role.FC1, Role.FC2) if sublayer is Sublayer.FFN else tuple(Role)[:4]
        maps: dict[str, tuple[Role, nn.Linear]] = {}
        homes = [home for path in parts.get("branch", ()) if (home := _at(layer, path))]
        for role in roles:
            paths = parts.get(role.value, ())
            linears = {path: each for path in paths if (each := linear_at(layer, path))}
            for path, linear in linears.items():
                kind = kind_of(sublayer, role)
                kind += f" {path.rpartition('.')[2]}" if len(linears) > 1 else ""
                maps[kind] = role, linear
            if "branch" not in parts:
                homes += [_at(layer, path) for path in linears]
        first = dict(reversed(maps.values()))
        if sublayer is Sublayer.ENCODER_ATTN and not maps:
            continue
        if len(first) < len(roles) or not homes:
            return ()
        branches.append(WideBranch(sublayer, first, homes[0], homes[-1], None, maps))
    return tuple(branches)


def _at(layer: nn.Module, path: str) -> Any:
    """Return the module at a path of attributes, or None if it does not exist."""
    module: Any = layer
    for part in path.split("."):
        if isinstance(module, nn.ModuleList):
            module = module._modules.get(part)
        else:
            module = getattr(module, part, None)
    return module


def linear_at(layer: nn.Module, path: str) -> nn.Linear | None:
    """Return an nn.Linear that shares memory with the linear map at a path, or None."""
    name, _, block = path.partition(":")
    module, prefix = _at(layer, name), ""
    if module is None:
        home, _, last = name.rpartition(".")
        module, prefix = _at(layer, home) if home else layer, f"{last}_"
    weight, bias = (getattr(module, f"{prefix}{part}", None) for part in ("weight", "bias"))
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    if type(module).__name__ == "Conv1D":  # GPT-2's, which stores the transpose
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
