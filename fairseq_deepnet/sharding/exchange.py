"""Gathering of row-sharded tensors in rank 0's host memory, and the reverse.

torch's DTensor moves one tensor at a time, so that no process holds more than one whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ..errors import ConfigurationError


class Exchange:
    """A process group in which each process holds some rows of every tensor.

    Args:
        group: the process group.
        device: device of its collectives.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group, self.device = group, device
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.mesh = DeviceMesh.from_group(group, device.type)

    def agree(self, what: str, problem: str) -> None:
        """Raise ConfigurationError in all processes if one has a problem."""
        problems: list[str] = [""] * self.size
        dist.all_gather_object(problems, problem, group=self.group)
        for rank, text in enumerate(problems):
            if text:
                raise ConfigurationError(f"{what}: rank {rank}: {text}")

    def split(self, rows: Tensor, shape: torch.Size) -> DTensor:
        """Return the DTensor of this shape for this process's rows."""
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            rows.to(self.device), self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )

    def gather(
        self,
        parts: Sequence[Tensor],
        shapes: Sequence[torch.Size],
        take: Callable[[int, Tensor], None],
    ) -> None:
        """Call `take` on rank 0 with each tensor's index and its whole value on the host.

        Args:
            parts: this process's rows of each tensor.
            shapes: shapes of the whole tensors.

        Raises:
            ConfigurationError: in all processes, after the last collective, if rank 0 has failed.
        """
        problem = ""
        for index, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            whole = self.split(part, shape).full_tensor()
            if self.rank or problem:
                continue
            try:
                # a copy: of one process it is the part itself, of several it may have padding
                take(index, whole.to("cpu").clone())
            except Exception as error:  # the others are in the next exchange
                problem = describe(error)
        self.agree("the whole of what is split was not gathered", problem)

    def scatter(
        self,
        whole: Callable[[int], Tensor],
        parts: Sequence[Tensor],
        shapes: Sequence[torch.Size],
    ) -> None:
        """Copy each process's rows of whole tensors into its parts.

        Args:
            whole: returns a tensor by index; called only on rank 0.
        """
        for index, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            sent = torch.empty(shape, dtype=part.dtype, device=self.device)
            if self.rank == 0:
                sent.copy_(whole(index).view(shape))
            part.copy_(distribute_tensor(sent, self.mesh, [Shard(0)]).to_local())


def describe(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
