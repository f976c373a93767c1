"""Environment variables as defaults of a subcommand's options: GPUS=8 stands for --gpus 8.

Only scripts ask for them (`deepnet SUBCOMMAND --variables`): a shell may have exported DATA or OUT
for something else. An empty variable counts as not set. A switch takes 0 or 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from fairseq_deepnet.errors import did_you_mean

_NUMBERS = {int: "a whole number", float: "a number"}


def set_defaults(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Let the variables of the environment be the defaults of the parser's options.

    Raises ValueError, naming the variable, for a value that the option would refuse, and for
    DRY_RUN=1 where there is no --dry-run: a command that ignored it would write.
    """
    if environment.get("DRY_RUN", "0") != "0" and "--dry-run" not in parser._option_string_actions:
        raise ValueError(
            f"DRY_RUN is {environment['DRY_RUN']!r}, and this has no dry run; unset it"
        )
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        for name in map(variable_of, action.option_strings):
            if environment.get(name) and action.nargs not in ("+", "*"):
                action.default = _convert(name, environment[name], action)
                action.required = False


def variable_of(option: str) -> str:
    """Return the variable of an option: CPU_PROCESSES of --cpu-processes."""
    return option.lstrip("-").upper().replace("-", "_")


def _convert(name: str, text: str, action: argparse.Action) -> Any:
    if action.nargs == 0:
        if text not in ("0", "1"):
            raise ValueError(f"{name} is {text!r}; it must be 0 or 1")
        return action.const if text == "1" else action.default
    convert: Any = action.type or str
    try:
        value = convert(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{name} is {text!r}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} is {text!r}; it must be {_NUMBERS.get(convert, error)}"
        ) from error
    choices = [] if action.choices is None else list(map(str, action.choices))
    if choices and text not in choices:
        allowed = " or ".join(choices)
        raise ValueError(f"{name} is {text!r}; it must be {allowed}{did_you_mean(text, choices)}")
    return value
