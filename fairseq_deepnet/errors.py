"""Errors that the user can fix, shown as one line instead of a traceback."""

import argparse
import difflib
import errno
import io
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn


class ConfigurationError(ValueError):
    """Error for contradictory or unsupported options and for damaged files.

    The message names the options or the file, and a remedy. A program can catch the error as a
    ValueError; fairseq's commands print only its message (see `show_in_one_line`).
    """


def did_you_mean(names: str, valid: Iterable[str]) -> str:
    """Return a hint with similar valid names to end an error message, or "" if none exist."""
    valid = list(valid)
    near = (difflib.get_close_matches(name, valid, n=1, cutoff=0.75) for name in names.split())
    matches = [match for matches in near for match in matches]
    return f"; did you mean {' and '.join(matches)}?" if matches else ""


def explain_usage(message: str, parser: argparse.ArgumentParser) -> str:
    """Return argparse's error message with suggestions instead of a list of all valid names."""
    head, is_unknown, words = message.partition("unrecognized arguments: ")
    if is_unknown:
        options = " ".join(word.partition("=")[0] for word in words.split())
        return f"unknown {words}{did_you_mean(options, parser._option_string_actions)}"
    head, _, choices = message.partition(" (choose from ")
    hint = did_you_mean(head.rpartition(" ")[2].strip("'"), re.findall(r"[\w.-]+", choices))
    if hint or len(message) > 400:
        return head + (hint or "; fairseq-train --help lists the valid names")
    return message.replace("invalid <lambda> value", "invalid value")


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one-line ValueErrors that suggest the nearest valid name."""

    def error(self, message: str) -> NoReturn:
        """Raise a one-line ValueError, whereas argparse would print several lines of usage."""
        text = explain_usage(message, self)
        if message.startswith("unrecognized") and not text.endswith("?"):
            if self.takes_extra:
                text += "; options of fairseq come after --"
            elif "key=value" in self.format_usage():
                text += "; give options of fairseq as key=value, such as encoder-layers=3"
        raise ValueError(text)

    @property
    def takes_extra(self) -> bool:
        """True if the subcommand passes the arguments after -- to fairseq."""
        return any(action.dest == "extra" for action in self._actions)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse a subcommand's arguments, in any order; keep those after -- for fairseq."""
        end = words.index("--") if self.takes_extra and "--" in words else len(words)
        if {"-h", "--help"} & set(words[:end]):
            return self.parse_args(["--help"])  # intermixed parsing would show no defaults
        args = self.parse_intermixed_args(words[:end])
        if self.takes_extra:
            if args.extra:
                raise ValueError(
                    f"unexpected word {args.extra[0]!r}; options of fairseq come after --"
                )
            args.extra = list(words[end + 1 :])
        return args


def positive(text: str) -> int:
    """Return an option's integer; raise ArgumentTypeError if it is not positive."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def real(text: str) -> float:
    """Return an option's number; raise ArgumentTypeError if it is infinite or nan."""
    if not math.isfinite(value := float(text)):
        raise argparse.ArgumentTypeError(f"{text} is not finite")
    return value


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_A_FILE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


def in_one_line(error: BaseException) -> str | None:
    """Return the message of an error that the user can fix, or None if a traceback is needed.

    The user can fix operating-system errors that name a file or report a full disk. Messages about
    other errors, such as a reset connection, are useless without a traceback.
    """
    if isinstance(error, ConfigurationError):
        return str(error)
    if isinstance(error, OSError):
        named = error.filename is not None or isinstance(error, _OF_A_FILE)
        return str(error) if named or error.errno in _FULL else None
    return None


def is_fairseq_command() -> bool:
    """Return True if this process is one of fairseq's commands rather than a user's program."""
    program = Path(sys.argv[0])
    return program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli"


def show_in_one_line() -> None:
    """Make fairseq's commands print one line and exit with status 2 on errors that users can fix.

    Otherwise a traceback would hide this line. Other exceptions are passed to the previous
    exception hook, and other programs keep their hook.
    """
    previous = sys.excepthook
    if not is_fairseq_command():
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        line = in_one_line(error)
        if line is None:
            previous(kind, error, traceback)
            return
        # torch.distributed's hook calls this one, captures stderr and drops it after SystemExit
        collected = isinstance(sys.stderr, io.StringIO)
        print(f"fairseq_deepnet: error: {line}", file=sys.__stderr__ if collected else sys.stderr)
        # without it, Python would exit with status 1
        raise SystemExit(2)

    sys.excepthook = hook
