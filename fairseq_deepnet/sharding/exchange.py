"""Tensors that lie split by rows over processes, brought to rank 0's host memory and back.

A bucket at a time, so that no process holds more of the whole than it is to keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ConfigurationError

BUCKET: Final = 2**26
"""Bytes that all processes together send or receive at once."""


class Exchange:
    """Knows how torch splits a tensor: ceil(rows / processes) rows each, the last ones fewer.

    Args:
        group: of processes.
        device: on which its backend communicates.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group, self.device = group, device
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def agree(self, what: str, problem: str) -> None:
        """Raise ConfigurationError in all processes where one has a problem."""
        found: list[str] = [""] * self.size
        dist.all_gather_object(found, problem, group=self.group)
        told = next((f"rank {rank}: {one}" for rank, one in enumerate(found) if one), "")
        if told:
            raise ConfigurationError(f"{what}: {told}")

    def gather(
        self,
        parts: Sequence[Tensor],
        shapes: Sequence[torch.Size],
        take: Callable[[int, Tensor], None],
    ) -> None:
        """Give `take` each tensor's index and the whole of it on the host, on rank 0 alone.

        Args:
            parts: this process's rows of each tensor.
            shapes: of the whole tensors.

        Raises:
            ConfigurationError: in all processes, after the last exchange, where one has failed.
        """
        together = self._buckets(parts, shapes)
        problem, lacking = "", "the whole of what is split was not gathered"
        try:
            room = max((self._bytes(parts, shapes, bucket) for bucket in together), default=0)
            buffers = [torch.empty(room, dtype=torch.uint8, device=self.device)]
            if self.rank == 0:
                buffers += [torch.empty_like(buffers[0]) for _ in range(self.size)]
        except RuntimeError as error:
            problem = describe(error)
        self.agree(lacking, problem)
        for bucket in together:
            sizes, kind = [self._share(shapes[index]) for index in bucket], parts[bucket[0]].dtype
            length = self._bytes(parts, shapes, bucket)
            sent, *came = (buffer[:length].view(kind) for buffer in buffers)
            sent.zero_()
            for place, index in zip(sent.split(sizes), bucket, strict=True):
                place[: parts[index].numel()].copy_(parts[index].reshape(-1))
            dist.gather(sent, came or None, group=self.group, group_dst=0)
            if problem or not came:
                continue
            try:
                for index, *rows in zip(bucket, *(one.split(sizes) for one in came), strict=True):
                    whole = torch.cat([row.cpu() for row in rows])
                    count = shapes[index].numel()
                    # a copy, where there is padding: torch.save would write it
                    whole = whole if whole.numel() == count else whole[:count].clone()
                    take(index, whole.view(shapes[index]))
            except Exception as error:  # the others are in the next exchange
                problem = describe(error)
        self.agree(lacking, problem)

    def scatter(
        self,
        whole: Callable[[int], Tensor],
        parts: Sequence[Tensor],
        shapes: Sequence[torch.Size],
    ) -> None:
        """Copy each process's rows of whole tensors into its parts.

        Args:
            whole: returns a tensor by its index; asked on rank 0 alone.
        """
        for bucket in self._buckets(parts, shapes):
            sizes = [self._share(shapes[index]) for index in bucket]
            came = torch.zeros(sum(sizes), dtype=parts[bucket[0]].dtype, device=self.device)
            sent = None
            if self.rank == 0:
                sent = [torch.zeros_like(came) for _ in range(self.size)]
                places = [one.split(sizes) for one in sent]
                for number, index in enumerate(bucket):
                    flat = whole(index).reshape(-1)
                    for place, rows in zip(places, flat.split(sizes[number] or 1), strict=False):
                        place[number][: rows.numel()].copy_(rows)
            dist.scatter(came, sent, group=self.group, group_src=0)
            for place, index in zip(came.split(sizes), bucket, strict=True):
                part = parts[index]
                part.copy_(place[: part.numel()].view_as(part))

    def _share(self, shape: torch.Size) -> int:
        """Return the most numbers of a tensor that a process holds."""
        return math.ceil(shape[0] / self.size) * shape[1:].numel()

    def _bytes(
        self, parts: Sequence[Tensor], shapes: Sequence[torch.Size], bucket: Sequence[int]
    ) -> int:
        """Return how many a process sends or receives with a bucket."""
        return sum(self._share(shapes[index]) * parts[index].dtype.itemsize for index in bucket)

    def _buckets(self, parts: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[list[int]]:
        """Return indices of tensors to exchange together: of one type, up to BUCKET bytes."""
        sizes = [self._bytes(parts, shapes, [index]) for index in range(len(parts))]
        return buckets([part.dtype for part in parts], sizes, BUCKET // self.size)


def describe(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def buckets(kinds: Sequence[Any], sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Return indices of things of one kind that come together: until they reach the limit."""
    alike: dict[Any, list[int]] = {}
    for index, kind in enumerate(kinds):
        alike.setdefault(kind, []).append(index)
    found: list[list[int]] = []
    for indices in alike.values():
        held = limit
        for index in indices:
            if held >= limit:
                found.append([])
                held = 0
            found[-1].append(index)
            held += sizes[index]
    return found
