"""The off-target rate: the share of translations in the wrong language.

py3langid, whose model comes with the package, identifies the language of each line among those of
the corpus. It makes errors: rates below its rate on the references mean nothing.
"""

from __future__ import annotations

import functools
import logging
import unicodedata
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

from fairseq_deepnet.tools import languages

MINIMUM_LETTERS: Final = 10
"""Minimum number of letters of a counted line: a name, a number or a single word may belong to any
language. A Chinese character, kana or Korean syllable counts as three.
"""
_DENSE: Final = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0x20000, 0x323AF))


def letters(line: str) -> int:
    """Count letters and combining marks; a syllable or word character counts as three."""
    points = [ord(letter) for letter in line if unicodedata.category(letter)[0] in "LM"]
    dense = sum(any(first <= point <= last for first, last in _DENSE) for point in points)
    return len(points) + 2 * dense


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    logging.getLogger("py3langid").setLevel(logging.WARNING)
    return LanguageIdentifier.from_model_file(MODEL_FILE)


def _labels(codes: Sequence[str]) -> dict[str, str]:
    """Return a mapping from py3langid's labels to the first code with that label."""
    pairs = [(code, languages.find(code)) for code in reversed(codes)]
    return {language.langid: code for code, language in pairs if language and language.langid}


def off_target(
    hypotheses: Sequence[str], target: str, candidates: Sequence[str]
) -> tuple[float | None, Counter[str]]:
    """Identify the language of each line among `candidates`.

    Codes that the identifier does not distinguish (nb and no, zh and zt) count as one language.

    Returns the share of counted lines that are not in the target language, 0 to 1, and the number
    of counted lines by language. The share is None without lines, for an unknown target, and if
    only one language is known.
    """
    names = _labels([target, *candidates])
    if not _labels([target]) or len(names) < 2:
        return None, Counter()
    identifier = _identifier()
    identifier.set_languages(sorted(names))
    long = [line for line in hypotheses if letters(line) >= MINIMUM_LETTERS]
    counts = Counter(names[identifier.classify(line)[0]] for line in long)
    return (1 - counts[target] / len(long) if long else None), counts


def off_target_record(
    hypotheses: Sequence[str], references: Sequence[str], target: str, candidates: Sequence[str]
) -> dict[str, Any]:
    """Return the keys of a direction's JSON: the rate, its floor, counts, and a signature."""
    share, counts = off_target(hypotheses, target, candidates)
    floor, _ = off_target(references, target, candidates)
    version, labels = metadata.version("py3langid"), sorted(_labels([*candidates, target]))
    return {
        "off_target": None if share is None else round(share, 4),
        "off_target_floor": None if floor is None else round(floor, 4),
        "off_target_languages": dict(counts.most_common()),
        "off_target_signature": f"py3langid:{version}|min:{MINIMUM_LETTERS}|{','.join(labels)}",
    }
