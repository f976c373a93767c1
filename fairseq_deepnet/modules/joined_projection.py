"""Query, key and value of self-attention in one matrix product, while decoding.

Shapes: R = rows, C = channels.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import MultiheadAttention


def projection(attention: MultiheadAttention) -> Callable[[Tensor], Tensor]:
    """What makes query, key and value of x: [R, C] -> [R, 3 C]."""
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    if all(type(one) is nn.Linear for one in maps):
        weight = one_tensor([one.weight for one in maps])
        bias = None if maps[0].bias is None else one_tensor([one.bias for one in maps])
        if weight is not None and (bias is None) == (maps[0].bias is None):
            return lambda x: F.linear(x, weight, bias)
    return lambda x: torch.cat([one(x) for one in maps], dim=1)


def join_weights(attention: MultiheadAttention) -> None:
    """Lay the weights of q, k and v next to each other, so that one product computes all three.

    The three stay parameters of their own, each a part of one tensor. Only for a model that will
    not be trained: an optimiser may hold on to the old storage.
    """
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    if any(type(one) is not nn.Linear for one in maps):
        return
    for name in ("weight", "bias"):
        parts = [getattr(one, name) for one in maps]
        if parts[0] is not None:
            joined = torch.cat([part.detach() for part in parts])
            for part, piece in zip(parts, joined.chunk(3), strict=True):
                part.data = piece


def one_tensor(parts: list[Tensor]) -> Tensor | None:
    """Tensors that lie one after another in one storage, joined at their first dimension."""
    first = parts[0]
    storage = first.untyped_storage().data_ptr()
    address = first.data_ptr()
    for part in parts:
        if part.data_ptr() != address or part.untyped_storage().data_ptr() != storage:
            return None
        address += part.numel() * part.element_size()
    shape = (sum(part.size(0) for part in parts), *first.shape[1:])
    return first.detach().as_strided(shape, first.stride())
