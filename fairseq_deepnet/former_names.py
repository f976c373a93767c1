"""Names that options had once: they still work, and one line says the name of today."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .files import say

TRAINING: Final[Mapping[str, str]] = {"checkpoint-every": "checkpoint-activations-every"}
"""Options of fairseq-train, as configs write them."""

COMMANDS: Final[Mapping[str, str]] = {
    "--output": "--out",
    "--source": "--src",
    "--target": "--tgt",
}
"""Options of every `deepnet` subcommand: in small letters what scripts call OUT, SRC and TGT."""

TRANSLATE: Final[Mapping[str, str]] = {**COMMANDS, "--batch": "--batch-sentences"}
"""Of `deepnet translate`: elsewhere a batch is counted in tokens."""

SUBCOMMANDS: Final[Mapping[str, tuple[str, Sequence[str], Mapping[str, str]]]] = {
    "pairs": (
        "preprocess pairs",
        ("--vocab-size=8000", "--character-coverage=1.0"),
        {"--kind": "--subwords"},
    ),
    "record": ("train --record-only", (), {}),
    "monolingual": (
        "preprocess language",
        (),
        {"--kind": "--subwords", "--language": "--lang-code"},
    ),
}
"""Former name -> that of today, defaults that were others, and options with another name."""

FORMER_STAGES: Final[Mapping[str, str]] = {
    "clean": "preprocess pair",
    "subwords": "preprocess pair",
    "moses": "preprocess moses",
    "iwslt14": "preprocess iwslt14",
    "wmt17": "preprocess wmt17",
    "opus100": "preprocess opus100",
    "evaluation-set": "m2m",
}
"""Subcommands that only scripts called -> that of which they are stages."""


@functools.cache
def announce(former: str, name: str) -> None:
    """Say once in a process that an option has another name now."""
    say(f"{former} is now called {name}; the former name still works")


def training_option(name: str) -> str:
    """Return the name that an option of fairseq-train has today."""
    if name not in TRAINING:
        return name
    announce(name, TRAINING[name])
    return TRAINING[name]


def subcommand_of_today(words: Sequence[str]) -> list[str]:
    """Return the words of a command with today's name of its subcommand, which takes the same."""
    if words[0] not in SUBCOMMANDS:
        return list(words)
    name, defaults, options = SUBCOMMANDS[words[0]]
    announce(f"deepnet {words[0]}", f"deepnet {name}")
    rest = (word.partition("=") for word in words[1:])
    renamed = [options.get(option, option) + equals + value for option, equals, value in rest]
    return [*name.split(), *defaults, *renamed]


def of_today(subcommand: str, words: Sequence[str]) -> list[str]:
    """Return the words of a `deepnet` subcommand with today's names of its own options."""
    names = TRANSLATE if subcommand == "translate" else COMMANDS
    own = words.index("--") if "--" in words else len(words)
    found = []
    for word in words[:own]:
        option, equals, value = word.partition("=")
        if option in names:
            announce(option, names[option])
        found.append(names.get(option, option) + equals + value)
    return [*found, *words[own:]]


class FormerName(argparse.Action):
    """An option of fairseq-train under its former name: hidden, stored where the new one is."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        hidden = argparse.SUPPRESS
        super().__init__(option_strings, dest, default=hidden, help=hidden)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        training_option(self.option_strings[0].removeprefix("--"))
        setattr(namespace, self.dest, values)
