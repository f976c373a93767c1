"""How many translations are in the wrong language: the off-target rate.

Each line's language is identified by py3langid, whose model comes with its package, among the
languages of the corpus. The identifier errs too: its rate on the references is the floor below
which a rate says nothing, and belongs beside it.
"""

from __future__ import annotations

import functools
import logging
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

from fairseq_deepnet.tools import languages

MINIMUM_LETTERS: Final = 10
"""Lines with fewer letters are not counted: a name, a number or a single word may be any language.
A Chinese character, kana or Korean syllable stands for about three letters, and counts as such."""

_DENSE: Final = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0x20000, 0x323AF))


@dataclass(frozen=True)
class OffTarget:
    """What language the lines of a translation are in.

    Arguments:
        share: share of the counted lines that are not in the target language, 0 to 1; None where
            nothing could be counted
        counted: how many lines were long enough to tell
        by_language: how many of them are in which language, most frequent first
    """

    share: float | None
    counted: int
    by_language: dict[str, int]


def letters(line: str) -> int:
    """Letters and the marks on them, a syllable or word character counting as three."""
    total = 0
    for character in line:
        if unicodedata.category(character)[0] in "LM":
            point = ord(character)
            total += 3 if any(first <= point <= last for first, last in _DENSE) else 1
    return total


@functools.cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise ValueError(
            "identifying languages needs py3langid: pip install 'fairseq_deepnet[langid]'"
        ) from error
    logging.getLogger("py3langid").setLevel(logging.WARNING)
    return LanguageIdentifier.from_model_file(MODEL_FILE)


def _label(code: str) -> str | None:
    known = languages.find(code)
    return known.langid if known else None


def signature(candidates: Sequence[str]) -> str:
    """Return what a rate depends on besides the text."""
    labels = sorted({label for code in candidates if (label := _label(code))})
    return f"py3langid:{metadata.version('py3langid')}|min:{MINIMUM_LETTERS}|{','.join(labels)}"


def off_target(hypotheses: Sequence[str], target: str, candidates: Sequence[str]) -> OffTarget:
    """Identify the language of every line among `candidates`, and count what is not `target`.

    Two codes that the identifier does not tell apart (nb and no, zh and zt) count as one language.
    Nothing is counted where it does not know the target at all (`share` is then None). Raises
    ValueError where py3langid is not installed, or no second language is left to tell from.
    """
    wanted = _label(target)
    if wanted is None:
        return OffTarget(None, 0, {})
    names = {label: code for code in reversed(list(candidates)) if (label := _label(code))}
    names[wanted] = target
    if len(names) < 2:
        raise ValueError(
            f"{target} cannot be told from other languages without any: candidates are "
            f"{', '.join(candidates) or 'none'}"
        )
    identifier = _identifier()
    identifier.set_languages(sorted(names))
    found = Counter(
        names[identifier.classify(line)[0]]
        for line in hypotheses
        if letters(line) >= MINIMUM_LETTERS
    )
    counted = found.total()
    share = (counted - found[target]) / counted if counted else None
    return OffTarget(share, counted, dict(found.most_common()))


def off_target_record(
    hypotheses: Sequence[str],
    references: Sequence[str],
    target: str,
    candidates: Sequence[str],
) -> dict[str, Any]:
    """Return the keys of a direction's JSON: the rate, its floor, the lines counted, and how."""
    found = off_target(hypotheses, target, candidates)
    floor = off_target(references, target, candidates)
    return {
        "off_target": None if found.share is None else round(found.share, 4),
        "off_target_floor": None if floor.share is None else round(floor.share, 4),
        "off_target_counted": found.counted,
        "off_target_languages": found.by_language,
        "off_target_signature": signature([*candidates, target]),
    }
