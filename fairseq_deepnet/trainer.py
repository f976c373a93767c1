"""A fairseq trainer with observers, atomic checkpoints and bit-identical resuming.

With the plugin, fairseq-train uses DeepNetTrainer for every architecture.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import fairseq.checkpoint_utils
import fairseq.trainer
import torch
import torch.distributed as dist
from fairseq import utils
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from torch import Tensor

from . import ended, preemption
from .checkpoints import last_of, save_with_retries
from .compat import training_program, wrap
from .divergence import watch
from .errors import ConfigurationError
from .footprint import FULLY_SHARDED
from .monitoring.instruments import ON_SHARDS
from .monitoring.monitor import Monitor, monitored_quantities
from .monitoring.records import run_folder
from .observers import Observer, gather
from .optim.half_precision import improve
from .optim.schedule import misfits
from .save_dir import prepare_save_dir

logger = logging.getLogger(__name__)

PATIENCE: Final = "patience"
"""Key in a checkpoint's extra state for the counters of --patience."""
CHECKPOINT_TIMEOUT: Final = timedelta(hours=6)
"""Time limit for waiting while another process reads or writes a checkpoint. Other collectives time
out after 10 minutes (NCCL) or 30 minutes (gloo)."""
BAD_EPOCHS: Final = "num_bad_epochs"
"""Key in a saved schedule for a counter of reduce_lr_on_plateau that fairseq does not save."""


class DeepNetTrainer(fairseq.trainer.Trainer):
    """Trainer of fairseq-train. With --ddp-backend fully_sharded, instances are ShardedTrainers.

    Attributes:
        epoch_itr: iterator over the training data; None before the checkpoint is loaded.
        saved: number of updates of the newest checkpoint in --save-dir.
        is_updated: False after an attempt that ended without an update (an overflow in fp16).
        of_sharded: class for sharded models, set by sharding.trainer.
    """

    of_sharded: ClassVar[type[DeepNetTrainer] | None] = None

    def __new__(cls, cfg: Any, *args: Any, **kwargs: Any) -> DeepNetTrainer:
        is_sharded = cfg.distributed_training.ddp_backend == FULLY_SHARDED
        return super().__new__(cls.of_sharded if is_sharded and cls.of_sharded else cls)

    def __init__(
        self, cfg: Any, task: Any, model: Any, criterion: Any, quantizer: Any = None
    ) -> None:
        self.refuse_options(cfg, model, criterion)
        # fairseq would broadcast a pickled checkpoint, which torch refuses to load
        cfg.checkpoint.load_checkpoint_on_all_dp_ranks = True
        super().__init__(cfg, task, model, criterion, quantizer)
        self.epoch_itr: Any = None
        self.saved = self.filled = 0
        self.is_updated = True
        self.is_signalled: Any = False  # or a tensor on the device
        self.is_saving = False  # rank 0 may still be writing a checkpoint
        self.checkpoint_group: Any = None
        if self.data_parallel_world_size > 1:
            self.checkpoint_group = dist.new_group(backend="gloo", timeout=CHECKPOINT_TIMEOUT)
        self.wrap_model()
        self.observers = build_observers(self)
        follow_training_program()

    def refuse_options(self, cfg: Any, model: Any, criterion: Any) -> None:
        """Raise ConfigurationError for options that this trainer does not support."""
        common, data, metric = cfg.common, cfg.dataset, cfg.checkpoint.best_checkpoint_metric
        maximizes = cfg.checkpoint.maximize_best_checkpoint_metric
        # checkpoint_best.pt would be the worst checkpoint
        is_worst = maximizes if metric.endswith("loss") else metric == "bleu" and not maximizes
        use = "with" if maximizes else "without"
        on_train = not data.disable_validation and data.train_subset in data.valid_subset.split(",")
        refused = {
            "--amp: use --bf16 or --fp16": common.amp,
            "--store-ema: average checkpoints instead (scripts/average.sh)": cfg.ema.store_ema,
            f"--best-checkpoint-metric {metric} {use} --maximize-best-checkpoint-metric": is_worst,
            "--use-sharded-state": cfg.distributed_training.use_sharded_state,
            "--valid-subset with the training set: validation would use up its epoch": on_train,
            "--write-checkpoints-asynchronously": cfg.checkpoint.write_checkpoints_asynchronously,
        }
        for message, is_set in refused.items():
            if is_set:
                raise ConfigurationError(f"not supported: {message}")
        # with --cpu, fairseq puts the fp32 weights of --fp16 on a GPU, unless they are shards
        is_whole = cfg.distributed_training.ddp_backend != FULLY_SHARDED
        if is_whole and common.cpu and common.fp16 and not torch.cuda.device_count():
            raise ConfigurationError("--fp16 needs a GPU; on a CPU, use --bf16 or neither")
        is_half_on_gpu = torch.cuda.is_available() and (common.fp16 or common.bf16)
        if getattr(cfg.model, "varlen_attention", False) and not is_half_on_gpu:
            raise ConfigurationError(
                "--varlen-attention needs a GPU and half precision; add --bf16 (with train.sh,"
                " PRECISION=bf16), or leave it out"
            )

    def _build_optimizer(self) -> None:
        super()._build_optimizer()
        improve(self._optimizer)

    def wrap_model(self) -> None:
        """Do nothing; ShardedTrainer overrides this to shard the model before observers exist."""

    # Updates

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch; before the first update, warn if the schedule does not fit the run."""
        super().begin_epoch(epoch)
        schedule, limits = self.cfg.lr_scheduler, self.cfg.optimization
        if self.is_data_parallel_master and not self.get_num_updates():
            frequencies, of_epochs = limits.update_freq, 0
            with contextlib.suppress(NotImplementedError):  # streamed data have no length
                for number in range(limits.max_epoch):
                    frequency = frequencies[min(number, len(frequencies) - 1)]
                    of_epochs += math.ceil(len(self.epoch_itr) / frequency)
            length = min(filter(None, (limits.max_update, of_epochs)), default=0)
            for warning in misfits(getattr(schedule, "_name", None), schedule, length):
                logger.warning(warning)

    def train_step(self, samples: Sequence[Any], raise_oom: bool = False) -> Any:
        update = self.get_num_updates() + 1
        self.filled = sum(map(bool, samples))
        self.notify("begin", update, samples)
        try:
            return super().train_step(samples, raise_oom)
        except FloatingPointError as error:
            self.notify("failed", update, error)
            raise
        finally:
            self.is_updated = self.get_num_updates() == update
            self.notify("end", update, self.is_updated)

    def clip_grad_norm(self, clip_norm: float) -> Tensor:
        self.notify("gradients", self.get_num_updates() + 1)
        return super().clip_grad_norm(clip_norm)

    def valid_step(self, sample: Any, raise_oom: bool = False) -> Any:
        output = super().valid_step(sample, raise_oom)
        if self.preemption is not None:
            self.preemption.act()
        return output

    def _aggregate_logging_outputs(
        self, logging_outputs: Any, *stats: Any, ignore: bool = False
    ) -> tuple[Any, Any]:
        """Sum fairseq's statistics and the number of signalled processes in one collective call."""
        # fairseq would ignore the earlier batches of a process whose last batch is empty, but not
        # their gradients
        if ignore and len(logging_outputs) > self.filled > 0:
            logging_outputs, ignore = logging_outputs[: self.filled], False
            stats = (stats[0] + sum(log["sample_size"] for log in logging_outputs), *stats[1:])
        own = float(preemption.signalled() is not None)
        outputs, (*sums, count) = super()._aggregate_logging_outputs(
            logging_outputs, *stats, own, ignore=ignore
        )
        self.is_signalled = count > 0
        return outputs, sums

    def notify(self, event: str, *args: Any) -> None:
        """Notify all observers; detach any that raises an exception, which must not end the run."""
        for observer in tuple(self.observers):
            try:
                getattr(observer, event)(self, *args)
            except Exception:
                name = type(observer).__name__
                logger.warning("%s failed and is switched off", name, exc_info=True)
                self.observers.remove(observer)
                observer.detach()

    @property
    def preemption(self) -> preemption.Preemption | None:
        """The observer that ends the run after a signal, or None."""
        return next((o for o in self.observers if isinstance(o, preemption.Preemption)), None)

    # Data

    def get_train_iterator(
        self, epoch: int, load_dataset: bool = True, disable_iterator_cache: bool = False
    ) -> Any:
        """Return an iterator over the training data; a resumed run gets the same batches.

        If one iterator serves all epochs, unpatched fairseq seeds its batches with the epoch in
        which the process started, and data-loading workers keep the batch order of that epoch.
        """
        task, data = self.task, self.cfg.dataset
        if load_dataset:
            logger.info("loading train data for epoch %d", epoch)
            task.load_dataset(data.train_subset, epoch=epoch, combine=True, tpu=self.tpu)
        dataset = task.dataset(data.train_subset)
        if isinstance(task, TranslationMultiSimpleEpochTask):
            # with --sampling-method RoundRobin, fairseq would reuse the previous epoch's data
            task.dataset_to_epoch_iter.pop(dataset, None)
        rebuilt = disable_iterator_cache or data.update_epoch_batch_itr
        is_new = dataset not in task.dataset_to_epoch_iter
        serves_all_epochs = is_new and not rebuilt and task.can_reuse_epoch_itr(dataset)
        self.epoch_itr = super().get_train_iterator(
            1 if serves_all_epochs else epoch,
            load_dataset=False,
            disable_iterator_cache=disable_iterator_cache,
        )
        if serves_all_epochs:
            dataset.set_epoch(epoch)
            self.epoch_itr.epoch = epoch
            self.epoch_itr.persistent_workers = self.epoch_itr.reuse_dataloader = False
        return self.epoch_itr

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()
        plateau: Any = getattr(self.lr_scheduler, "lr_scheduler", None)
        if hasattr(plateau, BAD_EPOCHS):
            schedule = state["optimizer_history"][-1]["lr_scheduler_state"]
            schedule |= {BAD_EPOCHS: plateau.num_bad_epochs, "lr": self.lr_scheduler.cfg.lr[0]}
        return state

    def save_checkpoint(self, filename: str, extra_state: dict[str, Any]) -> str | None:
        """Atomically write a checkpoint with everything that a resumed run needs."""
        if not self.should_save_checkpoint_on_current_rank:
            return None
        extra = {**extra_state, PATIENCE: dict(_patience())}
        path = Path(filename).absolute()
        logger.info("Saving checkpoint to %s", path)
        state = utils.move_to_cpu(self.state_dict())
        state["extra_state"].update(extra)
        save_with_retries(state, path)
        logger.info("Finished saving checkpoint to %s", path)
        # fairseq's crash.pt has no iterator
        if "train_iterator" in extra and not self.cfg.checkpoint.no_save_optimizer_state:
            self.saved = self.get_num_updates()
        return str(path)

    def wait_for_checkpoint(self) -> None:
        """Wait until every process has finished reading or writing a checkpoint."""
        if self.checkpoint_group is not None:
            dist.barrier(group=self.checkpoint_group)

    def consolidate_optimizer(self) -> None:
        """Prepare a checkpoint in all processes; rank 0 writes it afterwards."""
        super().consolidate_optimizer()
        self.is_saving = True

    def save_now(self, filename: str) -> None:
        """Save the checkpoint that fairseq would write after the current update."""
        saver = fairseq.checkpoint_utils.save_checkpoint
        epoch_itr = self.epoch_itr
        extra = {"train_iterator": epoch_itr.state_dict(), "val_loss": None}
        if hasattr(self.task, "get_checkpoint_dict"):
            extra.update(self.task.get_checkpoint_dict())
        if hasattr(saver, "best"):
            extra["best"] = saver.best
        owed = {"epoch": epoch_itr.epoch, "end_of_epoch": epoch_itr.end_of_epoch()}
        extra[preemption.OWED] = owed  # the validation that the signal has prevented
        self.save_checkpoint(filename, extra)

    def load_checkpoint(
        self,
        filename: str,
        reset_optimizer: bool = False,
        reset_lr_scheduler: bool = False,
        optimizer_overrides: dict[str, Any] | None = None,
        reset_meters: bool = False,
    ) -> dict[str, Any] | None:
        """Load a checkpoint whose scheme, options, dictionaries and shapes match this run's.

        Optimiser options from the command line override those in the checkpoint.
        """
        from .models.other_scheme import refuse_other_scheme  # imports the registered models

        refuse_other_scheme(self, filename, reset_optimizer)
        self.before_reading(filename)
        try:
            extra: dict[str, Any] | None = super().load_checkpoint(
                filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters
            )
        except AssertionError as error:
            remedy = "please reset the optimizer (--reset-optimizer)"
            if remedy not in str(error):
                raise
            better = "keep --criterion, --optimizer and the precision (PRECISION, --bf16, --fp16)"
            raise ConfigurationError(f"{filename}: {error}".replace(remedy, better)) from error
        if len(set(gather(self, self.get_num_updates()))) > 1:  # waits for all processes
            raise ConfigurationError(f"{filename} differs between nodes; use shared storage")
        is_own = Path(filename) == last_of(self)
        trained = self._optim_history[-1].get("num_updates", 0) if extra else 0
        if is_own and not reset_optimizer and self.get_num_updates() < trained:
            # fairseq would train from update 0 again, even if the run is complete
            raise ConfigurationError(
                f"{filename} contains no optimiser state: --finetune-from-model starts a new run"
            )
        self.saved = self.get_num_updates() if is_own else 0
        if extra is not None:
            if not reset_optimizer:
                self._apply_options(optimizer_overrides or {})
            if not reset_lr_scheduler and self.get_num_updates():
                self._restore_schedule(extra)
        self.notify("loaded", self.get_num_updates())
        return extra

    def before_reading(self, filename: str) -> None:
        """Do nothing, because here every process reads the whole checkpoint."""

    def _apply_options(self, overrides: dict[str, Any]) -> None:
        """Apply options such as --adam-eps to the optimiser; the schedule applies --lr."""
        try:
            options = dict(self.optimizer.optimizer_config)
        except NotImplementedError:  # optimisers that fairseq composes from others
            return
        options.pop("lr", None)
        for group in self.optimizer.param_groups:
            group.update({k: v for k, v in (options | overrides).items() if k in group})

    def _restore_schedule(self, extra: dict[str, Any]) -> None:
        """Restore the schedule's last loss, and the bad epochs and rate of reduce_lr_on_plateau.

        At the end of an epoch, fairseq saves before it passes the validation loss to the schedule.
        """
        plateau: Any = getattr(self.lr_scheduler, "lr_scheduler", None)
        if hasattr(plateau, BAD_EPOCHS):
            schedule = self._optim_history[-1]["lr_scheduler_state"]
            plateau.num_bad_epochs = schedule.get(BAD_EPOCHS, 0)
            lr = self.lr_scheduler.cfg.lr[0]
            if self.lr_scheduler.warmup_end:  # other schedules, and warm-up, follow --lr
                self.optimizer.set_lr(self.get_lr() * (lr / schedule.get("lr", lr)))
        iterator, loss = extra["train_iterator"], extra.get("val_loss")
        if loss is not None and iterator.get("iterations_in_epoch") == 0:
            self.lr_step(iterator["epoch"] - 1, loss)

    def resume(self, load: Callable[..., tuple[Any, Any]], **options: Any) -> tuple[Any, Any]:
        """Load the newest checkpoint, and restore the state that fairseq's `load` omits."""
        cfg = self.cfg.checkpoint
        prepare_save_dir(self)
        is_finetuned = bool(cfg.finetune_from_model) and not last_of(self).exists()
        state, epoch_itr = load(cfg, self, **options)
        if self.is_data_parallel_master:
            ended.clear(run_folder(Path(cfg.save_dir)))
        if is_finetuned:
            self._previous_training_time = 0
        elif state is not None and not (cfg.reset_optimizer or cfg.reset_meters):
            _patience().update(state.get(PATIENCE, {}))
            if not cfg.reset_dataloader and preemption.OWED in state:
                self._validate_owed(state)
        if self._is_over():
            logger.info("no update remains")
            self.cfg.optimization.max_epoch = -1
        return state, epoch_itr

    def _validate_owed(self, state: dict[str, Any]) -> None:
        """Validate and save in place of fairseq, which a signal prevented from doing so."""
        program: Any = training_program()
        if program is None:
            return
        owed = state[preemption.OWED]
        is_over = owed["end_of_epoch"]
        epoch: Any = SimpleNamespace(  # the attributes that validate_and_save uses
            epoch=owed["epoch"],
            end_of_epoch=lambda: is_over,
            state_dict=lambda: state["train_iterator"],
        )
        subsets = self.cfg.dataset.valid_subset.split(",")
        losses, ends = program.validate_and_save(self.cfg, self, self.task, epoch, subsets, is_over)
        if is_over:
            self.lr_step(epoch.epoch, losses[0])
        if ends:  # fairseq checks only after an update
            self.cfg.optimization.max_epoch = -1

    def _is_over(self) -> bool:
        """Return True if no update remains; fairseq checks these limits only after an update."""
        limits, patience = self.cfg.optimization, self.cfg.checkpoint.patience
        return (
            0 < limits.max_update <= self.get_num_updates()
            or 0 < limits.stop_time_hours < self._previous_training_time / 3600
            or 0 < patience <= _patience().get("num_runs", 0)
        )


def _patience() -> dict[str, Any]:
    """Return the counters of --patience, which fairseq-train keeps as attributes of a function."""
    program = training_program()
    return vars(program.should_stop_early) if program else {}


def build_observers(trainer: DeepNetTrainer) -> list[Observer]:
    """Return the observers of a new trainer.

    Preemption works with every model. The monitor and the divergence watch are added only for our
    models, because they need these models' options.
    """
    observers: list[Observer] = []
    if hasattr(trainer.cfg.model, "residual_scheme"):
        observers += _build_instruments(trainer)
    if preemption.listen():
        # last, so that the other observers have written their records before the run ends
        observers.append(preemption.Preemption(trainer))
    return observers


def _build_instruments(trainer: DeepNetTrainer) -> list[Observer]:
    cfg, folder = trainer.cfg, run_folder(Path(trainer.cfg.checkpoint.save_dir))
    monitor = None
    quantities = monitored_quantities(cfg.model)
    if cfg.distributed_training.ddp_backend == FULLY_SHARDED:
        unavailable = [name for name in quantities if name not in ON_SHARDS]
        quantities = tuple(name for name in quantities if name in ON_SHARDS)
        if unavailable:
            logger.warning("not monitored because the model is sharded: %s", ", ".join(unavailable))
    if quantities and trainer.is_data_parallel_master:
        monitor = Monitor(quantities, trainer, folder)
    # after the monitor, which must write the update's record before the watch may end the run
    return [*filter(None, [monitor]), *watch.observers(trainer, folder, monitor)]


def install() -> None:
    """Make fairseq-train train and resume with DeepNetTrainer."""
    modules: tuple[Any, ...] = (fairseq.trainer, training_program())
    for module in filter(None, modules):
        module.Trainer = DeepNetTrainer

    @wrap(fairseq.checkpoint_utils, "load_checkpoint")
    def load_checkpoint(load: Any, cfg: Any, trainer: Any, **options: Any) -> Any:
        if isinstance(trainer, DeepNetTrainer):
            return trainer.resume(load, **options)
        return load(cfg, trainer, **options)


def follow_training_program() -> None:
    """Make fairseq-train call the trainer before and after `validate_and_save`."""
    program: Any = training_program()
    if program is None or hasattr(program, "is_followed"):
        return

    @wrap(program, "validate_and_save")
    def validate_and_save(
        act: Any, cfg: Any, trainer: Any, task: Any, epoch_itr: Any, subsets: Any, is_over: bool
    ) -> Any:
        if isinstance(trainer, DeepNetTrainer):
            trainer.epoch_itr = epoch_itr
            if trainer.preemption is not None and trainer.is_updated:
                trainer.preemption.act()
            if not trainer.is_updated and not is_over:
                return [None], False  # a repeated validation would count twice for --patience
        result = act(cfg, trainer, task, epoch_itr, subsets, is_over)
        if isinstance(trainer, DeepNetTrainer) and trainer.is_saving:
            trainer.is_saving = False
            trainer.wait_for_checkpoint()
        return result

    program.is_followed = True
