"""fallback.json: which fallbacks a run has taken, so that it goes on with them after a kill."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ..checkpoints import LAST
from ..errors import ConfigurationError
from ..records import Shape, read_record, write_record
from . import good_states

NAME: Final = "fallback.json"
_SHAPE: Final[Shape] = {
    "step?": int,
    "overrides?": dict,
    "resumes?": bool,
    "running?": int,
    "history?": [dict],
    "pending?": {"folder": str, "good?": int},
    "exhausted?": int,
}
PART: Final = "good.part"
"""The good state in the folder of checkpoints, before it takes the name of the last one."""


@dataclass
class Pending:
    """What is still to be moved: written before, so that a kill in between loses nothing.

    Arguments:
        folder: in the folder of checkpoints, for what came after the good state
        good: update of that; None for the beginning
    """

    folder: str
    good: int | None


@dataclass
class Attempts:
    """What fallback.json holds.

    Arguments:
        step: fallbacks taken
        overrides: option -> value, of all of them together; `fp32` has an empty value
        resumes: whether the run goes on from a checkpoint of its own, rather than from the start
        running: the attempt that rank 0 is at
        history: for each fallback: step, changes, values before, event, the update it went on from
        pending: what the last of them has still to move
        exhausted: steps that --fallbacks had when the run diverged with none left
    """

    step: int = 0
    overrides: dict[str, str] = field(default_factory=dict)
    resumes: bool = False
    running: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    pending: Pending | None = None
    exhausted: int = 0

    def write(self, folder: Path) -> None:
        """Into a run folder; whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder / NAME, asdict(self))

    def first_value(self, option: str) -> str | None:
        """What an option was before the first fallback that changed it; None where none did."""
        values = [taken["before"].get(option) for taken in self.history if "before" in taken]
        return next((value for value in values if value is not None), None)


def read(folder: Path) -> Attempts:
    """The state of a run folder; a new one where there is none.

    Raises:
        ConfigurationError: for a file that does not hold what `Attempts.write` wrote.
    """
    file = folder / NAME
    try:
        held = read_record(file, _SHAPE)
        if held.get("pending"):
            held["pending"] = Pending(**held["pending"])
        return Attempts(**held)
    except FileNotFoundError:
        return Attempts()
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{file} is damaged ({error}); remove it to train without the fallbacks taken so far"
        ) from error


def finish(folder: Path, save_dir: Path) -> None:
    """Move what came after the good state aside and put that in its place, as far as it is still
    to be done; rank 0's.

    Arguments:
        folder: of fallback.json
        save_dir: of the checkpoints
    """
    state = read(folder)
    if state.pending is None:
        return
    part, good = save_dir / PART, state.pending.good
    if good is None or part.is_file():
        good_states.set_aside(save_dir, good, save_dir / state.pending.folder)
    if good is not None and part.is_file():
        part.replace(save_dir / LAST)
    state.pending = None
    state.write(folder)
