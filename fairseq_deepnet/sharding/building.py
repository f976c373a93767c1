"""Building a model's weights only on rank 0; the other processes receive their rows.

fairseq builds the whole model in fp32 in every process before a trainer can shard it: a node with
eight processes would need memory for eight models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from fairseq.distributed import utils as distributed
from torch import nn

from ..wrapping import wrap


@contextlib.contextmanager
def weights_on_rank_0(cfg: Any = None) -> Iterator[None]:
    """Build parameters without memory in processes other than rank 0; buffers are real.

    Their initialisation does not advance torch's generator, which is set to rank 0's state.

    Args:
        cfg: fairseq's config of distributed training, which would enable fairscale's wrapping.
    """
    group = distributed.get_data_parallel_group() if torch.distributed.is_initialized() else None
    if group is None or distributed.get_data_parallel_world_size() == 1:
        yield
        return
    with without_weights() if distributed.get_data_parallel_rank() else contextlib.nullcontext():
        yield
    state = distributed.broadcast_object(torch.get_rng_state(), 0, group)
    torch.set_rng_state(state)


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Build parameters on the meta device, each as soon as it is registered.

    Objects are kept, so that tied parameters stay tied. Parameters that cannot be changed stay
    real.
    """
    register = nn.Module.register_parameter

    @wrap(nn.Module, "register_parameter")
    def register_parameter(
        register: Any, self: nn.Module, name: str, param: nn.Parameter | None
    ) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:
            with contextlib.suppress(RuntimeError):
                _become(param, param.detach().to("meta"))

    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def give_memory(modules: Iterable[nn.Module]) -> None:
    """Allocate memory for meta parameters, without initialising it."""
    for module in modules:
        for param in module.parameters():
            if param.is_meta:
                _become(param, torch.empty_like(param, device="cpu"))


def _become(param: nn.Parameter, tensor: torch.Tensor) -> None:
    """Replace the tensor of a parameter."""
    other = nn.Parameter(tensor, param.requires_grad)
    vars(other).update(vars(param))
    torch.utils.swap_tensors(param, other)
