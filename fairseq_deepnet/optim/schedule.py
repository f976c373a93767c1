"""Learning-rate schedules that do not fit the length of their training."""

from __future__ import annotations

from typing import Any


def misfits(name: str | None, options: Any, max_update: float | None) -> list[str]:
    """Return a sentence for each way in which a schedule does not fit its training.

    Args:
        name: of the schedule, as after --lr-scheduler.
        options: what has its options as attributes (warmup_updates, total_num_update).
        max_update: updates of the training; None or 0 where only epochs bound it.
    """
    if not max_update:
        return []
    length, found = int(max_update), []
    option = "warmup-steps" if name == "tri_stage" else "warmup-updates"
    warmup, total = _number(options, option), _number(options, "total-num-update")
    if warmup >= max(length, total):  # not of a training that is cut short on purpose
        found.append(
            f"--{option} {warmup:,} is not below --max-update {length:,}: the warm-up never ends;"
            f" set --{option} to a fraction of {length}"
        )
    decays_to_zero = name == "polynomial_decay" and not _number(options, "end-learning-rate")
    if decays_to_zero and 0 < total < length:
        found.append(
            f"--total-num-update {total:,} is below --max-update {length:,}: the learning rate is"
            f" 0 in the last {length - total:,} updates; give both the same number"
        )
    return found


def _number(options: Any, option: str) -> float:
    value = float(getattr(options, option.replace("-", "_"), None) or 0)
    return int(value) if value.is_integer() else value
