"""fairseq's trainer for a sharded model.

fairseq 0.12's own `fully_sharded` uses fairscale, which is no longer maintained. If `is_fsdp` is
true, fairseq's trainer imports fairscale, rejects --bf16, and asks the model for checkpoints. Here
`is_fsdp` is always false, so fairseq's trainer treats the model as it does with other backends, and
ShardedTrainer overrides the methods that have to differ.
"""

import atexit
import contextlib
import functools
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final

import fairseq.distributed
import torch
import torch.distributed as dist
from fairseq import optim, utils
from fairseq.distributed import DistributedTimeoutWrapper
from fairseq.distributed import utils as distributed
from fairseq.file_io import PathManager
from fairseq.modules import LayerDropModuleList
from fairseq.optim import FairseqOptimizer, lr_scheduler
from fairseq.optim.fp16_optimizer import FP16Optimizer
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from ..checkpoints import received_by
from ..compat import training_program
from ..errors import ConfigurationError
from ..footprint import FULLY_SHARDED, MEGABYTE
from ..optim.fused_adam import clipping_factor, gradient_norm
from ..optim.half_precision import WEIGHTS, ExactFP16Optimizer
from ..trainer import DeepNetTrainer
from . import optimizer_state
from .model import ShardedModel, weights_on_rank_0

logger = logging.getLogger(__name__)
torch.serialization.add_safe_globals([distributed._TensorPlaceholder])  # in fairseq's broadcasts

_ERRORS: Final[list[Exception]] = []
"""Errors after which this process must exit without waiting for others."""


def install() -> None:
    """Make fairseq-train build a ShardedTrainer, and build the model's weights only on rank 0."""
    DeepNetTrainer.of_sharded = ShardedTrainer
    modules: tuple[Any, ...] = (fairseq.distributed, training_program())
    for module in filter(None, modules):
        module.fsdp_enable_wrap = weights_on_rank_0


def end_at_once() -> None:
    """Make the process exit immediately after it reports an uncaught error.

    Otherwise Python waits for collectives that never complete, and the other processes wait too. In
    processes started by torch.multiprocessing.spawn, torch catches the error and Python shuts down.
    An exit handler then ends the process before Python destroys objects that wait for other
    processes.
    """
    if multiprocessing.parent_process() is not None:
        atexit.register(lambda: os._exit(1) if _ERRORS else None)
    previous = sys.excepthook
    if getattr(previous, "ends_at_once", False):
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        status: Any = 1
        try:
            previous(kind, error, traceback)
        except SystemExit as ended:
            status = ended.code
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status if isinstance(status, int) else 1)

    hook.ends_at_once = True  # type: ignore[attr-defined]
    sys.excepthook = hook


@contextlib.contextmanager
def noting_errors() -> Iterator[None]:
    """Record errors after which this process must not wait for others."""
    try:
        yield
    except FloatingPointError:
        raise  # all processes raise this error
    except Exception as error:
        _ERRORS.append(error)
        raise


def clip_gradients(
    params: Sequence[Tensor], max_norm: float, aggregate_norm_fn: Callable[[Tensor], Tensor]
) -> Tensor:
    """Clip gradients in place if `max_norm` is positive, and return their norm before clipping."""
    norm = aggregate_norm_fn(gradient_norm(params))
    if max_norm > 0:
        grads = [p.grad for p in params if p.grad is not None]
        torch._foreach_mul_(grads, clipping_factor(norm, max_norm))
    return norm


class InPlace(ExactFP16Optimizer):
    """fairseq's half-precision optimiser, with the model's own weights as fp32 master weights."""

    def _sync_fp16_grads_to_fp32(self) -> None:
        """Do nothing, as gradients are already in fp32."""

    def _sync_fp32_params_to_fp16(self) -> None:
        """Do nothing, as weights are cast when they are gathered."""

    def zero_grad(self) -> None:
        self.fp32_optimizer.zero_grad()
        if self.scaler is not None:
            self._multiply_factor = 1.0 / float(self.scaler.loss_scale)


# fairseq's trainer compares class names when it loads a checkpoint.
InPlace.__name__ = FP16Optimizer.__name__


class ShardedTrainer(DeepNetTrainer):
    """DeepNetTrainer for a ShardedModel.

    Attributes:
        offloads: value of --cpu-offload.
    """

    offloads: bool
    _state_to_load: Any = None
    _gathered_optim_state: Any
    is_fsdp = False
    use_distributed_wrapper = True
    should_save_checkpoint_on_current_rank = DeepNetTrainer.is_data_parallel_master
    always_call_state_dict_during_save_checkpoint = False

    def __init__(self, cfg: Any, *args: Any, **kwargs: Any) -> None:
        shared = cfg.distributed_training
        # the stock trainer would reject the option without fairscale
        self.offloads, shared.cpu_offload = bool(shared.cpu_offload), False
        try:
            super().__init__(cfg, *args, **kwargs)
        finally:
            shared.cpu_offload = self.offloads

    def refuse_options(self, cfg: Any, model: Any, criterion: Any) -> None:
        super().refuse_options(cfg, model, criterion)
        common = cfg.common
        dropped = any(isinstance(m, LayerDropModuleList) and m.p > 0 for m in model.modules())
        own_parameters = f"a criterion with parameters ({type(criterion).__name__})"
        refused = {
            "--memory-efficient-*": common.memory_efficient_fp16 or common.memory_efficient_bf16,
            "--encoder-layerdrop, --decoder-layerdrop": dropped,
            "--use-bmuf": cfg.optimization.use_bmuf,
            "--zero-sharding": cfg.distributed_training.zero_sharding != "none",
            own_parameters: utils.has_parameters(criterion),
        }
        for option, is_set in refused.items():
            if is_set:
                raise ConfigurationError(
                    f"{option} is not supported with --ddp-backend {FULLY_SHARDED}: leave it out,"
                    " or use --ddp-backend legacy_ddp"
                )

    def wrap_model(self) -> None:
        common, shared = self.cfg.common, self.cfg.distributed_training
        if not dist.is_initialized():  # fairseq starts a single process without a group
            dist.init_process_group(
                "nccl" if self.cuda else "gloo", store=HashStore(), rank=0, world_size=1
            )
        dtype = torch.float32
        if common.fp16 or common.bf16:
            # The stock trainer has rounded the weights, so training starts as with other backends.
            dtype = torch.float16 if common.fp16 else torch.bfloat16
            self._model.float()
        device = torch.device("cuda", torch.cuda.current_device()) if self.cuda else self.device
        self.sharded = ShardedModel(
            self._model,
            self.data_parallel_process_group,
            device,
            dtype,
            shared.bucket_cap_mb * MEGABYTE,
            reshard=not shared.no_reshard_after_forward,
            offload=self.offloads,
        )
        self._wrapped_model: Any = self.sharded
        if shared.heartbeat_timeout > 0:
            self._wrapped_model = DistributedTimeoutWrapper(self.sharded, shared.heartbeat_timeout)
        if self.data_parallel_world_size > 1:
            end_at_once()
        self._searches = bool(getattr(self.task.cfg, "eval_bleu", False))

    def _build_optimizer(self) -> None:
        common, params = self.cfg.common, self.sharded.trained()
        optimizer: Any = optim.build_optimizer(self.cfg.optimizer, params)
        if not optimizer.supports_flat_params:
            raise ConfigurationError(
                f"--optimizer {self.cfg.optimizer._name} needs whole matrices, which --ddp-backend"
                f" {FULLY_SHARDED} splits; use adam or fused_adam"
            )
        if common.fp16 or common.bf16:
            optimizer = InPlace(self.cfg, params, optimizer, params)
        if type(optimizer).clip_grad_norm is FairseqOptimizer.clip_grad_norm:
            # fairseq's version would move the norm of offloaded gradients to a GPU and fail
            optimizer.clip_grad_norm = functools.partial(clip_gradients, params)
        load = optimizer.load_state_dict

        def load_state_dict(state: Any, overrides: Any = None) -> None:
            load(optimizer_state.scatter(self.sharded, self._state_to_load), overrides)

        optimizer.load_state_dict = load_state_dict
        self._optimizer = optimizer
        self._lr_scheduler = lr_scheduler.build_lr_scheduler(self.cfg.lr_scheduler, optimizer)
        self._lr_scheduler.step_update(0)

    def zero_grad(self) -> None:
        super().zero_grad()
        for p in self.sharded.parameters_split.values():
            p.grad = None  # left by a failed pass

    def clip_grad_norm(self, clip_norm: float) -> Tensor:
        """Clip gradients by their norm over all processes, and return this norm."""
        self.sharded.measure_gradients()
        self.notify("gradients", self.get_num_updates() + 1)

        def of_all(norm: Tensor) -> Tensor:
            square = norm.to(self.device, torch.float64).square()
            dist.all_reduce(square, group=self.sharded.group)
            return square.sqrt().to(norm.device, norm.dtype)

        return self.optimizer.clip_grad_norm(clip_norm, aggregate_norm_fn=of_all)

    def train_step(self, samples: Sequence[Any], raise_oom: bool = False) -> Any:
        self.sharded.gathered = self._gathered_optim_state = None
        self.sharded.split_again()
        with noting_errors():
            return super().train_step(samples, raise_oom)

    def valid_step(self, sample: Any, raise_oom: bool = False) -> Any:
        if self._searches:
            self.sharded.stay_whole()
        with noting_errors():
            return super().valid_step(sample, raise_oom)

    def _log_oom(self, exc: Any) -> None:
        """Raise ConfigurationError, because other processes are waiting for this one."""
        super()._log_oom(exc)
        raise ConfigurationError(
            f"rank {self.data_parallel_rank} is out of memory, and a sharded model cannot skip a"
            " batch; lower --max-tokens, or checkpoint more activations"
        )

    def consolidate_optimizer(self) -> None:
        """Gather the model and the optimiser's state on rank 0 for the next checkpoint.

        Nothing is gathered if fairseq tries to save after an error in one process.
        """
        if _is_alone_with_error():
            return
        self.is_saving = True
        self.sharded.free()
        keep = not self.cfg.checkpoint.no_save_optimizer_state
        state = self.optimizer.state_dict() if keep else {}
        # fairseq's fp16 checkpoints store the optimiser's state as one row
        is_flat = bool(self.cfg.common.fp16 and not self.cfg.common.fp16_no_flatten_grads)
        self._gathered_optim_state = None
        with torch.no_grad(), noting_errors():
            exact = self.sharded.gather(keep_fp32=WEIGHTS in state)
            if keep:
                state = optimizer_state.gather(self.sharded, state, exact, is_flat)
                self._gathered_optim_state = state

    def save_checkpoint(self, filename: str, extra_state: Any) -> Any:
        if _is_alone_with_error():
            return None
        with noting_errors():
            return super().save_checkpoint(filename, extra_state)

    def before_reading(self, filename: str) -> None:
        """Wait for rank 0, which reads the checkpoint and then broadcasts it."""
        if self.data_parallel_rank and PathManager.isfile(filename):
            self.wait_for_checkpoint()

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint on rank 0, which sends the other processes their rows."""
        self.cfg.checkpoint.load_checkpoint_on_all_dp_ranks = False

        def receive(state: dict[str, Any]) -> dict[str, Any]:
            self.sharded.to_load, state["model"] = state["model"], {}
            state["cfg"] = state["args"] = None  # receivers' torch.load accepts only plain data
            self._state_to_load = state.get("last_optimizer_state")
            if self._state_to_load is not None:
                state["last_optimizer_state"] = {}  # makes fairseq call load_state_dict
            self.wait_for_checkpoint()
            return state

        try:
            with noting_errors(), received_by(receive):
                return super().load_checkpoint(filename, *args, **kwargs)
        finally:
            self.sharded.to_load = self._state_to_load = None


def _is_alone_with_error() -> bool:
    """Return True while this process handles an error that other processes have not raised."""
    error = sys.exception()
    return error is not None and not isinstance(error, FloatingPointError)
