"""Observers of a training: preemption for every model, instruments as a model's options ask."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from . import preemption
from .divergence import options as divergence
from .divergence import watch
from .errors import ConfigurationError
from .monitoring.instruments import OF_SPLIT
from .monitoring.monitor import Monitor
from .monitoring.options import monitor_settings
from .monitoring.records import run_folder
from .monitoring.trainer import Observer
from .optim.schedule import misfits
from .sharding.trainer import ShardedTrainer

logger = logging.getLogger(__name__)


def build_observers(trainer: Any) -> list[Observer]:
    """Return the observers of a new trainer.

    Preemption covers every model that fairseq-train trains with the plugin; monitor, watch and the
    warnings about the learning-rate schedule need the options of our models.
    """
    _refuse_fp16_on_cpus(trainer)
    observers: list[Observer] = []
    if hasattr(trainer.cfg.model, "residual_scheme"):
        observers += _build_instruments(trainer)
    listener = preemption.listener()
    if listener is not None:
        # the last: all that the others keep of an update is written before it ends the training
        observers.append(preemption.Preemption(listener, trainer))
    return observers


def _refuse_fp16_on_cpus(trainer: Any) -> None:
    """Refuse --fp16 with --cpu: fairseq puts fp32 weights and the norm of an overflow on a GPU."""
    common = trainer.cfg.common
    if not (common.cpu and common.fp16) or isinstance(trainer, ShardedTrainer):
        return
    try:
        torch.cuda.current_device()  # asked as fairseq asks it
    except (AssertionError, RuntimeError) as error:
        raise ConfigurationError("--fp16 needs a GPU: on a CPU give --bf16, or neither") from error


def _build_instruments(trainer: Any) -> list[Observer]:
    args, folder = trainer.cfg.model, run_folder(Path(trainer.cfg.checkpoint.save_dir))
    observers: list[Observer] = []
    if trainer.is_data_parallel_master:
        schedule, length = trainer.cfg.lr_scheduler, trainer.cfg.optimization.max_update
        for misfit in misfits(getattr(schedule, "_name", None), schedule, length):
            logger.warning(misfit)
    measured = monitor_settings(args)
    if measured is not None and isinstance(trainer, ShardedTrainer):
        lacking = [name for name in measured.quantities if name not in OF_SPLIT]
        kept = tuple(name for name in measured.quantities if name in OF_SPLIT)
        measured = replace(measured, quantities=kept) if kept else None
        if lacking:
            logger.warning("not monitored, as the model is sharded: %s", ", ".join(lacking))
    if measured is not None and trainer.is_data_parallel_master:
        observers.append(Monitor(measured, trainer, folder))
    # after the monitor: they may end the training, and the update's record must be written
    observers += watch.observers(divergence.settings(args), trainer, folder)
    return observers
