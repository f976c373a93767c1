"""Rollback of a diverged run, which then resumes with changed options (--on-divergence fallback).

    --fallbacks "lr*0.5, lr*0.5, update-freq*2"

After each divergence, the next of these steps multiplies one option by a factor; earlier steps stay
in effect. fallback.json in the run folder records the steps, not the resulting values. Every start
applies the recorded steps to its own options, so a run may resume on another number of devices.
"""

import itertools
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.records import read_record, write_json

NAME: Final = "fallback.json"
ADJUSTABLE: Final = ("lr", "update-freq", "warmup-updates", "clip-norm", "dropout", "weight-decay")
"""Options that a step may change; other options would change the model or its data."""
_STEP: Final = re.compile(rf"({'|'.join(ADJUSTABLE)})\*(?=.*[1-9])\d+(\.\d+)?")


def parse(text: str) -> list[str]:
    """Return the steps of --fallbacks, each as "option*factor".

    Raises:
        ConfigurationError: if a step has another form, option or factor.
    """
    steps = [step.strip() for step in text.split(",")]
    for step in steps:
        if not _STEP.fullmatch(step):
            raise ConfigurationError(
                f"--fallbacks: {step!r} is not a step; write OPTION*FACTOR, such as lr*0.5, and"
                f" separate steps by commas; the options are {', '.join(ADJUSTABLE)}"
            )
    return steps


def arguments(steps: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Apply `steps` to the parsed `options`, and return the changed options as arguments.

    Raises:
        ConfigurationError: if an option that a step changes is 0 or has no value.
    """
    changed: dict[str, list[int | float]] = {}
    for step in steps:
        option, _, factor = step.partition("*")
        value = options.get(option.replace("-", "_"))
        if not value:  # a factor would not change 0, such as the --clip-norm of base.yaml
            raise ConfigurationError(f"--fallbacks: {step}: this run has no --{option}")
        before = changed.get(option) or (value if isinstance(value, list) else [value])
        changed[option] = [
            max(1, round(number * float(factor)))
            if isinstance(number, int)
            else number * float(factor)
            for number in before
        ]
    # ten digits, so that 0.009 * 0.5 does not become 0.0045000000000000005
    return [f"--{name}={','.join(f'{n:.10g}' for n in changed[name])}" for name in changed]


def read(run: Path) -> list[dict[str, Any]]:
    """Read from fallback.json the fallbacks that a run has taken, oldest first."""
    if not (run / NAME).is_file():
        return []
    remedy = "remove it to train without the earlier fallbacks"
    return list(read_record(run / NAME, {"history": list}, remedy)["history"])


def describe(history: Sequence[Mapping[str, Any]]) -> str:
    """Describe the last fallback that a run has taken."""
    update = history[-1]["from_update"]
    place = f"update {update:,}" if update else "the beginning (no earlier checkpoint)"
    return f"fallback {len(history)}: {history[-1]['change']} from {place} on"


def take(run: Path, change: str, ended: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Roll a run back and record the fallback; return all fallbacks that the run has taken.

    Checkpoints that are too new or unreadable are moved aside, and the newest remaining checkpoint
    becomes checkpoint_last.pt. If checkpoint_best.pt is too new, the best earlier checkpoint
    replaces it. The record is written last. If this process is killed before writing it, the next
    start repeats the fallback. `ended` is the content of ended.json.
    """
    from fairseq_deepnet.checkpoints import LAST, copy_checkpoint, load_checkpoint
    from fairseq_deepnet.divergence.watch import newest_before, resumable
    from fairseq_deepnet.monitoring import records
    from fairseq_deepnet.tools.trained_model import BEST

    history, save_dir = read(run), run / "checkpoints"
    source = newest_before(save_dir, ended.get("started", ended["update"]))
    update = source[0] if source else 0
    folders = (save_dir / f"diverged_{number}" for number in itertools.count(len(history) + 1))
    aside = next(folder for folder in folders if not folder.exists())
    aside.mkdir(parents=True)
    if (run / records.NAME).is_file():  # the next attempt repeats these updates
        shutil.copyfile(run / records.NAME, aside / records.NAME)
    earlier = {path: number for number, path in resumable(save_dir) if number <= update}
    for path in {*save_dir.glob("checkpoint*.pt"), *save_dir.glob("crash.pt")} - earlier.keys():
        path.rename(aside / path.name)
    if source and not (save_dir / LAST).is_file():
        copy_checkpoint(source[1], save_dir / LAST)
    best = save_dir / BEST
    for path in sorted(earlier, key=earlier.__getitem__, reverse=True):
        if best.is_file():
            break
        extra = load_checkpoint(path).get("extra_state", {})
        if extra.get("val_loss") is not None and extra["val_loss"] == extra.get("best"):
            copy_checkpoint(path, best)
    event = {key: ended[key] for key in ("update", "kind", "started") if key in ended}
    history.append({"change": change, "from_update": update, "event": event})
    write_json(run / NAME, {"history": history})
    return history
