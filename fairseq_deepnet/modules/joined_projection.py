"""Weights laid out for decoding: query, key and value in one matrix product, columns first.

Shapes: R = rows, C = channels.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import MultiheadAttention


def projection(attention: MultiheadAttention) -> Callable[[Tensor], Tensor]:
    """Return a function that makes query, key and value of x: [R, C] -> [R, 3 C]."""
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = joined_part([one.weight for one in maps]) if are_plain(maps) else None
    if weight is None:
        return lambda x: torch.cat([one(x) for one in maps], dim=1)
    if attention.q_proj.bias is None:
        return lambda x: F.linear(x, weight)
    bias = torch.cat([one.bias.detach() for one in maps])
    return lambda x: F.linear(x, weight, bias)


def are_plain(maps: tuple[nn.Module, ...]) -> bool:
    """Return True if all are torch's Linear; quantised ones, say, have no such weights."""
    return all(type(one) is nn.Linear for one in maps)


def lay_out(layer: nn.Module) -> None:
    """Lay a layer's weights out as matrix products read them fastest.

    Parameters stay what they are, and only their places in memory change: those of q, k and v
    become parts of one tensor (`projection` finds them). Only for a model that will not be
    trained, because an optimiser may hold on to the old memory.
    """
    for module in layer.modules():
        if isinstance(module, MultiheadAttention):
            join_weights(module)
    for module in layer.modules():
        if not (type(module) is nn.Linear and module.weight.is_contiguous()):
            continue
        # MKL takes a tenth longer for rows first; other kernels have other tastes.
        if (module.weight.dtype, module.weight.device.type) == (torch.float32, "cpu"):
            module.weight.data = columns_first(module.weight.detach())


def columns_first(weight: Tensor) -> Tensor:
    """Return the same matrix [M, N], its columns one after another in memory."""
    return weight.t().contiguous().t()


def join_weights(attention: MultiheadAttention) -> None:
    """Let the transposed weights [C, C] of q, k and v be parts of one tensor [C, 3 C]."""
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    if not are_plain(maps) or len({one.in_features for one in maps}) > 1:
        return
    joined = columns_first(torch.cat([one.weight.detach() for one in maps]))
    for one, part in zip(maps, joined.chunk(3), strict=True):
        one.weight.data = part


def joined_part(parts: list[Tensor]) -> Tensor | None:
    """Return what `join_weights` joined, [3 C, C]; None if the parts do not lie so (any more)."""
    first, rows = parts[0], sum(part.size(0) for part in parts)
    place = first.storage_offset()
    for part in parts:
        if part.stride() != (1, rows) or part.storage_offset() != place:
            return None
        if part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
        place += part.size(0)
    return first.detach().as_strided((rows, first.size(1)), (1, rows))
