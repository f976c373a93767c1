"""Only rank 0 builds a model's weights; the others wait for their rows.

fairseq builds the whole model in fp32 in every process before a trainer can split it: eight
processes of a node would hold it eight times.
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
    """Let processes other than rank 0 build parameters without memory; buffers are real.

    Initialising them draws nothing from torch's generator, which is brought to rank 0's state.

    Args:
        cfg: fairseq's, of distributed training; here it would enable fairscale's wrapping.
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

    The object stays the same, so that tied ones stay tied; what cannot be changed stays real.
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
    """Give parameters that are without it memory, whatever stands there."""
    for module in modules:
        for param in module.parameters():
            if param.is_meta:
                _become(param, torch.empty_like(param, device="cpu"))


def _become(param: nn.Parameter, tensor: torch.Tensor) -> None:
    """Let a parameter hold another tensor."""
    other = nn.Parameter(tensor, param.requires_grad)
    vars(other).update(vars(param))
    torch.utils.swap_tensors(param, other)
