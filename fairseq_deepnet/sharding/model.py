"""Sharded model for fairseq's trainer, with weights that only rank 0 builds.

fairseq builds the full fp32 model in every process before a trainer can shard it, so a node with
eight processes would need memory for eight models. Here, processes other than rank 0 build
parameters without allocating memory and receive their rows of each parameter from rank 0.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard, distribute_tensor

from ..footprint.memory import unit_length

LAYERS: Final = "layers"
"""fairseq's attribute name for the list of a stack's layers."""


class ShardedModel(nn.Module):
    """Wrapper that shards a model in place and otherwise gives access to its attributes.

    Args:
        model: fp32 model on the host. Its parameters are equal in all processes, or are on the
            meta device in processes other than rank 0.
        unit_bytes: maximum size of a unit, i.e. of the layers that are gathered together.
        reshard: free each unit after its forward pass and gather it again for its backward pass.
            Otherwise parameters stay gathered for all micro-batches of an update, and full
            gradients are summed and reduced once.
        offload: store shards in host memory.

    Attributes:
        parameters_split: sharded parameters (DTensors) by name; tied parameters occur once.
        own: this process's rows by name, as plain tensors that share memory with the DTensors.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Any,
        device: torch.device,
        dtype: torch.dtype,
        unit_bytes: int,
        reshard: bool = True,
        offload: bool = False,
    ) -> None:
        super().__init__()
        self.module: Any = model
        self.group, self.device, self.rank = group, device, dist.get_rank(group)
        self.mesh = DeviceMesh.from_group(group, device.type)
        self.dtype, self.reshards = dtype, reshard
        self._stays_whole = False
        half = dtype is not torch.float32
        offloading = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        settings: dict[str, Any] = {
            "mesh": self.mesh,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=dtype if half else None,
                reduce_dtype=torch.float32 if half else None,
                cast_forward_inputs=False,  # dtypes are as in a model that is cast as a whole
            ),
            "offload_policy": offloading if offload else OffloadPolicy(),
        }
        cast_buffers(model, dtype, device)
        are_empty = torch.tensor(int(any(p.is_meta for p in model.parameters())), device=device)
        dist.all_reduce(are_empty, group=group)
        whole = [p.detach() for p in model.parameters()] if are_empty else []
        for unit in units(model, unit_bytes, dtype.itemsize):
            give_memory(unit)
            fully_shard(unit, reshard_after_forward=reshard, **settings)
        give_memory([model])
        fully_shard(model, **settings)
        self.parameters_split = dict(model.named_parameters())
        with torch.no_grad():
            self.own = {
                name: nn.Parameter(p.to_local(), requires_grad=p.requires_grad)  # type: ignore[attr-defined]
                for name, p in self.parameters_split.items()
            }
        self.shapes = {name: p.shape for name, p in self.parameters_split.items()}
        for tensor, own in zip(whole, self.own.values(), strict=bool(whole)):
            self.scatter(tensor, own.detach(), tensor.shape)
        self.gathered: Mapping[str, Any] | None = None
        self.to_load: Mapping[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def trained(self) -> list[nn.Parameter]:
        """Return the tensors for the optimiser, in the order of the plain model's parameters."""
        return [own for own in self.own.values() if own.requires_grad]

    def trained_shapes(self) -> list[torch.Size]:
        """Return the full shapes of the tensors that `trained` returns."""
        return [self.shapes[name] for name, own in self.own.items() if own.requires_grad]

    def whole(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """Return the full tensor in rank 0's host memory, and an empty tensor on other ranks.

        All processes call this method together, one tensor at a time, so that no device needs
        memory for two full tensors.

        Args:
            rows: this process's rows.
            shape: shape of the full tensor.
        """
        count = self.mesh.size()
        length = -(-shape[0] // count)  # the last processes may have fewer rows
        padded = torch.zeros(length, *shape[1:], dtype=rows.dtype, device=self.device)
        padded[: len(rows)] = rows
        tensor = padded.new_empty(0 if self.rank else length * count, *shape[1:])
        parts = None if self.rank else list(tensor.split(length))
        dist.gather(padded, parts, group=self.group, group_dst=0)
        return tensor[: shape[0]].to("cpu", copy=True)

    def scatter(self, whole: Tensor | None, rows: Tensor, shape: torch.Size) -> None:
        """Send each process its rows of rank 0's full tensor; all processes must take part."""
        sent = torch.empty(shape, dtype=rows.dtype, device=self.device)
        if self.rank == 0 and whole is not None:
            sent.copy_(whole.view(shape))
        rows.copy_(distribute_tensor(sent, self.mesh, [Shard(0)]).to_local())

    @torch.no_grad()
    def all_reduce_grads(self) -> None:
        """Set the optimiser's gradients, which the backward pass has already reduced."""
        for name, p in self.parameters_split.items():
            self.own[name].grad = None if p.grad is None else p.grad.to_local()  # type: ignore[attr-defined]
            p.grad = None

    @torch.no_grad()
    def measure_gradients(self) -> None:
        """Store each full gradient's norm as an attribute of its parameter, for observers.

        All processes call this method together, once per update.
        """
        grads = {p: self.own[name].grad for name, p in self.parameters_split.items()}
        norms: dict[Any, Tensor] = {}
        present = [(p, grad) for p, grad in grads.items() if grad is not None]
        if present:
            own = torch.stack(torch._foreach_norm([grad for _, grad in present]))
            squares = own.to(self.device, torch.float64).square()
            dist.all_reduce(squares, group=self.group)
            whole = squares.sqrt().float().unbind()
            norms = {p: norm for (p, _), norm in zip(present, whole, strict=True)}
        for p in grads:
            p.whole_gradient_norm = norms.get(p)  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context for a micro-batch that is not the last in its update.

        If units are freed after use, gradients are reduced and accumulated as shards, because full
        fp32 gradients would need more memory than was freed.
        """
        if self.reshards:
            yield
            return
        self._last_micro_batch(False)
        try:
            yield
        finally:
            self._last_micro_batch(True)

    def _last_micro_batch(self, last: bool) -> None:
        self.module.set_requires_gradient_sync(last)
        self.module.set_is_last_backward(last)
        self.module.set_reshard_after_backward(last)

    def stay_whole(self) -> None:
        """Keep parameters gathered after they are used.

        The number of beam-search steps depends on the sentences and differs between processes, so
        the processes cannot gather parameters together at each step.
        """
        if not self._stays_whole:
            self._stays_whole = True
            self.module.set_reshard_after_forward(False)

    def split_again(self) -> None:
        """Undo `stay_whole`."""
        if not self._stays_whole:
            return
        self._stays_whole = False
        self.free()
        for part in self._units():
            inner = part is not self.module
            part.set_reshard_after_forward(self.reshards and inner, recurse=False)

    def free(self) -> None:
        """Free gathered parameters in all processes.

        Otherwise `state_dict` would free them in one process, and only that process would gather
        them in the next pass.
        """
        for part in self._units():
            part.reshard()

    def _units(self) -> Iterator[FSDPModule]:
        return (part for part in self.module.modules() if isinstance(part, FSDPModule))

    def gather(self, keep_fp32: bool) -> list[Tensor]:
        """Gather all parameters on rank 0 for `state_dict`; all processes must take part.

        Args:
            keep_fp32: also return the trained parameters in fp32, in the order of `trained`. The
                checkpoint's model contains them rounded to the dtype of the computation.
        """
        gathered: dict[str, Tensor] = {}
        exact = []
        for name, own in self.own.items():
            whole = self.whole(own.detach(), self.shapes[name])
            if keep_fp32 and own.requires_grad:
                exact.append(whole)
            gathered[name] = whole if self.dtype is torch.float32 else whole.to(self.dtype).float()
        self.gathered = gathered if self.rank == 0 else None
        return exact

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """On rank 0, after `gather`, return the full model's state dict in fairseq's format."""
        assert self.gathered is not None
        gathered, self.gathered = self.gathered, None
        names = {id(p): name for name, p in self.parameters_split.items()}
        return {
            key: gathered[names[id(value)]] if id(value) in names else value
            for key, value in self.module.state_dict(keep_vars=True).items()
        }

    @torch.no_grad()
    def load_state_dict(  # type: ignore[override]
        self, state_dict: Any, strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> None:
        """Load parameters and buffers from rank 0's `to_load`; all processes must take part.

        fairseq's trainer passes an empty `state_dict`, which is ignored.

        Raises:
            RuntimeError: in every process, if names or shapes differ.
        """
        mine: dict[str, Any] = self.module.state_dict(keep_vars=True)
        loaded: Mapping[str, Any] = {}
        problem = ""
        if self.rank == 0:
            assert self.to_load is not None
            self.module.upgrade_state_dict(self.to_load)
            loaded = checkpoint_utils.prune_state_dict(self.to_load, model_cfg)
            problem = mismatch(mine, loaded, strict)
        problem = distributed.broadcast_object(problem, 0, self.group)
        if problem:
            raise RuntimeError(f"Error(s) in loading state_dict for the sharded model:{problem}")
        key_of = {id(value): key for key, value in mine.items()}
        keys = {name: key_of[id(p)] for name, p in self.parameters_split.items()}
        for name, own in self.own.items():
            self.scatter(loaded.get(keys[name]), own.detach(), self.shapes[name])
        split = set(map(id, self.parameters_split.values()))
        buffers = {key: loaded[key] for key in mine if id(mine[key]) not in split and key in loaded}
        buffers = distributed.broadcast_object(buffers, 0, self.group)
        # fairseq's load_state_dict would look for version keys, which are not in `buffers`
        nn.Module.load_state_dict(self.module, buffers, strict=False)
        self.to_load = None


def mismatch(mine: Mapping[str, Tensor], loaded: Mapping[str, Any], strict: bool) -> str:
    """Describe mismatched names and shapes in a checkpoint, as torch does."""
    lines = []
    if strict and mine.keys() != loaded.keys():
        missing, unexpected = sorted(mine.keys() - loaded), sorted(loaded.keys() - mine)
        lines.append(f"Missing key(s) in state_dict: {missing}; unexpected: {unexpected}.")
    for key, own in mine.items():
        if key in loaded and own.shape != loaded[key].shape:
            lines.append(f"size mismatch for {key}: {[*loaded[key].shape]}, here {[*own.shape]}.")
    return "".join(f"\n\t{line}" for line in lines)


def units(model: nn.Module, unit_bytes: int, element: int) -> Iterator[list[nn.Module]]:
    """Yield groups of layers to be gathered together, stack by stack, from the bottom up.

    `unit_bytes` is that of `unit_length`; `element` is the number of bytes per gathered element.
    """
    for stack in model.modules():
        layers = stack._modules.get(LAYERS)
        if not isinstance(layers, nn.ModuleList) or not layers:
            continue
        every = [*layers._modules.values()]  # iteration over LayerDrop's list would skip layers
        each = max(sum(p.numel() for p in layer.parameters()) for layer in every)
        segment = getattr(getattr(stack, "checkpointing", None), "every", 0)
        length = unit_length(each * element, segment, unit_bytes)
        for start in range(0, len(every), length):
            yield every[start : start + length]


def cast_buffers(model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Move buffers to a device and cast them to the model's dtype, as Module.to would."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                kind = dtype if buffer.is_floating_point() else buffer.dtype
                module._buffers[name] = buffer.to(device, kind)


@contextlib.contextmanager
def weights_on_rank_0(cfg: Any = None) -> Iterator[None]:
    """In processes other than rank 0, build parameters (not buffers) without allocating memory.

    Afterwards torch's random generator has rank 0's state in every process. fairseq passes `cfg`,
    which is ignored.
    """
    group = distributed.get_data_parallel_group() if dist.is_initialized() else None
    if group is None or distributed.get_data_parallel_world_size() == 1:
        yield
        return
    with without_weights() if distributed.get_data_parallel_rank() else contextlib.nullcontext():
        yield
    torch.set_rng_state(distributed.broadcast_object(torch.get_rng_state(), 0, group))


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Move each parameter to the meta device when a module registers it.

    Parameter objects stay the same, so tied parameters stay tied. Parameters that cannot be moved
    keep their memory.
    """
    module: Any = nn.Module
    tensor: Any = torch.Tensor
    register, cpu = module.register_parameter, tensor.cpu

    def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:
            with contextlib.suppress(RuntimeError):
                _become(param, param.detach().to("meta"))

    module.register_parameter = register_parameter
    # meta tensors have no copy on the CPU, where fairseq's init_bert_params draws weights
    tensor.cpu = lambda self, *args: self if self.is_meta else cpu(self, *args)
    try:
        yield
    finally:
        module.register_parameter, tensor.cpu = register, cpu


def give_memory(modules: Iterable[nn.Module]) -> None:
    """Allocate memory for meta parameters, without initialising it."""
    for module in modules:
        for param in module.parameters():
            if param.is_meta:
                _become(param, torch.empty_like(param, device="cpu"))


def _become(param: nn.Parameter, tensor: Tensor) -> None:
    """Replace a parameter's tensor."""
    other = nn.Parameter(tensor, param.requires_grad)
    vars(other).update(vars(param))
    torch.utils.swap_tensors(param, other)
