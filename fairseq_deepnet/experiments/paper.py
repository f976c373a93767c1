"""Tables and figures of the DeepNet paper, read from paper.yaml, and the paper's law of depth."""

import functools
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import yaml

REFERENCE: Final = "arXiv 2203.00555"
GROUPS: Final = {"post": "Post-LN", "none": "no LN", "pre": "Pre-LN"}
"""Placement of LayerNorm -> the paper's name for these schemes, in the order of its figure 6."""
Key = str
"""Key of a row or column, as returned by `key`."""


def key(value: object) -> Key:
    """Return the canonical spelling of a value: 0.0005, "5e-4" and 5E-04 all become "5e-4".

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


def ordered(keys: Iterable[Key]) -> list[Key]:
    """Return each key once: words in their original order, then numbers by size."""
    return sorted(dict.fromkeys(keys), key=lambda key: float(key) if is_number(key) else -math.inf)


def group_of(scheme: str) -> str:
    """Return a residual scheme's group (see GROUPS), or an empty string for an unknown scheme."""
    from fairseq_deepnet.schemes import SCHEMES  # loads torch

    return GROUPS[SCHEMES[scheme].norm.value] if scheme in SCHEMES else ""


@dataclass(frozen=True)
class PublishedTable:
    """A table from the paper, or the curves of a figure.

    Args:
        certainty: "exact" for printed numbers, "digitised" for numbers read off a plot
        metric: description of the numbers
        names: row -> name in the paper
        rows: row -> column -> number or "diverged"; missing values have no key
    """

    title: str
    source: str
    certainty: str
    metric: str
    columns: tuple[Key, ...]
    names: dict[Key, str]
    rows: dict[Key, dict[Key, float | str]]

    def value(self, row: Key, column: Key) -> float | str | None:
        """Return the paper's number, "diverged", or None if the paper has no value."""
        return self.rows.get(row, {}).get(column)


@functools.cache
def tables() -> dict[str, PublishedTable]:
    """Return all tables and figures by name, such as table1 and fig7-lr."""
    published, file = {}, Path(__file__).with_name("paper.yaml")
    for name, content in yaml.safe_load(file.read_text(encoding="utf-8")).items():
        columns = tuple(map(key, content.pop("columns")))
        names, rows = {}, {}
        for row, line in content.pop("rows").items():
            cells = zip(columns, line["values"], strict=True)
            rows[key(row)] = {column: value for column, value in cells if value is not None}
            names[key(row)] = line["name"]
        published[name] = PublishedTable(**content, columns=columns, names=names, rows=rows)
    return published


def table(name: str) -> PublishedTable:
    """Return a table or figure by its name in paper.yaml."""
    return tables()[name]


class Law(NamedTuple):
    """Law of depth, L(d) = a ln(d) + b, with the number of fitted points and their RMS error."""

    a: float
    b: float
    points: int
    error: float

    def at(self, depth: float) -> float:
        return self.a * math.log(depth) + self.b

    def __str__(self) -> str:
        return (
            f"A = {self.a:.2f}, B = {self.b:.2f} "
            f"({self.points} points, root mean square error {self.error:.2f})"
        )


def fit(values: Mapping[float, float]) -> Law | None:
    """Fit the law of depth by least squares; return None if there are fewer than two depths."""
    points = [(math.log(float(depth)), value) for depth, value in values.items()]
    if len(points) < 2:
        return None
    a, b = statistics.linear_regression(*zip(*points, strict=True))
    error = math.sqrt(statistics.fmean((value - a * x - b) ** 2 for x, value in points))
    return Law(a, b, len(points), error)
