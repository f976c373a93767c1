"""Who watches a training: what its model's options ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .monitor import Monitor
from .options import monitor_settings
from .records import run_folder
from .trainer import Observer


def build_observers(trainer: Any) -> list[Observer]:
    """The observers of a trainer that was just made; none for models that are not ours."""
    settings = monitor_settings(trainer.cfg.model)
    observers: list[Observer] = []
    if settings is not None and trainer.is_data_parallel_master:
        folder = run_folder(Path(trainer.cfg.checkpoint.save_dir))
        observers.append(Monitor(settings, trainer, folder))
    return observers
