"""Names and numbers in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHOWN: Final = 3


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def plural(word: str, numbers: Sequence[int]) -> str:
    """`layer 3`, `layers 0, 2`, `layers 0 to 17`."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"{word}s {numbers[0]} to {numbers[-1]}"
    return f"{word}s {', '.join(map(str, numbers))}"


def plural_of(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
