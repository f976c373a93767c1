"""--on-divergence fallback: roll a diverged run back, and change its options step by step.

    --fallbacks "lr*0.5, lr*0.5, update-freq*2"

Commas separate the steps. Each multiplies one option by a factor, in addition to the steps before
it. fallback.json in the run folder records the steps and not their results: they are applied to the
options of each start, so that another number of devices, with another update-freq, stays possible.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.records import read_record, write_record

NAME: Final = "fallback.json"
ADJUSTABLE: Final = ("lr", "update-freq", "warmup-updates", "clip-norm", "dropout", "weight-decay")
"""Options that a step may change: all other options would change the model or its data."""
Options = Mapping[str, Any]
"""fairseq-train's options as parsed, by attribute name."""


def parse(text: str) -> list[str]:
    """Return the steps of --fallbacks, each as "option*factor".

    Raises ConfigurationError for another form, option or factor.
    """
    steps = [step.strip() for step in text.split(",")]
    for step in steps:
        option, _, factor = step.partition("*")
        try:
            is_valid = option in ADJUSTABLE and float(factor) > 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ConfigurationError(
                f"--fallbacks: {step!r} is no step; write OPTION*FACTOR, such as lr*0.5, with"
                f" commas between the steps and one of the options {', '.join(ADJUSTABLE)}"
            )
    return steps


def arguments(steps: Sequence[str], options: Options) -> list[str]:
    """Return what the steps add to a command line with these options.

    Raises ConfigurationError for an option that is not set.
    """
    changed: dict[str, list[int | float]] = {}
    for step in steps:
        option, _, factor = step.partition("*")
        value = options.get(option.replace("-", "_"))
        if value is None:
            raise ConfigurationError(f"--fallbacks: {step}: this run has no --{option}")
        before = changed.get(option) or (value if isinstance(value, list) else [value])
        changed[option] = [
            max(1, round(number * float(factor)))
            if isinstance(number, int)
            else number * float(factor)
            for number in before
        ]
    # ten digits: 0.009 * 0.5 is not to read 0.0045000000000000005
    return [f"--{name}={','.join(f'{n:.10g}' for n in changed[name])}" for name in changed]


@dataclass
class State:
    """The fallbacks that a run has taken, as fallback.json records them.

    Attributes:
        history: for each fallback its step, the update of the rollback, and the divergence.
        pending: folder for the later checkpoints, and the update to go back to. It is written
            before the first checkpoint is moved, so that a kill in between loses nothing.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    pending: list[Any] = field(default_factory=list)

    def write(self, run: Path) -> None:
        """Write into a run folder, whole or not at all."""
        write_record(run / NAME, asdict(self))

    @property
    def changes(self) -> list[str]:
        """All steps, in order."""
        return [str(fallback["change"]) for fallback in self.history]

    def __str__(self) -> str:
        """Describe the last fallback, for people and for the log."""
        last = self.history[-1]
        update = last["from_update"]
        place = f"update {update:,}" if update else "the beginning (no earlier checkpoint)"
        return f"fallback {len(self.history)}: starting again from {place} with {last['change']}"


def read(run: Path) -> State:
    """Return the state of a run folder, empty without a fallback.

    Raises ConfigurationError for a damaged file.
    """
    file = run / NAME
    try:
        return State(**read_record(file, {"history": list, "pending": list}))
    except FileNotFoundError:
        return State()
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{file} is damaged ({error}); remove it to train without the fallbacks taken so far"
        ) from error


def take(run: Path, steps: Sequence[str], ended: Mapping[str, Any]) -> State | None:
    """Take the next fallback and roll the run back; return its state, None without further steps.

    Args:
        run: the run folder
        steps: those of --fallbacks
        ended: the record of the divergence
    """
    from fairseq_deepnet.divergence.watch import newest_before

    state = read(run)
    if len(state.history) >= len(steps):
        return None
    source = newest_before(run / "checkpoints", ended.get("started", ended["update"]))
    update = source[0] if source else 0
    event = {key: ended[key] for key in ("update", "kind", "started") if key in ended}
    change = steps[len(state.history)]
    state.history.append({"change": change, "from_update": update, "event": event})
    name, count = f"diverged_{len(state.history)}", 1
    while (run / "checkpoints" / name).exists():  # of a run whose fallback.json was removed
        count += 1
        name = f"diverged_{len(state.history)}_{count}"
    state.pending = [name, update]
    state.write(run)
    return roll_back(run)


def roll_back(run: Path) -> State:
    """Finish the rollback that fallback.json has pending; return the run's state.

    Checkpoints of later updates, and those that cannot be read, are moved aside; the newest of the
    others becomes checkpoint_last.pt.
    """
    from fairseq_deepnet.checkpoints import LAST, copy_checkpoint
    from fairseq_deepnet.divergence.watch import resumable
    from fairseq_deepnet.monitoring import records

    state, save_dir = read(run), run / "checkpoints"
    if not state.pending:
        return state
    folder, update = state.pending
    aside = save_dir / folder
    aside.mkdir(parents=True, exist_ok=True)
    if (run / records.NAME).is_file():  # the next attempt repeats these updates
        shutil.copyfile(run / records.NAME, aside / records.NAME)
    earlier = {path for number, path in resumable(save_dir) if number <= update}
    for path in {*save_dir.glob("checkpoint*.pt"), *save_dir.glob("crash.pt")} - earlier:
        path.rename(aside / path.name)
    if not (save_dir / LAST).is_file():
        for _, path in sorted(resumable(save_dir))[-1:]:  # none if all were moved
            copy_checkpoint(path, save_dir / LAST)
    state.pending = []
    state.write(run)
    return state
