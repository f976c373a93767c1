"""The paper's law of depth, L(d) = A log(d) + B, fitted by least squares. The maths alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Law:
    """L(d) = a ln(d) + b; `error` is the root mean square of what it misses, over `points`."""

    a: float
    b: float
    error: float
    points: int

    def at(self, depth: float) -> float:
        """The value that the law gives for a depth."""
        return self.a * math.log(depth) + self.b

    def __str__(self) -> str:
        return (
            f"A = {self.a:.2f}, B = {self.b:.2f} "
            f"({self.points} points, root mean square error {self.error:.2f})"
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
    missed = sum((a * x + b - y) ** 2 for x, y in zip(xs, ys, strict=True))
    return Law(a, b, math.sqrt(missed / count), count)
