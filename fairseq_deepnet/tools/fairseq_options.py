"""fairseq's own command-line parser, asked from within: what options there are and mean.

`deepnet options` prints those of an architecture, which fairseq-train --help leaves out.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from fairseq_deepnet.errors import did_you_mean, name_nearest_choice
from fairseq_deepnet.files import PACKAGE

CHOOSING: Final = ("arch", "task", "criterion", "optimizer", "lr-scheduler")
"""Options that decide which other options there are."""

MODEL_GROUP: Final = "Model-specific configuration"
"""The heading under which fairseq lists the options of an architecture."""


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what fairseq logs below an error, and warnings."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _refuse(message: str) -> NoReturn:
    """Raise what a parser would have printed."""
    raise ValueError(name_nearest_choice(message))


def _parse(
    arguments: Sequence[str], generation: bool = False, parse_known: bool = False
) -> tuple[argparse.ArgumentParser, Any]:
    """Return fairseq's parser and what it makes of the arguments (with what it does not know)."""
    from fairseq import options

    # fairseq imports those of a --user-dir only with the package itself
    import fairseq_deepnet.models  # noqa: F401

    # they would warn on every call that this package "has already been imported"
    for noisy in ("fairseq.utils", "hydra"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    parser = options.get_generation_parser() if generation else options.get_training_parser()
    parser.error = _refuse
    words = ["--user-dir", str(PACKAGE), *arguments]
    return parser, options.parse_args_and_arch(parser, words, parse_known=parse_known)


def training_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return fairseq-train's parser, with the options of the architecture, task, criterion and
    optimiser that `arguments` choose. Raises ValueError with fairseq's message where it would exit.
    """
    return _parse(arguments, parse_known=True)[0]


def parse_training(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what fairseq-train would make of `arguments`, architecture defaults included."""
    found: argparse.Namespace = _parse(arguments)[1]
    return found


def parse_generation(arguments: Sequence[str]) -> Any:
    """Return fairseq-generate's configuration. Raises ValueError where it would exit."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return convert_namespace_to_omegaconf(_parse(arguments, generation=True)[1])


def count_parameters(args: argparse.Namespace) -> int | None:
    """Count the parameters of the model that fairseq-train's arguments describe; None if unknown.

    It is built without memory (on the meta device), so that what it refuses is found before
    training starts. Raises ValueError with its reason.
    """
    import torch
    from fairseq import tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    try:
        with quiet(), torch.device("meta"):
            config = convert_namespace_to_omegaconf(args)
            model = tasks.setup_task(config.task).build_model(config.model)
    except AssertionError as error:
        raise ValueError(f"--arch {args.arch} refuses its options: {error}") from error
    except (NotImplementedError, RuntimeError):
        # not every architecture can be built on the meta device; fairseq-train has the last word
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def option_actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return option name without its dashes -> what argparse does with it."""
    return {
        name[2:]: action
        for name, action in parser._option_string_actions.items()
        if name.startswith("--")
    }


def read_options(words: Sequence[str], choosing: Sequence[str]) -> dict[str, bool | int | str]:
    """Return fairseq-train's options on a command line, by name; switches are true.

    `choosing` are those that decide which others there are (`--arch`), unless `words` has them.
    Raises ValueError for what fairseq-train does not know and for words that belong to no option.
    """
    chosen = list(choosing)
    for index, word in enumerate(words):
        if word.startswith("--") and word[2:].partition("=")[0] in CHOOSING:
            chosen += words[index : index + (1 if "=" in word else 2)]
    known = option_actions(training_parser(["DATA", *chosen])) if words else {}
    found: dict[str, bool | int | str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ValueError(f"{word!r} belongs to no option of fairseq-train")
        if name not in known:
            raise ValueError(
                f"{word}: fairseq-train has no such option{nearest(name, list(known))}"
            )
        if known[name].nargs == 0:
            found[name] = True
        elif equals or rest:
            value = value if equals else rest.pop(0)
            # a whole number as one, so that it is written like one
            found[name] = int(value) if re.fullmatch(r"-?[1-9]\d*|0", value) else value
        else:
            raise ValueError(f"{word}: a value is expected")
    return found


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint: that only our models have the option, which known one is nearest, or none."""
    from fairseq_deepnet.models.scheme_options import add_scheme_arguments

    ours = argparse.ArgumentParser(add_help=False)
    add_scheme_arguments(ours)
    if name.replace("_", "-") in option_actions(ours):
        return (
            "; only our models have it: --arch deepnet_transformer (with --residual-scheme post-ln"
            " --init stock it is fairseq's own Transformer)"
        )
    return did_you_mean(name.replace("_", "-").lstrip("-"), known)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet options`."""
    parser.add_argument(
        "arch", nargs="?", default="deepnet_transformer", help="as after --arch (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the options of the architecture: fairseq-train prints its help before it knows it."""
    parser = training_parser(["DATA", "--arch", args.arch])
    group = next(group for group in parser._action_groups if group.title == MODEL_GROUP)
    shown = argparse.ArgumentParser(prog=f"fairseq-train --arch {args.arch}", add_help=False)
    formatter = shown._get_formatter()
    formatter.start_section(f"options of {args.arch}, besides fairseq-train's own")
    formatter.add_arguments(group._group_actions)
    formatter.end_section()
    sys.stdout.write(formatter.format_help())
    return 0
