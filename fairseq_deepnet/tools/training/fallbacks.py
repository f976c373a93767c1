"""--fallbacks: what to change, step by step, when a training has diverged; and doing it.

    "lr*0.5 warmup-updates+1000, lr*0.5, update-freq*2, fp32"

Steps are separated by commas and taken one after another, each on top of those before; a step
holds one or more changes: `option=value`, `option*factor`, `option+number`, or `fp32`, which drops
--fp16, --bf16 and their like. After Marian's --custom-fallbacks.

fallback.json in the run folder says which a run has taken, so that it goes on with them after a
kill. Reading it needs neither torch nor fairseq; taking a step does.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.errors import ConfigurationError, did_you_mean
from fairseq_deepnet.records import read_record, write_record
from fairseq_deepnet.signals import ATTEMPT

_FREQUENCY: Final = "update-freq"
NAME: Final = "fallback.json"
FP32: Final = "fp32"
PRECISIONS: Final = ("fp16", "bf16", "amp", "memory-efficient-fp16", "memory-efficient-bf16")
_RESETS: Final = ("reset-optimizer", "reset-lr-scheduler", "reset-meters", "reset-dataloader")

_CHANGE: Final = re.compile(r"(?P<option>[a-z][a-z0-9-]*)(?P<sign>[=*+])(?P<value>[^\s=*+,]+)")
_FIXED: Final = re.compile(
    r"arch|task|criterion|optimizer|lr-scheduler|user-dir|save-dir|restore-file|residual-scheme"
    r"|scheme-variant|freeze-norms|init|on-divergence|fallbacks|fallback-step|cpu|distributed-.*"
    r"|share-.*"
    r"|(en|de)coder-(layers|embed-dim|ffn-embed-dim|attention-heads|learned-pos|normalize-before)"
)
"""Options that a checkpoint must be met with as it was made, and our own."""
Options = Mapping[str, Any]
"""fairseq-train's options as parsed, by attribute name."""


@dataclass(frozen=True)
class Change:
    """One change; `sign` is "=", "*" or "+", and empty for fp32."""

    option: str
    sign: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.option}{self.sign}{self.value}"

    def applied(self, present: Options) -> str:
        """Return the option's new value, as typed on a command line; fp32 has an empty one."""
        if self.option == FP32:
            return ""
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
        return _typed([max(1, round(number)) if whole else number for number in after])

    def helps(self, present: Options, update: int) -> bool:
        """Return True if it makes a difference to a training from `update` on.

        fp32 changes nothing where it is fp32. A warm-up that is over is not begun again: after it
        the inverse square root's learning rate is lr sqrt(warmup / update), which a longer one
        would raise.
        """
        over = 0 < update >= (present.get("warmup_updates") or 0)
        if self.option == FP32:
            return bool(before(FP32, present))
        if self.option == "warmup-updates" and over:
            return False
        return self.applied(present) != before(self.option, present)


Step = tuple[Change, ...]


def from_last(words: Sequence[str]) -> list[str]:
    """Return a command line that goes on from checkpoint_last.pt, whatever `words` say; a
    checkpoint from elsewhere that they begin with is kept on record, in --continue-once.
    """
    last, resets = "checkpoint_last.pt", {f"--{name}" for name in _RESETS}
    kept = [word for word in words if word not in resets]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--restore-file", default=last)
    begun = parser.parse_known_args(kept)[0].restore_file
    elsewhere = [] if begun == last else [f"--continue-once={begun}"]
    return [*kept, f"--restore-file={last}", *elsewhere]


def parse(text: str) -> tuple[Step, ...]:
    """Return the steps of --fallbacks; ConfigurationError names what cannot be read."""
    steps = tuple(tuple(map(_change, step.split())) for step in text.split(","))
    if not all(steps):
        raise ConfigurationError(
            f"--fallbacks {text!r}: a step is empty; write steps like 'lr*0.5, update-freq*2'"
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
    change = Change(**match.groupdict())
    if _FIXED.fullmatch(change.option):
        raise ConfigurationError(
            f"--fallbacks: {change} would change the model or where it is trained, and no"
            " checkpoint could be gone on from; change learning rate, warm-up, batch or the like"
        )
    if change.sign != "=" and _number(change.value) is None:
        raise ConfigurationError(f"--fallbacks: {change}: {change.value!r} is no number")
    return change


def steps_of(text: str | None, present: Options) -> tuple[Step, ...]:
    """Return the steps of --fallbacks, or the default's as far as this training has the options.

    Raises:
        ConfigurationError: for what cannot be read, or changes what this training has not.
    """
    if text is not None:
        steps = parse(text)
        for step in steps:
            overrides(step, present)  # refuses what is not there
        return steps
    from fairseq_deepnet.divergence.options import DEFAULT_FALLBACKS

    has = {FP32, *(name.replace("_", "-") for name in present)}
    steps = parse(DEFAULT_FALLBACKS)
    known = [tuple(change for change in step if change.option in has) for step in steps]
    return tuple(step for step in known if step)


def overrides(step: Step, present: Options) -> dict[str, str]:
    """Return option -> new value, as typed on a command line; fp32 has an empty one."""
    return {change.option: change.applied(present) for change in step}


def shown(changes: Mapping[str, str]) -> str:
    """Return overrides as a person would type them."""
    return " ".join(
        FP32 if name == FP32 else f"--{name} {value}" for name, value in changes.items()
    )


def before(option: str, present: Options) -> str:
    """Return an option as this training has it; for fp32, the precisions that it gives up."""
    if option == FP32:
        return " ".join(name for name in PRECISIONS if present.get(name.replace("-", "_")))
    return _typed(present[option.replace("-", "_")])


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _typed(value: Any) -> str:
    """Return a parsed value as typed on a command line; lists with commas."""
    # ten digits: 0.009 * 0.5 is not to read 0.0045000000000000005
    texts = (f"{item:.10g}" if isinstance(item, float) else str(item) for item in _list(value))
    return ",".join(texts)


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
class Pending:
    """What is still to be moved: written before, so that a kill in between loses nothing."""

    folder: str  # in the folder of checkpoints, for what came after the good state
    good: int | None  # update of that; None for the beginning
    file: str  # of the good state


@dataclass
class FallbackState:
    """What fallback.json holds."""

    step: int = 0  # fallbacks taken
    # option -> value, of all of them together; `fp32` has an empty value
    overrides: dict[str, str] = field(default_factory=dict)
    # whether the run goes on from a checkpoint of its own, rather than from the start
    resumes: bool = False
    # for each fallback: step, changes, values before, event, the update it went on from
    history: list[dict[str, Any]] = field(default_factory=list)
    pending: Pending | None = None  # what the last of them has still to move
    exhausted: int = 0  # steps that --fallbacks had when the run diverged with none left

    def write(self, run: Path) -> None:
        """Write into a run folder; whole or not at all."""
        run.mkdir(parents=True, exist_ok=True)
        write_record(run / NAME, asdict(self))

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command line of an attempt; the last of an option's values counts.

        Args:
            words: the command of an attempt without any, program and all
        """
        if not self.step:
            return list(words)
        dropped = {f"--{name}" for name in PRECISIONS} if FP32 in self.overrides else set()
        kept = [word for word in words if word not in dropped]
        kept += [f"--{name}={value}" for name, value in self.overrides.items() if name != FP32]
        return [*(from_last(kept) if self.resumes else kept), f"--{ATTEMPT}={self.step}"]

    def __str__(self) -> str:
        """Describe the last fallback, for people and for the log."""
        taken = self.history[-1]
        update = taken["from_update"]
        good = f"update {update:,}" if self.resumes else "the beginning (no good state from before)"
        return f"fallback {self.step}: starting again from {good} with {shown(taken['overrides'])}"


@dataclass(frozen=True)
class SupervisorPlan:
    """What the supervisor is to start."""

    # fairseq-train or its launcher, with all options; empty where there is nothing to do
    command: tuple[str, ...] = ()
    # steps to take when it diverges; None where it is to end then
    fallbacks: tuple[Step, ...] | None = None
    # fallbacks that the run has taken before
    state: FallbackState = field(default_factory=FallbackState)
    # what further nodes compare with their own plan; None where there are none
    announcement: dict[str, Any] | None = None
    # how the run began, where the command goes on otherwise
    first: tuple[str, ...] = ()

    def attempt(self, state: FallbackState) -> list[str]:
        """Return the command line of an attempt after the fallbacks that a run has taken."""
        begins_again = state.step > self.state.step and not state.resumes
        return state.command((begins_again and self.first) or self.command)


def read(run: Path) -> FallbackState:
    """Return the state of a run folder; a new one where there is none.

    Raises:
        ConfigurationError: for a file that does not hold what `FallbackState.write` wrote.
    """
    file = run / NAME
    try:
        held = read_record(file, {"step": int, "overrides": dict, "history": list})
        if held.get("pending"):
            held["pending"] = Pending(**held["pending"])
        return FallbackState(**held)
    except FileNotFoundError:
        return FallbackState()
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{file} is damaged ({error}); remove it to train without the fallbacks taken so far"
        ) from error


def follow_devices(state: FallbackState, present: Options) -> None:
    """Take a factor of --update-freq times what the recipe has derived from these devices."""
    steps = [past["changes"] for past in state.history if past.get("changes")]
    changes = [c for step in steps for c in parse(step)[0] if c.option == _FREQUENCY]
    if not changes or any(change.sign != "*" for change in changes):
        return
    options = dict(present)
    for change in changes:
        state.overrides[_FREQUENCY] = change.applied(options)
        options["update_freq"] = [*map(_number, state.overrides[_FREQUENCY].split(","))]


def refuse_changes(
    run: Path, steps: Sequence[Step], present: Options, derives_batch: bool = False
) -> None:
    """Refuse to go on with a run where that would come to the same, or to naught.

    Args:
        derives_batch: whether --update-freq follows from the recipe's batch and the devices, of
            which there may be others than before.

    Raises:
        ConfigurationError: where the run has diverged with the last of these steps, or where an
            option that a fallback changed is not as it was at first.
    """
    state = read(run)
    if len(steps) <= state.exhausted:
        raise ConfigurationError(
            f"--fallbacks: this run has diverged after the last of {state.exhausted} steps"
            f" ({run / NAME}); add steps, or set RUN=FOLDER"
        )
    firsts: dict[str, str] = {}
    for taken in reversed(state.history):
        firsts |= taken.get("before", {})
    for option, value in state.overrides.items():
        if option == FP32 or option not in firsts or (derives_batch and option == _FREQUENCY):
            continue
        first, now = firsts[option], before(option, present)
        if now not in (first, value):
            raise ConfigurationError(
                f"--{option} {now} contradicts {run / NAME}, by which this run has fallen back from"
                f" {first} to {value}; give --{option} {first} to go on, or remove that file to"
                " train with the new value"
            )


def take(
    run: Path, steps: Sequence[Step], present: Options, record: Mapping[str, Any]
) -> FallbackState | None:
    """Take the next fallback that changes anything, and roll the run back to its last good state.

    Args:
        present: options of the attempt that has diverged
        record: what fairseq-train left of its end (signals.DIVERGENCE_RECORD)

    Returns the run's state; None where no fallback is left.
    """
    from fairseq_deepnet.divergence import good_states

    state = read(run)
    good = record.get("good") or {"update": 0, "file": ""}
    left = enumerate(steps[state.step :], state.step + 1)
    helping = (
        (number, tuple(change for change in step if change.helps(present, good["update"])))
        for number, step in left
    )
    number, changes = next((one for one in helping if one[1]), (0, ()))
    if not changes:
        state.exhausted = len(steps)
        state.write(run)
        return None
    made = overrides(changes, present)
    state.history.append(
        {
            "step": number,
            "changes": " ".join(map(str, changes)),
            "before": {name: before(name, present) for name in made},
            "overrides": made,
            "event": {key: record[key] for key in ("update", "kind", "started") if key in record},
            "from_update": good["update"],
        }
    )
    state.step, state.resumes = number, bool(good["file"])
    state.overrides.update(made)
    folder = good_states.free_folder(run / "checkpoints", "diverged", number)
    state.pending = Pending(folder.name, good["update"] if good["file"] else None, good["file"])
    state.write(run)
    return roll_back(run)


def roll_back(run: Path) -> FallbackState:
    """Move what came after the good state aside and put that in its place, as far as it is still to
    be done; return the run's state.
    """
    from fairseq_deepnet.checkpoints import LAST
    from fairseq_deepnet.divergence import good_states
    from fairseq_deepnet.monitoring import records

    state, save_dir = read(run), run / "checkpoints"
    if state.pending is None:
        return state
    aside, source = save_dir / state.pending.folder, save_dir / state.pending.file
    if (run / records.NAME).is_file():
        # what was measured while it diverged: the next attempt makes these updates again
        aside.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run / records.NAME, aside / records.NAME)
    good_states.set_aside(save_dir, state.pending.good, aside)
    if state.pending.good is not None and source.is_file() and source.name != LAST:
        good_states.copy(source, save_dir / LAST)
    state.pending = None
    state.write(run)
    return state
