"""Checks of the learning-rate schedule against the length of the run."""

from typing import Any


def misfits(name: str | None, options: Any, length: int) -> list[str]:
    """Return one sentence per mismatch between the schedule and the run's length.

    Args:
        name: name of the schedule, as in --lr-scheduler.
        options: object with the schedule's options as attributes (warmup_updates, ...).
        length: number of updates; 0 if it is unknown.
    """
    problems = []
    option = "warmup-steps" if name == "tri_stage" else "warmup-updates"
    warmup, total = _number(options, option), _number(options, "total-num-update")
    # a total above the length means a deliberately short run
    if length and warmup >= max(length, total):
        problems.append(
            f"--{option} {warmup:,} is not below the run's {length:,} updates:"
            f" the warm-up never ends; set --{option} to a fraction of {length}"
        )
    decays_to_zero = name == "polynomial_decay" and not _number(options, "end-learning-rate")
    if decays_to_zero and 0 < total < length:
        problems.append(
            f"--total-num-update {total:,} is below the run's {length:,} updates:"
            f" the learning rate is 0 in the last {length - total:,}; give both the same number"
        )
    return problems


def warmup_of(args: Any) -> int:
    """Return the number of warm-up updates, given a run's options."""
    if phases := getattr(args, "phase_ratio", None):  # of tri_stage
        return int(args.max_update * phases[0])
    return int(getattr(args, "warmup_updates", 0) or getattr(args, "warmup_steps", 0) or 0)


def _number(options: Any, option: str) -> float:
    value = float(getattr(options, option.replace("-", "_"), None) or 0)
    return int(value) if value.is_integer() else value
