"""Which words a model's numbers stand for: kept in its checkpoint, compared when it is built.

A dictionary with two lines swapped has the right size, and a model would translate to other words.
"""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq.tasks import FairseqTask

from .errors import ConfigurationError

RECORD = "dictionary_record"
"""Of a model's arguments: SHA-256 of the words of each side, in their order."""


def digest_of_words(symbols: Sequence[str]) -> str:
    """Return the SHA-256 of a dictionary's entries in order; counts say nothing to a model."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()


def record_dictionaries(args: Namespace, task: Any) -> None:
    """Write what a task's dictionaries hold into the arguments of a model that is being built.

    A task that only stands for the size of a vocabulary has no words to record.

    Raises:
        ConfigurationError: where `args` come from a checkpoint of other dictionaries.
    """
    if not isinstance(task, FairseqTask) or task.source_dictionary is None:
        return
    sides = {"source": task.source_dictionary, "target": task.target_dictionary}
    found = {side: one.symbols for side, one in sides.items() if one is not None}
    refuse_others(getattr(args, RECORD, None), found)
    setattr(args, RECORD, {side: digest_of_words(symbols) for side, symbols in found.items()})


def refuse_others(record: Mapping[str, str] | None, found: Mapping[str, Sequence[str]]) -> None:
    """Compare dictionaries with what a checkpoint recorded; one that recorded nothing takes any.

    Raises:
        ConfigurationError: for the first that differs.
    """
    for side, symbols in found.items():
        if record and record.get(side) not in (None, digest_of_words(symbols)):
            raise ConfigurationError(
                f"the {side} dictionary is not the one that the model was trained with: its"
                f" {len(symbols):,} words, or their order, are others; name the data folder of the"
                " training, or copy its dict*.txt again"
            )
