"""Errors that are the user's to mend, shown as one line instead of a traceback."""

import sys
from types import TracebackType


class ConfigurationError(ValueError):
    """Options that contradict each other or that this plugin cannot honour.

    The message names the options and the remedy. In a program it is an ordinary ValueError; on the
    command line `show_in_one_line` prints it alone.
    """


def show_in_one_line() -> None:
    """Let an uncaught ConfigurationError end a fairseq command with its message and exit status 1.

    fairseq's commands print a traceback for every exception; for a mistyped option that hides the
    one line that matters. Other exceptions keep the hook that was there.
    """
    previous = sys.excepthook
    if getattr(previous, "shows_configuration_errors", False):
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        message = _message(error)
        if message is not None:
            print(f"fairseq_deepnet: error: {message}", file=sys.stderr)
        else:
            previous(kind, error, traceback)

    hook.shows_configuration_errors = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _message(error: BaseException) -> str | None:
    """A ConfigurationError's message, also where it ended a process that torch has spawned."""
    if isinstance(error, ConfigurationError):
        return str(error)
    name = f"{ConfigurationError.__module__}.{ConfigurationError.__qualname__}: "
    last = str(error).rstrip().rpartition("\n")[2]
    spawned = type(error).__name__ == "ProcessRaisedException"
    return last.removeprefix(name) if spawned and last.startswith(name) else None
