"""Layers, branches, linear maps and LayerNorms of Transformer models, found by attribute name.

Models of this package, fairseq and torchscale use the same names. A stack has `layers`. A layer has
`self_attn`, possibly `encoder_attn`, `fc1` and `fc2`, and the LayerNorms `self_attn_layer_norm`,
`encoder_attn_layer_norm` and `final_layer_norm`. torchscale's `fc1` and `fc2` are parts of `ffn`.
"""

import dataclasses
from collections.abc import Sequence

from torch import nn

from .schemes import NormPlacement, Role, Side, Sublayer

ATTENTION_ROLES = (Role.Q_PROJ, Role.K_PROJ, Role.V_PROJ, Role.OUT_PROJ)


@dataclasses.dataclass(frozen=True)
class Branch:
    """Sublayer with its linear maps. `entry` receives the input, and `exit` returns the output.

    `norm` is the LayerNorm before or after the sublayer, or None.
    """

    sublayer: Sublayer
    linears: dict[Role, nn.Linear]
    entry: nn.Module
    exit: nn.Module
    norm: nn.Module | None

    def first(self, placement: NormPlacement) -> nn.Module:
        """Return the branch's first module, which receives the residual stream."""
        if placement is NormPlacement.PRE and self.norm is not None:
            return self.norm
        return self.entry


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer, with its branches in the order in which they are computed."""

    name: str
    module: nn.Module
    branches: tuple[Branch, ...]


@dataclasses.dataclass(frozen=True)
class Stack:
    """All layers of the encoder or the decoder. `name` is the path of `module` in the model."""

    side: Side
    name: str
    module: nn.Module
    layers: tuple[Layer, ...]

    @property
    def table(self) -> nn.Embedding | None:
        """The stack's token embeddings, or None."""
        table = getattr(self.module, "embed_tokens", None)
        return table if isinstance(table, nn.Embedding) else None


def find_stacks(model: nn.Module) -> list[Stack]:
    """Return a model's stacks, encoder first.

    Raises:
        ValueError: if the model has no stack, or more than one encoder or decoder.
    """
    stacks = []
    for name, module in model.named_modules():
        layers = getattr(module, "layers", None)
        if not isinstance(layers, nn.ModuleList) or not len(layers):
            continue
        # by key, because iteration over LayerDrop's list skips layers
        members = [(f"{name}.layers.{key}", layer) for key, layer in layers._modules.items()]
        if not all(layer is not None and hasattr(layer, "self_attn") for _, layer in members):
            continue
        side = Side.DECODER if "decoder" in name.split(".") else Side.ENCODER
        parts = tuple(Layer(path, layer, find_branches(layer)) for path, layer in members if layer)
        stacks.append(Stack(side, name, module, parts))
    if not stacks:
        raise ValueError("no Transformer layers were found in this model (`layers.N.self_attn`)")
    return in_order(stacks)


def in_order(stacks: Sequence[Stack]) -> list[Stack]:
    """Sort a model's stacks, encoder first; raise ValueError if a side has several."""
    if len({stack.side for stack in stacks}) < len(stacks):
        names = ", ".join(stack.name for stack in stacks)
        raise ValueError(f"several stacks of one side: {names}; at most one per side is supported")
    return sorted(stacks, key=lambda stack: list(Side).index(stack.side))


def find_branches(layer: nn.Module) -> tuple[Branch, ...]:
    """Return a layer's branches; raise ValueError if a linear map is missing."""
    branches = []
    for sublayer in (Sublayer.SELF_ATTN, Sublayer.ENCODER_ATTN):
        attention = getattr(layer, sublayer.value, None)
        if attention is None:
            continue
        linears = {role: _linear(attention, role) for role in ATTENTION_ROLES}
        norm = getattr(layer, f"{sublayer.value}_layer_norm", None)
        branches.append(Branch(sublayer, linears, attention, attention, norm))
    home = layer if hasattr(layer, Role.FC1.value) else getattr(layer, "ffn", layer)
    linears = {role: _linear(home, role) for role in (Role.FC1, Role.FC2)}
    norm = getattr(layer, "final_layer_norm", None)
    branches.append(Branch(Sublayer.FFN, linears, linears[Role.FC1], linears[Role.FC2], norm))
    return tuple(branches)


def _linear(home: nn.Module, role: Role) -> nn.Linear:
    linear = getattr(home, role.value, None)
    if not isinstance(linear, nn.Linear):
        raise ValueError(
            f"{type(home).__name__} has no linear map {role.value}; separate {', '.join(Role)} are"
            " required"
        )
    return linear


def kind_of(sublayer: Sublayer, role: Role) -> str:
    """Return fairseq's name for a linear map, such as `self_attn.q_proj` or `fc1`."""
    return role.value if sublayer is Sublayer.FFN else f"{sublayer.value}.{role.value}"
