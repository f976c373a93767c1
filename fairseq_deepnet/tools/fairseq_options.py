"""fairseq's own command-line parser, asked from within: what options there are and mean.

`deepnet options` prints those of an architecture, which fairseq-train --help leaves out.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from fairseq_deepnet.errors import did_you_mean

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


def user_dir() -> str:
    """Absolute path of this package, for `--user-dir`: valid from every working directory."""
    return str(Path(__file__).resolve().parents[1])


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


def _register() -> None:
    """Register our models: fairseq imports those of a --user-dir only with the package itself."""
    import fairseq_deepnet.models  # noqa: F401


def _new_parser() -> argparse.ArgumentParser:
    from fairseq import options

    _register()
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


def parse_generation(arguments: Sequence[str]) -> Any:
    """fairseq-generate's configuration for `arguments`. Raises ValueError where it would exit."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    _register()
    for noisy in ("fairseq.utils", "hydra"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    parser = options.get_generation_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    words = ["--user-dir", user_dir(), *arguments]
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))


def count_parameters(args: argparse.Namespace) -> int | None:
    """Parameters of the model that parsed fairseq-train arguments describe; None if unknown.

    The model is built without memory (on the meta device), so that what it refuses is found before
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
    """Option name without its dashes -> what argparse does with it."""
    return {
        name[2:]: action
        for name, action in parser._option_string_actions.items()
        if name.startswith("--")
    }


def read_options(words: Sequence[str], choosing: Sequence[str]) -> dict[str, bool | int | str]:
    """fairseq-train's options on a command line, by name; switches are true.

    Arguments:
        words: the command line
        choosing: options that decide which others there are (`--arch`), unless `words` has them

    Raises ValueError for what fairseq-train does not know and for words that belong to no option.
    """
    known = option_actions(training_parser(["DATA", *choosing, *_choices(words)])) if words else {}
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
        elif equals:
            found[name] = _typed(value)
        elif rest:
            found[name] = _typed(rest.pop(0))
        else:
            raise ValueError(f"{word}: a value is expected")
    return found


def _choices(words: Sequence[str]) -> list[str]:
    """Those of the words that choose which other options there are."""
    chosen: list[str] = []
    for index, word in enumerate(words):
        if word.startswith("--") and word[2:].partition("=")[0] in CHOOSING:
            chosen += words[index : index + (1 if "=" in word else 2)]
    return chosen


def _typed(word: str) -> int | str:
    """A whole number as one, so that it is written like one; anything else as it is."""
    return int(word) if re.fullmatch(r"-?[1-9]\d*|0", word) else word


def _of_our_models() -> dict[str, argparse.Action]:
    from fairseq_deepnet.models.scheme_options import add_scheme_arguments

    parser = argparse.ArgumentParser(add_help=False)
    add_scheme_arguments(parser)
    return option_actions(parser)


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint: that only our models have the option, which known one is nearest, or nothing."""
    if name.replace("_", "-") in _of_our_models():
        return (
            "; only our models have it: --arch deepnet_transformer (with --residual-scheme post-ln"
            " --init stock it is fairseq's own Transformer)"
        )
    return did_you_mean(name.replace("_", "-").lstrip("-"), known)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet options`."""
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
