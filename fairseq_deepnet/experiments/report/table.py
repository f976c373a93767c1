"""A table of results before it is rendered: entries over seeds, and the paper's beside them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.experiments.report.fit import Law

MISSING: Final = "-"
LAST: Final = "last"
"""Column of a validation loss that was taken at another update than the paper's."""
_BAD: Final = ("failed", "diverged")


@dataclass(frozen=True)
class Seed:
    """One run in an entry; `value` is None where it has no number."""

    run: str
    status: str
    value: float | None


@dataclass
class Entry:
    """One cell of a table: our runs, one a seed, and the paper's value."""

    row: Key
    column: Key
    seeds: list[Seed] = field(default_factory=list)
    published: float | str | None = None

    @property
    def values(self) -> list[float]:
        """The numbers that count: of the runs that neither diverged nor crashed; where all did, of
        all. Those that are not finite never count.
        """
        sound = [seed for seed in self.seeds if seed.status not in _BAD]
        found = [seed.value for seed in sound or self.seeds if seed.value is not None]
        return [value for value in found if math.isfinite(value)]

    @property
    def ours(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def delta(self) -> float | None:
        """Ours less the paper's; None where either is no number."""
        if self.ours is None or not isinstance(self.published, int | float):
            return None
        return self.ours - self.published

    @property
    def status(self) -> str:
        """How it stands: done, or the worst that happened to a seed."""
        for status in (*_BAD, "unfinished", "done"):
            if self.count(status):
                return status
        return "missing"

    def count(self, status: str) -> int:
        """How many runs ended so."""
        return sum(seed.status == status for seed in self.seeds)

    def only(self, status: str) -> Entry:
        """The same with the runs alone that ended so."""
        return replace(self, seeds=[seed for seed in self.seeds if seed.status == status])

    @property
    def all_bad(self) -> bool:
        """Whether there are runs, and none that neither diverged nor crashed."""
        return bool(self.seeds) and all(seed.status in _BAD for seed in self.seeds)


@dataclass
class Table:
    """A table to be rendered.

    Arguments:
        corner: heading of the column of row names
        rows: row key -> its name
        groups: row key -> a word in a column of its own; empty: no such column
        columns: column key -> heading
        parts: headings of parts -> the columns in them; one part without a heading is the rule
        digits: behind the point, for each column
        measure: what the entries hold, by its name
        notes: what the numbers are, below the table
        row_factor, column_factor: what the keys are values of
        setting: how the runs were trained, in one line
        level: what a unigram model has, where the entries are losses and that is known
        laws: row key -> the law of depth fitted to its entries, where the columns are depths
    """

    name: str
    title: str
    corner: str
    rows: dict[Key, str]
    groups: dict[Key, str]
    columns: dict[Key, str]
    parts: dict[str, list[Key]]
    entries: dict[tuple[Key, Key], Entry]
    digits: dict[Key, int]
    digitised: bool
    measure: str
    notes: list[str]
    row_factor: str
    column_factor: str
    level: float | None = None
    setting: str = ""
    laws: dict[Key, Law] = field(default_factory=dict)

    @property
    def has_values(self) -> bool:
        """Whether any of our runs has a number in it."""
        return any(entry.values for entry in self.entries.values())


def ordered(keys: Sequence[Key]) -> list[Key]:
    """Words as they come, then numbers in their order, then what stands for the last number."""
    words = [key for key in keys if not is_number(key) and key != LAST]
    numbers = sorted((key for key in keys if is_number(key)), key=float)
    return words + numbers + [LAST] * (LAST in keys)


def is_number(key: Key) -> bool:
    """Whether a key stands for a number."""
    try:
        float(key)
    except ValueError:
        return False
    return True
