"""Tensors that lie split by rows over processes, brought to rank 0's host memory and back.

A bucket at a time, so that no process holds more of the whole than it is to keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET: Final = 2**26
"""Bytes that each process sends or receives at once."""


class Exchange:
    """Knows how torch splits a tensor: ceil(rows / processes) rows each, the last ones fewer.

    Args:
        group: of processes.
        device: on which its backend communicates.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group, self.device = group, device
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def gather(
        self, parts: Sequence[Tensor], shapes: Sequence[torch.Size]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the index of each tensor and the whole of it on the host; on rank 0 alone.

        Every process has to go through this to the end.

        Args:
            parts: this process's rows of each tensor.
            shapes: of the whole tensors.
        """
        for bucket in self._buckets(parts, shapes):
            kind = parts[bucket[0]].dtype
            sizes = [self._share(shapes[index]) for index in bucket]
            sent = torch.zeros(sum(sizes), dtype=kind, device=self.device)
            for place, index in zip(sent.split(sizes), bucket, strict=True):
                place[: parts[index].numel()].copy_(parts[index].reshape(-1))
            came = [torch.empty_like(sent) for _ in range(self.size)] if self.rank == 0 else None
            dist.gather(sent, came, group=self.group, group_dst=0)
            if came is None:
                continue
            for index, *rows in zip(bucket, *(one.split(sizes) for one in came), strict=True):
                whole = torch.cat([row.cpu() for row in rows])
                count = shapes[index].numel()
                # a copy, where there is padding: torch.save would write it
                whole = whole if whole.numel() == count else whole[:count].clone()
                yield index, whole.view(shapes[index])

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

    def _buckets(self, parts: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[list[int]]:
        """Return indices of tensors to exchange together: of one type, up to BUCKET bytes."""
        kinds = [part.dtype for part in parts]
        each = zip(kinds, shapes, strict=True)
        return buckets(kinds, [self._share(s) * kind.itemsize for kind, s in each], BUCKET)


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
