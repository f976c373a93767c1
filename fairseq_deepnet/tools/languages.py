"""What is known of each language: names in the corpora, script, tokenisation, amount of text.

The table itself is languages.yaml; its head explains the columns.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

FILE: Final = Path(__file__).with_name("languages.yaml")
HIGH_RESOURCE: Final = 900_000
LOW_RESOURCE: Final = 100_000
RESOURCE_CLASSES: Final = ("high", "medium", "low")
CODES: Final = ("own", "flores101", "m2m100")


@dataclass(frozen=True)
class Language:
    """One language; what a corpus or library does not have of it is None.

    Args:
        code: this project's code for it, which is OPUS-100's where that has the language
        name: in English
        script: ISO 15924
        bleu: sacreBLEU's tokenisation of text in it
        flores101: its name in Flores-101
        m2m100: its code in M2M-100
        opus100: training lines of its pair with English in OPUS-100
        langid: its label in py3langid
        ted: its column in the TED talks of Qi et al. 2018, for the 28 languages that are scored
        also: other spellings of the code
    """

    code: str
    name: str
    script: str
    bleu: str = "13a"
    flores101: str | None = None
    m2m100: str | None = None
    opus100: int | None = None
    langid: str | None = None
    ted: str | None = None
    also: tuple[str, ...] = ()

    def in_codes_of(self, codes: str) -> str:
        """Return its code in a naming of CODES; ValueError where that has no name for it."""
        if codes not in CODES:
            raise ValueError(f"there are no codes {codes!r}; choose from {', '.join(CODES)}")
        name: str | None = self.code if codes == "own" else getattr(self, codes)
        if name is None:
            raise ValueError(f"{codes} has no code for {self.name} ({self.code})")
        return name


@functools.cache
def languages() -> dict[str, Language]:
    """Return every language by its code, in alphabetical order."""
    table = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {
        code: Language(code, **{**entry, "also": tuple(entry.get("also", ()))})
        for code, entry in table.items()
    }


@functools.cache
def _by_any_name() -> dict[str, Language]:
    names: dict[str, Language] = {}
    for language in languages().values():
        for name in (language.flores101, language.m2m100, *language.also):
            if name is not None:
                names.setdefault(name, language)
    return names | languages()


def find(code: str) -> Language | None:
    """Return the language of a code of OPUS-100, Flores-101, M2M-100 or WMT; None if unknown."""
    return _by_any_name().get(code)


def language(code: str) -> Language:
    """Do as `find`, with a ValueError for an unknown code."""
    found = find(code)
    if found is None:
        raise ValueError(f"{code!r} is no language known here; {FILE.name} lists them")
    return found


def resource_class(lines: int) -> str:
    """Return high, medium or low, by the training lines of a pair with English.

    The bounds are those of Zhang et al. 2020 (arXiv 2004.11867): high from 0.9 million lines, low
    below 0.1 million. On OPUS-100 they give 45 high, 28 medium and 26 low pairs; 21 of the low ones
    have a test set.
    """
    if lines >= HIGH_RESOURCE:
        return "high"
    return "low" if lines < LOW_RESOURCE else "medium"
