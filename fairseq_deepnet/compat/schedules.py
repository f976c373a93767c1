"""Let a schedule that is resumed at the start of an epoch know how the last one was validated.

fairseq saves at the end of an epoch, and calls the schedule with the validation loss afterwards. A
training that is resumed from there never hears of it: `best` is that of an epoch before, and
reduce_lr_on_plateau misses a step. Nor does that one save how many epochs were no better.
"""

from __future__ import annotations

from typing import Any

from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.trainer import Trainer

from ..wrapping import wrap


def apply() -> None:
    """Mend both."""

    @wrap(Trainer, "load_checkpoint")
    def load_checkpoint(
        load: Any,
        self: Any,
        filename: str,
        reset_optimizer: bool = False,
        reset_lr_scheduler: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        extra: dict[str, Any] | None
        extra = load(self, filename, reset_optimizer, reset_lr_scheduler, *args, **kwargs)
        if extra is None or reset_lr_scheduler or not self.get_num_updates():
            return extra  # nothing was loaded, or no schedule
        begins = extra["train_iterator"]
        loss = extra.get("val_loss")
        if loss is not None and begins.get("iterations_in_epoch") == 0:
            self.lr_step(begins["epoch"] - 1, loss)
        return extra

    @wrap(ReduceLROnPlateauLRSchedule, "state_dict")
    def state_dict(save: Any, self: Any) -> dict[str, Any]:
        return {**save(self), "num_bad_epochs": self.lr_scheduler.num_bad_epochs}

    @wrap(ReduceLROnPlateauLRSchedule, "load_state_dict")
    def load_state_dict(load: Any, self: Any, state_dict: dict[str, Any]) -> None:
        load(self, state_dict)
        self.lr_scheduler.num_bad_epochs = state_dict.get("num_bad_epochs", 0)
