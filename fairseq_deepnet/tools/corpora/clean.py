"""Limits of training text: which pairs of lines are dropped, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairseq_deepnet.tools.corpora.text import is_blank

# What counts as one word where a script writes no spaces: one Han or Kana character, or up to four
# characters of Thai, Lao, Burmese or Khmer (about their mean word length).
_HAN_KANA = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_THAI_KHMER = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(f"[{_HAN_KANA}]|[{_THAI_KHMER}]{{1,4}}|[^\\s{_HAN_KANA}{_THAI_KHMER}]+")


@dataclass(frozen=True)
class Limits:
    """Limits of training lines: words per line, on either side, and their ratio.

    Words are those of raw text, or the tokens of a recipe that has them.
    """

    min_words: int = 1
    max_words: int = 250
    max_ratio: float = 5.0  # raw words: "Cvičí jógu." is "Elle est en train de faire du yoga."
    drop_duplicates: bool = False

    def __post_init__(self) -> None:
        if self.min_words < 1:
            raise ValueError(f"--min-words is {self.min_words}; it must be at least 1")
        if self.max_words < self.min_words:
            raise ValueError(f"--max-words is {self.max_words}, --min-words {self.min_words}")
        if not self.max_ratio >= 1:
            raise ValueError(f"--max-ratio is {self.max_ratio}; it must be at least 1")


def count_words(line: str) -> int:
    """Count words: runs between spaces, and fair parts of them where a script has no spaces."""
    return len(_WORD.findall(line))


def why_dropped(source: str, target: str, limits: Limits) -> str | None:
    """Return why a normalised training pair is dropped, or None if it stays."""
    if is_blank(source) or is_blank(target):
        return "empty"
    shorter, longer = sorted((count_words(source), count_words(target)))
    if shorter < limits.min_words:
        return "too short"
    if longer > limits.max_words:
        return "too long"
    if longer > limits.max_ratio * shorter:
        return "length ratio"
    return None
