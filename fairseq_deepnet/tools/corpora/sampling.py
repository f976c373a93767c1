"""How much of each language a subword model sees, and which lines: without chance or memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator


def allot(lines: dict[str, int], budget: int, temperature: float) -> dict[str, int]:
    """How many lines of each language the subword model is trained on.

    A language with n lines gets a share in proportion to n^(1/temperature) of `budget` lines, but
    never more than it has; what it leaves over goes to the others.

    Arguments:
        lines: lines there are, by language
        budget: lines in all
        temperature: 1 keeps the proportions of the text, larger values even them out
    """
    taken: dict[str, int] = {}
    waiting = {language: count ** (1 / temperature) for language, count in lines.items()}
    left = budget
    while waiting:
        total = math.fsum(waiting.values())
        small = [name for name, share in waiting.items() if left * share / total >= lines[name]]
        if not small:
            return taken | {name: int(left * share / total) for name, share in waiting.items()}
        for name in small:
            taken[name] = lines[name]
            left -= lines[name]
            del waiting[name]
    return taken


def spread(lines: Iterable[str], start: int, wanted: int, total: int) -> Iterator[str]:
    """`wanted` of `total` lines, evenly spread; `lines` are those from number `start` on."""
    for number, line in enumerate(lines, start):
        if (number + 1) * wanted // total > number * wanted // total:
            yield line
