"""What a resumed training is given anew for its optimiser holds from there on.

fairseq says so of its optimisers, and takes the checkpoint's values all the same: --adam-eps,
--adam-betas and --weight-decay, and under reduce_lr_on_plateau --lr, change nothing for a training
that is resumed, and --optimizer-overrides alone does.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from ..checkpoints import recorded_options
from ..monitoring.trainer import broadcast_from_rank0
from ..wrapping import wrap

logger = logging.getLogger(__name__)


def apply() -> None:
    """Override what was recorded by what is given, where these differ."""

    @wrap(Trainer, "load_checkpoint")
    def load_checkpoint(
        load: Any,
        self: Any,
        filename: str,
        reset_optimizer: bool = False,
        reset_lr_scheduler: bool = False,
        optimizer_overrides: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        if not reset_optimizer:
            optimizer_overrides = _changes(self, filename) | (optimizer_overrides or {})
        return load(
            self, filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, **options
        )


def _changes(trainer: Any, filename: str) -> dict[str, Any]:
    """Return what is given otherwise than the training had it that wrote a checkpoint."""
    changes: dict[str, Any] = {}
    if trainer.data_parallel_rank == 0 and Path(filename).is_file():
        given = trainer.cfg.optimizer
        kind = OPTIMIZER_REGISTRY[getattr(given, "_name", None) or given.optimizer]
        before = _settings(kind, OmegaConf.create(recorded_options(filename, "optimizer")))
        now = _settings(kind, given) if before else {}
        changes = {name: now[name] for name in before if before[name] != now[name]}
        if changes:
            told = (f"{name} {now[name]} instead of {before[name]}" for name in changes)
            logger.info("the optimizer goes on with %s", ", ".join(told))
    return dict(broadcast_from_rank0(trainer, changes))


def _settings(kind: Any, options: Any) -> dict[str, Any]:
    """Return what an optimiser of a kind would keep of options; nothing where it keeps none, or
    where they are another kind's.
    """
    try:
        kept = kind.optimizer_config.fget(SimpleNamespace(cfg=options, args=options))
    except (AttributeError, NotImplementedError):
        return {}
    return {name: tuple(one) if isinstance(one, list) else one for name, one in kept.items()}
