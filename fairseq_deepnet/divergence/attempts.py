"""fallback.json: which fallbacks a run has taken, so that it goes on with them after a kill."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigurationError
from ..provenance import write_json

NAME: Final = "fallback.json"


@dataclass
class Attempts:
    """What fallback.json holds.

    Arguments:
        step: fallbacks taken
        overrides: option -> value, of all of them together; `fp32` has an empty value
        resumes: whether the run goes on from a checkpoint of its own, rather than from the start
        running: the attempt that rank 0 is at
        history: for each fallback: step, changes, event, and the update it went on from
    """

    step: int = 0
    overrides: dict[str, str] = field(default_factory=dict)
    resumes: bool = False
    running: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Into a run folder; whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / NAME, asdict(self))


def read(folder: Path) -> Attempts:
    """The state of a run folder; a new one where there is none.

    Raises:
        ConfigurationError: for a file that does not hold what `Attempts.write` wrote.
    """
    file = folder / NAME
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return Attempts(**held)
    except FileNotFoundError:
        return Attempts()
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{file} is damaged ({error}); remove it to train without the fallbacks taken so far"
        ) from error
