"""Properties of languages: names in the corpora, tokenisation and amount of text.

They are listed in languages.yaml, whose header explains the columns.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

FILE: Final = Path(__file__).with_name("languages.yaml")


@dataclass(frozen=True)
class Language:
    """A language. The field for a corpus or library that lacks the language is None."""

    code: str  # this project's code, equal to OPUS-100's code if there is one
    name: str  # in English
    bleu: str = "13a"  # tokenizer of sacreBLEU
    flores101: str | None = None  # name in Flores-101
    m2m100: str | None = None  # code in M2M-100
    opus100: int | None = None  # number of training lines paired with English in OPUS-100
    langid: str | None = None  # label in py3langid
    ted: str | None = None  # column in the TED talks of Qi et al. (2018), for 28 scored languages
    also: tuple[str, ...] = ()  # other spellings of the code


@functools.cache
def languages() -> dict[str, Language]:
    """Return all languages by code, in alphabetical order."""
    table = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {
        code: Language(code, **{**entry, "also": tuple(entry.get("also", ()))})
        for code, entry in table.items()
    }


@functools.cache
def find(code: str) -> Language | None:
    """Return the language that has this code in OPUS-100, Flores-101, M2M-100 or WMT, or None."""
    for entry in languages().values():
        if code in (entry.code, entry.flores101, entry.m2m100, *entry.also):
            return entry
    return None
