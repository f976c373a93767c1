"""Records of a model's dictionaries, saved in checkpoints and compared when a model is built.

Swapping two lines of a dictionary keeps its size, but the model then outputs wrong words.
"""

import hashlib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairseq.tasks import FairseqTask

from .checkpoints import language_tokens
from .errors import ConfigurationError

RECORD = "dictionary_record"
"""Name of the model argument that contains the SHA-256 of each side's words, in order."""

LANGUAGES: Final = ("source_lang", "target_lang")


def digest_of_words(symbols: Sequence[str]) -> str:
    """Return the SHA-256 of a dictionary's entries in order, without their counts."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()


def record_dictionaries(args: Namespace, task: Any) -> None:
    """Record a task's dictionaries, if any, in the arguments of a new model.

    Raises:
        ConfigurationError: if `args` come from a checkpoint with different dictionaries or tokens.
    """
    if not isinstance(task, FairseqTask) or task.source_dictionary is None:
        return
    sides = {"source": task.source_dictionary, "target": task.target_dictionary}
    words = {side: entry.symbols for side, entry in sides.items() if entry is not None}
    refuse_others(getattr(args, RECORD, None), words)
    if changes := other_options(args, getattr(task, "args", None), ["langtoks"]):
        raise ConfigurationError(f"the model was trained with {changes}: use the former")
    setattr(args, RECORD, {side: digest_of_words(symbols) for side, symbols in words.items()})
    for name in LANGUAGES:
        if language := getattr(getattr(task, "cfg", None), name, None):
            setattr(args, name, language)  # fairseq may have inferred it from the data's file names


def other_options(trained: Any, chosen: Any, names: Sequence[str]) -> str:
    """Return the named options whose values differ between two models' arguments, or ""."""
    changes = []
    for name in names:
        if hasattr(trained, name) and hasattr(chosen, name):
            if name != "langtoks":
                label = f"--{name.replace('_', '-')} "
                values = (getattr(args, name) or "off" for args in (trained, chosen))
                was, now = ("on" if value is True else value for value in values)
            else:
                tokens = (" ".join(language_tokens(vars(args))) for args in (trained, chosen))
                label, (was, now) = "", (words or "no language tokens" for words in tokens)
            if was != now:
                changes.append(f"{label}{was}, not {now}")
    return "; ".join(changes)


def refuse_others(record: Mapping[str, str] | None, words: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigurationError for the first dictionary that differs from a checkpoint's record.

    Without a record, any dictionary is accepted.
    """
    for side, symbols in words.items():
        if record and record.get(side) not in (None, digest_of_words(symbols)):
            raise ConfigurationError(
                f"the {side} dictionary is not the one that the model was trained with: its"
                f" {len(symbols):,} words, or their order, differ; use the run's data folder,"
                " or copy its dict*.txt again"
            )
