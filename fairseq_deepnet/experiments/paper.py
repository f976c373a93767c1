"""Tables and figures of the DeepNet paper from paper.yaml, and its law of depth."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

FILE: Final = Path(__file__).with_name("paper.yaml")
REFERENCE: Final = "arXiv 2203.00555"
LAST: Final = "last"
"""Column for a validation loss at another update than the paper's."""
GROUPS: Final = {"post": "Post-LN", "none": "no LN", "pre": "Pre-LN"}
"""Placement of LayerNorm -> the paper's name for such schemes, in the order of its figure 6."""
Key = str
"""Key of a row or column in every table: `key(value)`."""


def key(value: object) -> Key:
    """Return a canonical spelling of a value: 0.0005, "5e-4" and 5E-04 all become "5e-4".

    Integers have no decimal point, numbers below 0.01 have an exponent, and words are unchanged.
    """
    text = str(value)
    if not is_number(text):
        return text
    number = float(text)
    if number.is_integer():
        return str(int(number))
    if 0 < abs(number) < 0.01:
        mantissa, exponent = f"{number:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{number:g}"


def is_number(key: Key) -> bool:
    """Return True if a key is a number."""
    try:
        float(key)
    except ValueError:
        return False
    return True


def ordered(keys: Sequence[Key]) -> list[Key]:
    """Sort: words in their order, then numbers by size, then LAST."""
    words = [key for key in keys if not is_number(key) and key != LAST]
    return words + sorted(filter(is_number, keys), key=float) + [LAST] * (LAST in keys)


def group_of(scheme: str) -> str:
    """Return the group of a residual scheme; empty for unregistered ones."""
    from fairseq_deepnet.schemes import SCHEMES  # loads torch

    return GROUPS[SCHEMES[scheme].norm.value] if scheme in SCHEMES else ""


@dataclass(frozen=True)
class PublishedRow:
    """Row of a published table; a value is a number, "diverged", or missing."""

    name: str
    group: str
    values: dict[Key, float | str]


@dataclass(frozen=True)
class PublishedTable:
    """A published table, or the curves of a figure.

    Args:
        certainty: "exact" for printed numbers, "digitised" for numbers read off a plot
        metric: description of the numbers
        labels: factor -> pattern of its values in headings ("{0}L-{0}L")
    """

    name: str
    title: str
    source: str
    certainty: str
    metric: str
    labels: dict[str, str]
    columns: tuple[Key, ...]
    rows: dict[Key, PublishedRow]

    def value(self, row: Key, column: Key) -> float | str | None:
        """Return the paper's number, "diverged", or None."""
        return self.rows[row].values.get(column) if row in self.rows else None

    def label(self, factor: str, value: Key) -> str:
        """Return the heading for a value of a factor."""
        pattern = self.labels.get(factor, "{0}")
        return pattern.format(int(value) if value.isdecimal() else value)

    def law(self, line: Key) -> Law | None:
        """Fit the law of depth to a row or column whose other axis is depth."""
        if line in self.rows:
            cells = self.rows[line].values
        else:
            cells = {depth: row.values.get(line, "") for depth, row in self.rows.items()}
        return fit([(float(d), float(v)) for d, v in cells.items() if not isinstance(v, str)])


def _table(name: str, content: dict[str, Any]) -> PublishedTable:
    columns = tuple(map(key, content.pop("columns")))
    rows = {}
    for row_key, row in content.pop("rows").items():
        cells = zip(columns, row["values"], strict=True)
        values = {column: value for column, value in cells if value is not None}
        rows[key(row_key)] = PublishedRow(row["name"], row.get("group", ""), values)
    return PublishedTable(name, **content, columns=columns, rows=rows)


@functools.cache
def tables() -> dict[str, PublishedTable]:
    """Return all tables and figures by name: table1, fig6, fig7-lr, ..."""
    content = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: _table(name, table) for name, table in content.items()}


def table(name: str) -> PublishedTable:
    """Return a table; ValueError lists the known names."""
    if name not in tables():
        raise ValueError(f"the paper has no table {name!r}; known are {', '.join(tables())}")
    return tables()[name]


@dataclass(frozen=True)
class Law:
    """L(d) = a ln(d) + b; `residuals` are pairs of depth and measured minus fitted value."""

    a: float
    b: float
    residuals: tuple[tuple[float, float], ...]

    @property
    def error(self) -> float:
        """Root mean square of the residuals."""
        return math.sqrt(statistics.fmean(missed**2 for _, missed in self.residuals))

    def at(self, depth: float) -> float:
        """Return the value of the law at a depth."""
        return self.a * math.log(depth) + self.b

    def __str__(self) -> str:
        return (
            f"A = {self.a:.2f}, B = {self.b:.2f} "
            f"({len(self.residuals)} points, root mean square error {self.error:.2f})"
        )


def fit(points: Sequence[tuple[float, float]]) -> Law | None:
    """Fit the law of depth to (depth, value) by least squares; None for fewer than two depths."""
    if len({depth for depth, _ in points}) < 2:
        return None
    logarithms = [math.log(depth) for depth, _ in points]
    a, b = statistics.linear_regression(logarithms, [value for _, value in points])
    return Law(a, b, tuple((depth, value - a * math.log(depth) - b) for depth, value in points))
