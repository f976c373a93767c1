"""fairseq's command-line parser, called from Python.

`deepnet options` prints the options of an architecture, which fairseq-train --help omits.
"""

import argparse
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from fairseq_deepnet.errors import explain_usage
from fairseq_deepnet.files import PACKAGE

MODEL_GROUP: Final = "Model-specific configuration"
"""Heading under which fairseq lists the options of an architecture."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Python warnings, and log messages below the level of errors."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _parse(
    arguments: Sequence[str], generation: bool = False
) -> tuple[argparse.ArgumentParser, Any]:
    """Return fairseq's parser and the parsed arguments; raise ValueError if fairseq would exit."""
    from fairseq import options

    # fairseq imports a user-dir's models only if the package is not imported yet
    import fairseq_deepnet.models  # noqa: F401

    # these warn on every call that the package "has already been imported"
    for noisy in ("fairseq.utils", "hydra"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    parser = options.get_generation_parser() if generation else options.get_training_parser()

    def refuse(message: str) -> NoReturn:
        raise ValueError(explain_usage(message, parser))

    parser.error = refuse
    return parser, options.parse_args_and_arch(parser, ["--user-dir", str(PACKAGE), *arguments])


def parse_training(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse arguments as fairseq-train does, including the architecture's defaults."""
    return _parse(arguments)[1]


def parse_generation(arguments: Sequence[str]) -> Any:
    """Return fairseq-generate's configuration."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return convert_namespace_to_omegaconf(_parse(arguments, generation=True)[1])


def read_options(words: Sequence[str]) -> dict[str, bool | int | str]:
    """Parse a command line into a dict from option names to values; a switch has the value True.

    fairseq's parser checks the names and values later.

    Raises:
        ValueError: if an argument is neither an option nor an option's value.
    """
    options: dict[str, bool | int | str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"{word!r} belongs to no option of fairseq-train")
        name, equals, value = word[2:].partition("=")
        if not equals and (not rest or rest[0].startswith("--")):
            options[name] = True
            continue
        value = value if equals else rest.pop(0)
        # a whole number becomes an int, so that the recorded config shows it as a number
        options[name] = int(value) if re.fullmatch(r"-?[1-9]\d*|0", value) else value
    return options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet options`."""
    arch = "architecture (%(default)s)"
    parser.add_argument("arch", nargs="?", default="deepnet_transformer", help=arch)


def run(args: argparse.Namespace) -> int:
    """Print the options of the architecture, without those that our models refuse."""
    parser, _ = _parse(["DATA", "--arch", args.arch])
    from fairseq_deepnet.models.options import UNSUPPORTED

    refused = UNSUPPORTED if args.arch.startswith("deepnet_") else ()
    group = next(group for group in parser._action_groups if group.title == MODEL_GROUP)
    formatter = parser._get_formatter()
    formatter.start_section(f"options of {args.arch}, besides fairseq-train's own")
    formatter.add_arguments(a for a in group._group_actions if a.dest not in refused)
    formatter.end_section()
    sys.stdout.write(formatter.format_help())
    return 0
