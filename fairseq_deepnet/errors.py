"""Errors that are the user's to mend, shown as one line instead of a traceback."""

import difflib
import errno
import io
import os
import re
import sys
from collections.abc import Iterable
from types import TracebackType


class ConfigurationError(ValueError):
    """Options that contradict each other or that this plugin cannot honour; damaged files.

    The message names the options or the file, and the remedy. In a program it is an ordinary
    ValueError; on the command line `show_in_one_line` prints it alone.
    """


_REMEDIES = {
    errno.ENOSPC: "make room, or write elsewhere",
    errno.EDQUOT: "the quota is used up: make room, or write elsewhere",
    errno.EFBIG: "the limit on a file's size is reached (ulimit -f)",
    errno.EACCES: "change its permissions, or use another place",
    errno.EPERM: "change its permissions, or use another place",
    errno.EROFS: "write elsewhere",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: the known name that is nearest, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def describe_os_error(error: OSError) -> str:
    """Return an error of the file system in one line: which file, what happened, what to do."""
    if error.errno is None or error.strerror is None:
        return " ".join(str(error).split()) or type(error).__name__
    places = " -> ".join(
        os.fsdecode(name) if isinstance(name, bytes) else str(name)
        for name in (error.filename, error.filename2)
        if name is not None
    )
    remedy = _REMEDIES.get(error.errno)
    return f"{places}{': ' * bool(places)}{error.strerror}{f'; {remedy}' if remedy else ''}"


# torch.multiprocessing.spawn shows the traceback of a rank that has raised as text.
_OF_A_RANK = re.compile(rf"^{re.escape(__name__)}\.ConfigurationError: (.*)", re.M)


def in_one_line(error: BaseException) -> str | None:
    """Return an error that the user can mend in one line; None for one that needs its traceback."""
    if isinstance(error, ConfigurationError):
        return str(error)
    if isinstance(error, OSError):
        return describe_os_error(error)
    if type(error).__name__ == "ProcessRaisedException":
        found = _OF_A_RANK.findall(str(error))
        return found[-1] if found else None
    return None


def show_in_one_line() -> None:
    """Let errors that the user can mend end a fairseq command with one line and exit status 2.

    fairseq's commands print a traceback for every exception; for a mistyped option or a full disk
    that hides the one line that matters. Other exceptions keep the hook that was there.
    """
    previous = sys.excepthook
    if getattr(previous, "shows_configuration_errors", False):
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        line = in_one_line(error)
        if line is None:
            previous(kind, error, traceback)
            return
        # torch.distributed's own hook, around this one, collects stderr and loses it to SystemExit
        collected = isinstance(sys.stderr, io.StringIO)
        print(f"fairseq_deepnet: error: {line}", file=sys.__stderr__ if collected else sys.stderr)
        # Python itself takes the status of a hook that exits; it is 1 otherwise
        raise SystemExit(2)

    hook.shows_configuration_errors = True  # type: ignore[attr-defined]
    sys.excepthook = hook
