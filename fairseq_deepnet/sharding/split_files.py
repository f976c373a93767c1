"""A checkpoint of many files: each process writes its rows, rank 0 a small file with all the rest.

- `NAME.pt` is written last, and whole. fairseq names it, copies it, prunes it and resumes from it.
  Under SPLIT it says in which folder the rows lie, and how long each file there is to be, with its
  checksum. Its `model` has buffers, and for each parameter the name under which its rows are.
- `split/update_N_1/` beside it holds fp32 weights and the optimiser's state, a file a process, in
  the format of torch.distributed.checkpoint. Several NAME.pt may mean the same folder: to copy a
  checkpoint is to copy the small file. What none of them means is removed when the next is written
  (`split_record.remove_unused_rows`).

A thousand layers have 60,000 tensors, and torch spends a record and its time on every piece of
each. So tensors with equally many rows lie side by side in blocks; torch splits these by rows too,
and puts them together for another number of processes.
"""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, Shard

from ..errors import ConfigurationError, describe_os_error
from .exchange import Exchange
from .split_record import checksum

BLOCK: Final = 2**28
"""Bytes of a block, all rows."""
MODEL: Final = "model"
"""Key of the weights among what is split; the others are those of the optimiser's state."""
BY_ROWS: Final = "split by rows"
"""Stands for a tensor of the optimiser's state that is split."""

Shapes = Mapping[str, torch.Size]


def blocks(names: Sequence[str], shapes: Shapes, size: int) -> list[list[str]]:
    """Return names of tensors that lie side by side: of equally many rows, up to `size` bytes."""
    alike: dict[int, list[str]] = {}
    for name in names:
        alike.setdefault(shapes[name][0], []).append(name)
    result: list[list[str]] = []
    for group in alike.values():
        room = 0
        for name in group:
            if room <= 0:
                result.append([])
                room = size
            result[-1].append(name)
            room -= 4 * shapes[name].numel()
    return result


def share_of(rows: int, size: int, rank: int) -> tuple[int, int]:
    """Return how many of a tensor's rows torch gives to a process of `size`, and the first."""
    count, first = Shard.local_shard_size_and_offset(rows, size, rank)
    return int(count), int(first)


class Block:
    """This process's rows of a block, put side by side only when torch writes them.

    Args:
        parts: this process's rows of each tensor.
        shapes: of the whole tensors.
    """

    def __init__(self, parts: list[Tensor], shapes: list[torch.Size], exchange: Exchange) -> None:
        self.parts, rows = parts, shapes[0][0]
        self.whole = torch.Size([rows, sum(shape[1:].numel() for shape in shapes)])
        count, first = share_of(rows, exchange.size, exchange.rank)
        self.offsets, self.mine = torch.Size([first, 0]), torch.Size([count, self.whole[1]])

    def joined(self) -> Tensor:
        return torch.cat([part.float().reshape(len(part), -1) for part in self.parts], dim=1)

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        """Tell torch's planner what this process has to write."""
        if not self.mine[0]:
            return []
        chunk = ChunkStorageMetadata(self.offsets, self.mine)
        data = TensorWriteData(chunk, TensorProperties(torch.float32), self.whole)
        index = MetadataIndex(name, self.offsets)
        return [WriteItem(index, WriteItemType.SHARD, tensor_data=data)]


class Planner(DefaultSavePlanner):
    """torch's plan of what each process writes, with blocks for tensors."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].joined()  # type: ignore[no-any-return]


class Writer(FileSystemWriter):
    """torch's writer, which tells a full disk as one, and the files not where they lay."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # torch's writer covers the file's own error with one of its own
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None

    def storage_meta(self) -> None:
        return None


class Reader(FileSystemReader):
    """torch's reader; what says where everything lies is read once, and runs no code."""

    known: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self.known is None:
            with (Path(self.path) / ".metadata").open("rb") as file:
                self.known = Harmless(file).load()
        return self.known  # type: ignore[return-value]


class Harmless(pickle.Unpickler):
    """Reads what torch pickles into `.metadata`, and nothing else."""

    KNOWN: Final = {
        ("torch", "Size"),
        ("torch", "float32"),
        ("torch.serialization", "_get_layout"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                *("ChunkStorageMetadata", "Metadata", "MetadataIndex", "TensorProperties"),
                *("TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
            )
        ),
    }

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it holds {module}.{name}")
        return super().find_class(module, name)


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """Turn what torch raises in all processes, over a fault in some, into one line."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as error:
        rank, (fault, _) = min(error.failures.items())
        reason = getattr(fault, "strerror", None) or next(iter(str(fault).splitlines()), "")
        raise ConfigurationError(
            f"{what}: rank {rank}: {reason or type(fault).__name__}"
        ) from error


def write(
    folder: Path, held: Mapping[str, Mapping[str, Tensor]], shapes: Shapes, exchange: Exchange
) -> dict[str, list[int]]:
    """Write this process's rows; all processes together. Return the files, for the small one.

    Args:
        folder: which rank 0 has made.
        held: key -> name -> rows of this process.
        shapes: of whole tensors, by name.

    Raises:
        ConfigurationError: in all processes, where one could not write.
    """
    lacks = "" if folder.is_dir() else "it is not there; all processes must share the save-dir"
    exchange.agree(f"{folder} was not written", lacks)
    state: dict[str, Any] = {}
    for key, parts in held.items():
        for number, names in enumerate(blocks([*parts], shapes, BLOCK)):
            mine, sizes = [parts[name] for name in names], [shapes[name] for name in names]
            state[f"{key}.{number}"] = Block(mine, sizes, exchange)
    with telling(f"{folder} was not written"):
        writer = Writer(folder)
        save(state, storage_writer=writer, planner=Planner(), process_group=exchange.group)
    mine_now: dict[str, list[int]] = {}
    try:
        written = [*folder.glob(f"__{exchange.rank}_*")]
        if not written and any(block.mine[0] for block in state.values()):
            raise FileNotFoundError
        written += [folder / ".metadata"] if exchange.rank == 0 else []
        mine_now = {path.name: [path.stat().st_size, checksum(path)] for path in written}
    except FileNotFoundError:
        lacks = "its files are gone again; has another training the same save-dir?"
    except OSError as error:
        lacks = describe_os_error(error)
    exchange.agree(f"{folder} was not written", lacks)
    found: list[Any] = [None] * exchange.size
    dist.all_gather_object(found, mine_now, group=exchange.group)
    return {name: what for files in found for name, what in files.items()}


class SplitFiles:
    """The rows of a split checkpoint.

    Args:
        record: what the small file has under SPLIT.
        folder: of the rows.
        exchange: with the other processes that read; None alone, where tensors are read whole.
    """

    def __init__(
        self, record: Mapping[str, Any], folder: Path, exchange: Exchange | None = None
    ) -> None:
        self.folder, self.exchange = folder, exchange
        self.shapes = {name: torch.Size(shape) for name, shape in record["shapes"].items()}
        self.trained: list[str] = record["trained"]
        self.block: int = record["block"]
        self.reader = Reader(folder)
        problem, what = "", f"{folder} was not read"
        try:
            self.reader.read_metadata()
        except (OSError, pickle.UnpicklingError, EOFError, ValueError) as error:
            problem = str(error)
        if exchange is not None:
            exchange.agree(what, problem)
        elif problem:
            raise ConfigurationError(f"{what}: {problem}")

    def stand_ins(self, model: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, str]]:
        """Return the small file's model with tensors of no memory for parameters, a tied one once;
        and the name under which the rows of each are, by the tensor's identity.
        """
        made = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        whole = {k: made[held] if isinstance(held, str) else held for k, held in model.items()}
        return whole, {id(tensor): name for name, tensor in made.items()}

    def read(self, key: str, names: Sequence[str], parts: Iterable[tuple[str, Tensor]]) -> None:
        """Copy rows into `parts`, a block at a time; all processes together.

        Args:
            names: of all that was saved under this key, in order.
            parts: names, and this process's rows of these; some may be left out.
        """
        wanted: dict[str, list[Tensor]] = {}
        for name, part in parts:
            wanted.setdefault(name, []).append(part)
        for number, block in enumerate(blocks(names, self.shapes, self.block)):
            widths = [self.shapes[name][1:].numel() for name in block]
            held = self._read(f"{key}.{number}", self.shapes[block[0]][0], sum(widths))
            for name, rows in zip(block, held.split(widths, dim=1), strict=True):
                for part in wanted.get(name, []):
                    part.copy_(rows.reshape(part.shape))

    def _read(self, name: str, rows: int, width: int) -> Tensor:
        """Return this process's rows of a block."""
        if self.exchange is None:
            whole = torch.empty(rows, width)
        else:
            count, _ = share_of(rows, self.exchange.size, self.exchange.rank)
            whole = self.exchange.split(torch.empty(count, width), torch.Size([rows, width]))
        with telling(f"{self.folder} was not read"):
            group = None if self.exchange is None else self.exchange.group
            planner = DefaultLoadPlanner(flatten_state_dict=False)
            load(
                {name: whole},
                storage_reader=self.reader,
                planner=planner,
                process_group=group,
                no_dist=group is None,
            )
        return whole.to_local() if isinstance(whole, DTensor) else whole
