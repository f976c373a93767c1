"""The paper's law of depth, L(d) = A log(d) + B, fitted by least squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_deepnet.experiments.paper import Key, PublishedTable


@dataclass(frozen=True)
class Law:
    """L(d) = a ln(d) + b; `residuals` are depth and measured less fitted, in the order given."""

    a: float
    b: float
    residuals: tuple[tuple[float, float], ...]

    @property
    def error(self) -> float:
        """The root mean square of the residuals."""
        return math.sqrt(math.fsum(missed**2 for _, missed in self.residuals) / len(self.residuals))

    def at(self, depth: float) -> float:
        """Return the value that the law gives for a depth."""
        return self.a * math.log(depth) + self.b

    def __str__(self) -> str:
        return (
            f"A = {self.a:.2f}, B = {self.b:.2f} "
            f"({len(self.residuals)} points, root mean square error {self.error:.2f})"
        )


def fit(points: Sequence[tuple[float, float]]) -> Law | None:
    """Least squares over (depth, value), natural logarithm; None for fewer than two depths."""
    if len({depth for depth, _ in points}) < 2:
        return None
    count = len(points)
    xs = [math.log(depth) for depth, _ in points]
    ys = [value for _, value in points]
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    spread = sum((x - mean_x) ** 2 for x in xs)
    a = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    b = mean_y - a * mean_x
    missed = tuple((depth, y - a * math.log(depth) - b) for depth, y in points)
    return Law(a, b, missed)


def fit_published(table: PublishedTable, line: Key) -> Law | None:
    """The law of one line of a published table, a row or a column, whose other side is depth."""
    if line in table.rows:
        cells = list(table.rows[line].values.items())
    else:
        cells = [(key, row.values[line]) for key, row in table.rows.items() if line in row.values]
    return fit([(float(depth), float(v)) for depth, v in cells if not isinstance(v, str)])
