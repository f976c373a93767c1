"""The DeepNet paper's tables and figures, read from paper.yaml: their one home in this project."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

FILE: Final = Path(__file__).with_name("paper.yaml")
REFERENCE: Final = "arXiv 2203.00555"
LAST: Final = "last"
"""Column of a validation loss that was taken at another update than the paper's."""

Key = str
"""What a row or column is called in every table: `key(value)`."""


def key(value: object) -> Key:
    """Return one spelling for a value however it was written: 0.0005, "5e-4" and 5E-04 are "5e-4".

    Whole numbers are written as such, numbers below 0.01 with an exponent, words as they are.
    """
    text = str(value)
    try:
        number = float(text)
    except ValueError:
        return text
    if number.is_integer():
        return str(int(number))
    if 0 < abs(number) < 0.01:
        mantissa, exponent = f"{number:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{number:g}"


def ordered(keys: Sequence[Key]) -> list[Key]:
    """Words as they come, then numbers in their order, then what stands for the last number."""
    words = [key for key in keys if not is_number(key) and key != LAST]
    numbers = sorted((key for key in keys if is_number(key)), key=float)
    return words + numbers + [LAST] * (LAST in keys)


def is_number(key: Key) -> bool:
    """True if a key stands for a number."""
    try:
        float(key)
    except ValueError:
        return False
    return True


GROUPS: Final = {"post": "Post-LN", "none": "no LN", "pre": "Pre-LN"}
"""Where LayerNorm stands -> the paper's word for such schemes, in the order of its figure 6."""


def group_of(scheme: str) -> str:
    """Return the group of a residual scheme; empty for one that is not registered."""
    from fairseq_deepnet.schemes import SCHEMES

    return GROUPS[SCHEMES[scheme].norm.value] if scheme in SCHEMES else ""


@dataclass(frozen=True)
class PublishedRow:
    """A line of a published table; a value is a number, "diverged", or absent."""

    key: Key
    name: str
    group: str
    values: dict[Key, float | str]


@dataclass(frozen=True)
class PublishedTable:
    """A published table, or the curves of a figure.

    Args:
        certainty: "exact" for printed numbers, "digitised" for what was read off a plot
        metric: what the numbers are
        labels: factor -> how a value of it is written in a heading ("{0}L-{0}L")
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
        """Return the paper's number, "diverged", or None where it has none."""
        return self.rows[row].values.get(column) if row in self.rows else None

    def label(self, factor: str, value: Key) -> str:
        """Return how a heading writes a value of a factor."""
        pattern = self.labels.get(factor, "{0}")
        return pattern.format(int(value) if value.isdecimal() else value)


def _table(name: str, content: dict[str, object]) -> PublishedTable:
    columns = tuple(key(column) for column in content["columns"])  # type: ignore[attr-defined]
    rows = {}
    for row_key, row in content["rows"].items():  # type: ignore[attr-defined]
        values = dict(zip(columns, row["values"], strict=True))
        values = {column: value for column, value in values.items() if value is not None}
        rows[key(row_key)] = PublishedRow(key(row_key), row["name"], row.get("group", ""), values)
    texts = {item: str(content[item]) for item in ("title", "source", "certainty", "metric")}
    labels = dict(content["labels"])  # type: ignore[call-overload]
    return PublishedTable(name, **texts, labels=labels, columns=columns, rows=rows)


@functools.cache
def tables() -> dict[str, PublishedTable]:
    """Every table and figure by name: table1, fig6, fig7-lr, ..."""
    content = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: _table(name, table) for name, table in content.items()}


def table(name: str) -> PublishedTable:
    """Return one table; ValueError with the known names otherwise."""
    known = tables()
    if name not in known:
        raise ValueError(f"the paper has no table {name!r}; known are {', '.join(known)}")
    return known[name]
