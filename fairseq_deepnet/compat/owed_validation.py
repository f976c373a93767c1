"""What fairseq does after an update is made up for where a signal ended the training before it.

fairseq validates and saves after an update, and begins the next epoch; a resumed training begins
with the next update. Where a preempted one was to validate at its last update, that validation,
its checkpoints and what schedules learn from it would never be.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import fairseq.checkpoint_utils

from ..checkpoints import last_of
from ..wrapping import wrap

OWED = "preempted"
"""Key of a checkpoint's extra state, written by preemption.Preemption."""
_PROGRAMS = ("__main__", "fairseq_cli.train")


@dataclass(frozen=True)
class EpochThen:
    """The epoch iterator as it stood when the training was preempted.

    Args:
        epoch: from 1
        over: whether the epoch was
        state: of the iterator, from the checkpoint
    """

    epoch: int
    over: bool
    state: dict[str, Any]

    def end_of_epoch(self) -> bool:
        return self.over

    def state_dict(self) -> dict[str, Any]:
        return self.state


def apply() -> None:
    """Validate and save, on resuming, what a preempted training owes."""

    @wrap(fairseq.checkpoint_utils, "load_checkpoint")
    def load_checkpoint(load: Any, cfg: Any, trainer: Any, **options: Any) -> Any:
        reset = cfg.reset_dataloader or cfg.reset_optimizer or cfg.reset_meters
        reset = reset or begins_anew(cfg, trainer)
        state, epoch_itr = load(cfg, trainer, **options)
        owed = (state or {}).get(OWED)
        program = training_program()
        if owed and not reset and program is not None:
            then = EpochThen(owed["epoch"], owed["end_of_epoch"], state["train_iterator"])
            losses, ends = program.validate_and_save(
                *(trainer.cfg, trainer, trainer.task, then),
                trainer.cfg.dataset.valid_subset.split(","),
                then.over,
            )
            if then.over:
                trainer.lr_step(then.epoch, losses[0])
            if ends:  # fairseq asks only after an update, and would make one more
                trainer.cfg.optimization.max_epoch = -1
        return state, epoch_itr


def begins_anew(cfg: Any, trainer: Any) -> bool:
    """Return True if what is to be loaded gives --finetune-from-model its weights alone.

    fairseq resets everything then, and tells nobody.
    """
    return bool(cfg.finetune_from_model) and not last_of(trainer).exists()


def training_program() -> ModuleType | None:
    """Return the module of fairseq-train; None in a program that trains by other means.

    It is not imported: that makes every program log to standard output.
    """
    modules = map(sys.modules.get, _PROGRAMS)
    return next((module for module in modules if hasattr(module, "validate_and_save")), None)
