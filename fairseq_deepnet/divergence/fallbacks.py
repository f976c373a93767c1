"""--fallbacks: what to change, step by step, when a training has diverged.

    "lr*0.5 warmup-updates+1000, lr*0.5, update-freq*2, fp32"

Steps are separated by commas and taken one after another, each on top of those before; a step
holds one or more changes: `option=value`, `option*factor`, `option+number`, or `fp32`, which drops
--fp16, --bf16 and their like. After Marian's --custom-fallbacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..errors import ConfigurationError, did_you_mean

FP32: Final = "fp32"
PRECISIONS: Final = ("fp16", "bf16", "amp", "memory-efficient-fp16", "memory-efficient-bf16")
DEFAULT: Final = "lr*0.5 warmup-updates+1000, lr*0.5, update-freq*2, fp32"

_CHANGE: Final = re.compile(r"(?P<option>[a-z][a-z0-9-]*)(?P<sign>[=*+])(?P<value>[^\s=*+,]+)")
_FIXED: Final = re.compile(
    r"arch|task|criterion|optimizer|lr-scheduler|user-dir|save-dir|restore-file|residual-scheme"
    r"|scheme-variant|init|on-divergence|fallbacks|fallback-step|cpu|distributed-.*|share-.*"
    r"|(en|de)coder-(layers|embed-dim|ffn-embed-dim|attention-heads|learned-pos|normalize-before)"
)
"""Options that a checkpoint must be met with as it was made, and our own."""


@dataclass(frozen=True)
class Change:
    """One change; `sign` is "=", "*" or "+", and empty for fp32."""

    option: str
    sign: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.option}{self.sign}{self.value}"


Step = tuple[Change, ...]


def parse(text: str) -> tuple[Step, ...]:
    """The steps of --fallbacks; ConfigurationError names what cannot be read."""
    steps = tuple(tuple(map(_change, step.split())) for step in text.split(","))
    if not all(steps):
        raise ConfigurationError(
            f"--fallbacks {text!r}: a step is empty; write steps like {DEFAULT!r}"
        )
    return steps


def _change(word: str) -> Change:
    if word == FP32:
        return Change(FP32)
    match = _CHANGE.fullmatch(word)
    if match is None:
        raise ConfigurationError(
            f"--fallbacks: {word!r} is no change; write option=value, option*factor, option+number"
            f" or {FP32}, such as lr*0.5, with commas between the steps"
        )
    change = Change(match["option"], match["sign"], match["value"])
    if _FIXED.fullmatch(change.option):
        raise ConfigurationError(
            f"--fallbacks: {change} would change the model or where it is trained, and no"
            " checkpoint could be gone on from; change learning rate, warm-up, batch or the like"
        )
    if change.sign != "=" and _number(change.value) is None:
        raise ConfigurationError(f"--fallbacks: {change}: {change.value!r} is no number")
    return change


def check(steps: Sequence[Step], present: Mapping[str, Any]) -> None:
    """Raise ConfigurationError where a step changes what this training has not.

    Arguments:
        present: fairseq-train's options as parsed, by attribute name
    """
    for step in steps:
        for change in step:
            if change.option != FP32:
                _changed(change, present)


def overrides(step: Step, present: Mapping[str, Any]) -> dict[str, str]:
    """Option -> its new value, as typed on a command line; fp32 has an empty one."""
    found = {}
    for change in step:
        found[change.option] = "" if change.option == FP32 else _changed(change, present)
    return found


def shown(changes: Mapping[str, str]) -> str:
    """Overrides as a person would type them."""
    return " ".join(
        FP32 if name == FP32 else f"--{name} {value}" for name, value in changes.items()
    )


def that_help(step: Step, present: Mapping[str, Any], update: int) -> Step:
    """The changes of a step that make another training of one that goes on from `update`.

    fp32 changes nothing where it is fp32. A warm-up that is over is not begun again: after it the
    inverse square root's learning rate is lr sqrt(warmup / update), which a longer one would raise.
    """
    found = []
    for change in step:
        if change.option == FP32:
            same = not before(FP32, present)
        else:
            same = _changed(change, present) == before(change.option, present)
            over = update > 0 and update >= (present.get("warmup_updates") or 0)
            same = same or (change.option == "warmup-updates" and over)
        if not same:
            found.append(change)
    return tuple(found)


def before(option: str, present: Mapping[str, Any]) -> str:
    """An option as this training has it; for fp32, the precisions that it gives up."""
    if option == FP32:
        return " ".join(name for name in PRECISIONS if present.get(name.replace("-", "_")))
    return written(present[option.replace("-", "_")])


def _changed(change: Change, present: Mapping[str, Any]) -> str:
    name = change.option.replace("-", "_")
    if name not in present:
        options = [option.replace("_", "-") for option in present]
        raise ConfigurationError(
            f"--fallbacks: {change}: this training has no option --{change.option}"
            f"{did_you_mean(change.option, options)}"
        )
    if isinstance(present[name], bool):
        raise ConfigurationError(
            f"--fallbacks: {change}: --{change.option} is a switch, which cannot be changed"
        )
    if change.sign == "=":
        return change.value
    before = present[name] if isinstance(present[name], list | tuple) else [present[name]]
    numbers = [_number(value) for value in before]
    by = _number(change.value)
    if by is None or not numbers or None in numbers:
        raise ConfigurationError(
            f"--fallbacks: {change}: --{change.option} is {present[name]}, no number to change;"
            f" write {change.option}=VALUE"
        )
    after = [n * by if change.sign == "*" else n + by for n in numbers if n is not None]
    whole = all(isinstance(number, int) for number in numbers)
    return written([max(1, round(number)) if whole else number for number in after])


def written(value: Any) -> str:
    """A parsed value as typed on a command line; lists with commas."""
    values = value if isinstance(value, list | tuple) else [value]
    # ten digits: 0.009 * 0.5 is not to read 0.0045000000000000005
    return ",".join(f"{item:.10g}" if isinstance(item, float) else str(item) for item in values)


def _number(value: Any) -> int | float | None:
    if isinstance(value, int | float):
        return value
    for kind in (int, float):
        try:
            return kind(str(value))
        except ValueError:
            continue
    return None
