"""--fallbacks: what to change, step by step, after a training has diverged; and the rollback.

    "lr*0.5 warmup-updates+1000, lr*0.5, update-freq*2"

Commas separate steps, which are taken one after another, each on top of those before. A step holds
one or more changes: option=value, option*factor or option+number. After Marian's
--custom-fallbacks.

fallback.json in the run folder records the changes and not their results: they are applied to the
options of each start, so that another number of devices, with another update-freq, stays possible.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.errors import ConfigurationError, did_you_mean
from fairseq_deepnet.records import read_record, write_record

NAME: Final = "fallback.json"
STARTING: Final = "starting again from"
"""Words in the log by which curves know that the run goes back."""
_CHANGE: Final = re.compile(r"(?P<option>[a-z][a-z0-9-]*)(?P<sign>[=*+])(?P<value>[^\s=*+,]+)")
_FIXED: Final = re.compile(
    r"arch|task|criterion|optimizer|lr-scheduler|user-dir|save-dir|restore-file|continue-once"
    r"|residual-scheme|scheme-variant|freeze-norms|init|on-divergence|fallbacks|fallback-step|cpu"
    r"|distributed-.*|share-.*"
    r"|(en|de)coder-(layers|embed-dim|ffn-embed-dim|attention-heads|learned-pos|normalize-before)"
)
"""Options that must be those of the checkpoint, and our own."""
Options = Mapping[str, Any]
"""fairseq-train's options as parsed, by attribute name."""


@dataclass(frozen=True)
class Change:
    """One change of an option; `sign` is "=", "*" or "+"."""

    option: str
    sign: str
    value: str

    def __str__(self) -> str:
        return f"{self.option}{self.sign}{self.value}"

    @classmethod
    def parse(cls, word: str) -> Change:
        """Read "lr*0.5"; ConfigurationError names what cannot be read."""
        match = _CHANGE.fullmatch(word)
        if match is None:
            raise ConfigurationError(
                f"--fallbacks: {word!r} is no change; write option=value, option*factor or"
                " option+number, such as lr*0.5, with commas between the steps"
            )
        change = cls(**match.groupdict())
        if _FIXED.fullmatch(change.option):
            raise ConfigurationError(
                f"--fallbacks: {change} would change the model or where it is trained, and no"
                " checkpoint could be resumed; change learning rate, warm-up, batch or the like"
            )
        if change.sign != "=" and _number(change.value) is None:
            raise ConfigurationError(f"--fallbacks: {change}: {change.value!r} is no number")
        return change

    def applied(self, present: Options) -> Any:
        """Return the option's new value; ConfigurationError where it cannot be changed so."""
        name, by = self.option.replace("-", "_"), _number(self.value)
        if name not in present:
            options = [option.replace("_", "-") for option in present]
            raise ConfigurationError(
                f"--fallbacks: {self}: this training has no option --{self.option}"
                f"{did_you_mean(self.option, options)}"
            )
        if isinstance(present[name], bool):
            raise ConfigurationError(
                f"--fallbacks: {self}: --{self.option} is a switch, which cannot be changed"
            )
        if self.sign == "=":
            return self.value
        numbers = list(map(_number, _list(present[name])))
        if by is None or not numbers or None in numbers:
            raise ConfigurationError(
                f"--fallbacks: {self}: --{self.option} is {present[name]}, no number to change;"
                f" write {self.option}=VALUE"
            )
        after = [n * by if self.sign == "*" else n + by for n in numbers if n is not None]
        whole = all(isinstance(number, int) for number in numbers)
        return [max(1, round(number)) if whole else number for number in after]

    def helps(self, present: Options, update: int) -> bool:
        """Return True if it makes a difference to a training from `update` on.

        A warm-up that is over is not begun again: after it the inverse square root's learning rate
        is lr sqrt(warmup / update), which a longer one would raise.
        """
        if self.option == "warmup-updates" and 0 < update >= (present.get("warmup_updates") or 0):
            return False
        return typed(self.applied(present)) != typed(present[self.option.replace("-", "_")])


Step = tuple[Change, ...]


def parse(text: str) -> tuple[Step, ...]:
    """Return the steps of --fallbacks; ConfigurationError names what cannot be read."""
    steps = tuple(tuple(map(Change.parse, step.split())) for step in text.split(","))
    if not all(steps):
        raise ConfigurationError(
            f"--fallbacks {text!r}: a step is empty; write steps like 'lr*0.5, update-freq*2'"
        )
    return steps


def steps_of(text: str | None, present: Options) -> tuple[Step, ...]:
    """Return the steps of --fallbacks, or the default's as far as this training has the options.

    Raises:
        ConfigurationError: for what cannot be read, or changes what this training has not.
    """
    if text is not None:
        steps = parse(text)
        for step in steps:
            changed(step, present)  # refuses what is not there
        return steps
    from fairseq_deepnet.divergence.watch import DEFAULT_FALLBACKS

    known = [
        tuple(change for change in step if change.option.replace("-", "_") in present)
        for step in parse(DEFAULT_FALLBACKS)
    ]
    return tuple(step for step in known if step)


def changed(changes: Sequence[Change], present: Options) -> dict[str, Any]:
    """Return a training's options after these changes, one on top of another."""
    options = dict(present)
    for change in changes:
        options[change.option.replace("-", "_")] = change.applied(options)
    return options


def typed(value: Any) -> str:
    """Return a parsed value as typed on a command line; lists with commas."""
    # ten digits: 0.009 * 0.5 is not to read 0.0045000000000000005
    texts = (f"{item:.10g}" if isinstance(item, float) else str(item) for item in _list(value))
    return ",".join(texts)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _number(value: Any) -> int | float | None:
    if isinstance(value, int | float):
        return value
    for kind in (int, float):
        try:
            return kind(str(value))
        except ValueError:
            continue
    return None


@dataclass
class State:
    """The fallbacks that a run has taken, as fallback.json holds them."""

    step: int = 0  # number of the last one, from 1
    # of each: step, changes, update and kind of the divergence, the update it went back to
    history: list[dict[str, Any]] = field(default_factory=list)
    # folder for the checkpoints of the divergence, and the update to go back to; written before
    # the first is moved, so that a kill in between loses nothing
    pending: list[Any] = field(default_factory=list)

    def write(self, run: Path) -> None:
        """Write into a run folder, whole or not at all."""
        write_record(run / NAME, asdict(self))

    @property
    def changes(self) -> list[Change]:
        """All changes, in their order."""
        return [Change.parse(word) for taken in self.history for word in taken["changes"].split()]

    def arguments(self, present: Options) -> list[str]:
        """Return what an attempt adds to a command line with the `present` options."""
        options = changed(self.changes, present)
        names = dict.fromkeys(change.option for change in self.changes)
        return [f"--{name}={typed(options[name.replace('-', '_')])}" for name in names]

    def __str__(self) -> str:
        """Describe the last fallback, for people and for the log."""
        last = self.history[-1]
        update = last["from_update"]
        place = f"update {update:,}" if update else "the beginning (no checkpoint from before it)"
        return f"fallback {self.step}: {STARTING} {place} with {last['changes']}"


def read(run: Path) -> State:
    """Return the state of a run folder; a new one where there is none.

    Raises:
        ConfigurationError: for a file that does not hold what `State.write` wrote.
    """
    file = run / NAME
    try:
        return State(**read_record(file, {"step": int, "history": list, "pending": list}))
    except FileNotFoundError:
        return State()
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{file} is damaged ({error}); remove it to train without the fallbacks taken so far"
        ) from error


def take(
    run: Path, steps: Sequence[Step], present: Options, ended: Mapping[str, Any]
) -> State | None:
    """Take the next fallback that changes anything, and roll the run back.

    Args:
        present: options of this training without any fallback
        ended: the record of the divergence

    Returns the run's state; None where no fallback is left.
    """
    from fairseq_deepnet.divergence.watch import newest_before

    state = read(run)
    options = changed(state.changes, present)
    source = newest_before(run / "checkpoints", ended.get("started", ended["update"]))
    update = source[0] if source else 0
    left = (
        (number, [change for change in step if change.helps(options, update)])
        for number, step in enumerate(steps[state.step :], state.step + 1)
    )
    number, changes = next((taken for taken in left if taken[1]), (0, []))
    if not changes:
        return None
    event = {key: ended[key] for key in ("update", "kind", "started") if key in ended}
    words = " ".join(map(str, changes))
    state.step = number
    state.history.append({"step": number, "changes": words, "from_update": update, "event": event})
    name, count = f"diverged_{number}", 1
    while (run / "checkpoints" / name).exists():  # of a run whose fallback.json was removed
        count += 1
        name = f"diverged_{number}_{count}"
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
    if (run / records.NAME).is_file():  # the next attempt makes these updates again
        shutil.copyfile(run / records.NAME, aside / records.NAME)
    earlier = {path for number, path in resumable(save_dir) if number <= update}
    for path in {*save_dir.glob("checkpoint*.pt"), *save_dir.glob("crash.pt")} - earlier:
        path.rename(aside / path.name)
    if not (save_dir / LAST).is_file():
        for _, path in sorted(resumable(save_dir))[-1:]:  # none where all is moved
            copy_checkpoint(path, save_dir / LAST)
    state.pending = []
    state.write(run)
    return state
