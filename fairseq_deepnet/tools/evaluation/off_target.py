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
from importlib import metadata
from typing import Any, Final, NamedTuple

from fairseq_deepnet.tools import languages

MINIMUM_LETTERS: Final = 10
"""Lines with fewer letters are not counted: a name, a number or a single word may be any language.
A Chinese character, kana or Korean syllable stands for about three letters, and counts as such."""

_DENSE: Final = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0x20000, 0x323AF))


class OffTarget(NamedTuple):
    """What language the lines of a translation are in.

    Args:
        share: of the counted lines, those not in the target language, 0 to 1; None without lines.
        counted: lines that are long enough to tell.
        by_language: how many of them are in which language, most frequent first.
    """

    share: float | None
    counted: int
    by_language: dict[str, int]


def letters(line: str) -> int:
    """Count letters and the marks on them, a syllable or word character as three."""
    points = [ord(one) for one in line if unicodedata.category(one)[0] in "LM"]
    dense = sum(any(first <= point <= last for first, last in _DENSE) for point in points)
    return len(points) + 2 * dense


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


def _labels(codes: Sequence[str]) -> dict[str, str]:
    """Return py3langid's label -> the first code that has it, of those that it knows."""
    known = [(code, languages.find(code)) for code in reversed(codes)]
    return {found.langid: code for code, found in known if found and found.langid}


def off_target(hypotheses: Sequence[str], target: str, candidates: Sequence[str]) -> OffTarget:
    """Identify the language of every line among `candidates`, and count what is not `target`.

    Two codes that the identifier does not tell apart (nb and no, zh and zt) count as one language.
    Nothing is counted where it does not know the target at all (`share` is then None). Raises
    ValueError where py3langid is not installed, or no second language is left to tell from.
    """
    if not _labels([target]):
        return OffTarget(None, 0, {})
    names = _labels([target, *candidates])
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
    hypotheses: Sequence[str], references: Sequence[str], target: str, candidates: Sequence[str]
) -> dict[str, Any]:
    """Return the keys of a direction's JSON: the rate, its floor, the lines counted, and how."""
    found = off_target(hypotheses, target, candidates)
    floor = off_target(references, target, candidates)
    version, labels = metadata.version("py3langid"), sorted(_labels([*candidates, target]))
    return {
        "off_target": None if found.share is None else round(found.share, 4),
        "off_target_floor": None if floor.share is None else round(floor.share, 4),
        "off_target_counted": found.counted,
        "off_target_languages": found.by_language,
        "off_target_signature": f"py3langid:{version}|min:{MINIMUM_LETTERS}|{','.join(labels)}",
    }
