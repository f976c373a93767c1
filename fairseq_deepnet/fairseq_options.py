"""fairseq's own command-line parser, asked from within: what options there are and mean."""

from __future__ import annotations

import argparse
import difflib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


def user_dir() -> str:
    """Absolute path of this package, for `--user-dir`: valid from every working directory."""
    return str(Path(__file__).resolve().parent)


class _RefusedError(ValueError):
    """What a fairseq parser would have printed before it ended the process."""


def _shorten(message: str) -> str:
    """`invalid choice` without the hundred choices, but with those that are near."""
    if "invalid choice: " not in message:
        return message
    head, _, tail = message.partition(" (choose from ")
    value = head.rsplit("invalid choice: ", 1)[1].strip("'\"")
    choices = [choice.strip(" '\")") for choice in tail.split(",")]
    near = difflib.get_close_matches(value, choices, n=3, cutoff=0.5)
    return f"{head}; did you mean {' or '.join(near)}?" if near else head


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(_shorten(message))


def _new_parser() -> argparse.ArgumentParser:
    from fairseq import options

    # it would tell on every call that this package "has already been imported"
    logging.getLogger("fairseq.utils").setLevel(logging.WARNING)
    parser = options.get_training_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    return parser


def training_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """fairseq-train's parser, with the options of the architecture, task, criterion and optimiser
    that `arguments` choose. Raises ValueError with fairseq's message where it would exit.
    """
    from fairseq import options

    parser = _new_parser()
    options.parse_args_and_arch(parser, ["--user-dir", user_dir(), *arguments], parse_known=True)
    return parser


def parse_training(arguments: Sequence[str]) -> argparse.Namespace:
    """What fairseq-train would make of `arguments`, architecture defaults included."""
    from fairseq import options

    parser = _new_parser()
    return options.parse_args_and_arch(parser, ["--user-dir", user_dir(), *arguments])


def option_actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Option name without its dashes -> what argparse does with it."""
    return {
        name[2:]: action
        for name, action in parser._option_string_actions.items()
        if name.startswith("--")
    }


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint that names the nearest known option, or nothing where none is near."""
    found = difflib.get_close_matches(name.replace("_", "-").lstrip("-"), list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""
