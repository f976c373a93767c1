"""Memory layout for generation: weights of query, key and value in one column-major matrix.

Shapes: R = rows, C = channels.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import MultiheadAttention


def projection(attention: MultiheadAttention) -> Callable[[Tensor], Tensor]:
    """Return a function that projects x to query, key and value: [R, C] -> [R, 3 C]."""
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = joined_part([linear.weight for linear in maps]) if are_plain(maps) else None
    if weight is None:
        return lambda x: torch.cat([linear(x) for linear in maps], dim=1)
    if attention.q_proj.bias is None:
        return lambda x: F.linear(x, weight)
    bias = torch.cat([linear.bias.detach() for linear in maps])
    return lambda x: F.linear(x, weight, bias)


def are_plain(maps: tuple[nn.Module, ...]) -> bool:
    """Return True if all maps are plain nn.Linear (quantised maps store weights differently)."""
    return all(type(linear) is nn.Linear for linear in maps)


def lay_out(layer: nn.Module) -> None:
    """Rearrange a layer's weights in memory for fast matrix products; their values are unchanged.

    The weights of q, k and v become parts of one tensor, which `projection` uses. Call this
    function only after training, because an optimiser may still use the weights' old memory.
    """
    for module in layer.modules():
        if isinstance(module, MultiheadAttention):
            join_weights(module)
    for module in layer.modules():
        if not (type(module) is nn.Linear and module.weight.is_contiguous()):
            continue
        # MKL, unlike other libraries, takes a tenth longer for row-major weights.
        if (module.weight.dtype, module.weight.device.type) == (torch.float32, "cpu"):
            module.weight.data = columns_first(module.weight.detach())


def columns_first(weight: Tensor) -> Tensor:
    """Return the same matrix [M, N] in column-major order."""
    return weight.t().contiguous().t()


def join_weights(attention: MultiheadAttention) -> None:
    """Store the transposed weights [C, C] of q, k and v in one tensor [C, 3 C]."""
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    if not are_plain(maps) or len({linear.in_features for linear in maps}) > 1:
        return
    joined = columns_first(torch.cat([linear.weight.detach() for linear in maps]))
    for linear, part in zip(maps, joined.chunk(3), strict=True):
        linear.weight.data = part


def joined_part(parts: list[Tensor]) -> Tensor | None:
    """Return the matrix [3 C, C] built by `join_weights`; None if the parts are not joined."""
    first, rows = parts[0], sum(part.size(0) for part in parts)
    place = first.storage_offset()
    for part in parts:
        if part.stride() != (1, rows) or part.storage_offset() != place:
            return None
        if part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
        place += part.size(0)
    return first.detach().as_strided((rows, first.size(1)), (1, rows))
