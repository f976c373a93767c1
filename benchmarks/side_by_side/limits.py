"""Time of an update's matrix products, the lower limit for any toolkit.

Every product of forward and backward is computed at its true size, with operands warm in the cache
and memory already allocated: the vocabulary projection, the linear maps, and attention's products
of all heads. Only attention's include padding. A linear map from a to b channels for n positions
takes three products: its result, and the gradients of its input and weight. Attention takes two
forward and four backward.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import torch

from side_by_side.systems import Shape

LONG: Final = 0.05
"""Seconds from which a single measurement of a product suffices."""

Product = tuple[str, int, int, int, int]
"""Kind (`mm` or `bmm`), number of matrices, rows, inner size, columns."""


def linear(positions: int, a: int, b: int) -> list[Product]:
    """Return the products for the output, the gradient of the input and that of the weight."""
    sizes = ((positions, a, b), (positions, b, a), (b, positions, a))
    return [("mm", 1, *size) for size in sizes]


def attention(matrices: int, queries: int, keys: int, channels: int) -> list[Product]:
    """Return attention's products of all heads, forward and backward."""
    weights = ("bmm", matrices, queries, channels, keys)
    results = ("bmm", matrices, queries, keys, channels)
    of_keys = ("bmm", matrices, keys, queries, channels)
    return [weights, weights, results, results, of_keys, of_keys]


def products(
    shape: Shape, sentences: int, source: int, target: int, n: int = 0, m: int = 0
) -> Counter[Product]:
    """Return the products of an update, with their numbers.

    Arguments:
        sentences, source, target: size of the batch; lengths with padding
        n, m: source and target positions without padding; by default there is no padding
    """
    c, f, depth = shape.width, shape.feed_forward, shape.layers
    n, m, heads = n or sentences * source, m or sentences * target, sentences * shape.heads
    d = c // shape.heads
    counts: Counter[Product] = Counter(linear(m, c, shape.vocabulary))
    encoder = [linear(n, c, c)] * 4 + [linear(n, c, f), linear(n, f, c)]
    encoder += [attention(heads, source, source, d)]
    decoder = [linear(m, c, c)] * 6 + [linear(n, c, c)] * 2 + [linear(m, c, f), linear(m, f, c)]
    decoder += [attention(heads, target, target, d), attention(heads, target, source, d)]
    for group in (*encoder, *decoder):
        for product in group:
            counts[product] += depth
    return counts


def operations(counts: Counter[Product]) -> int:
    """Return the number of multiplications and additions."""
    return sum(2 * b * n * k * m * count for (_, b, n, k, m), count in counts.items())


class Limits:
    """Measurement of products and copies in the precision of a shape.

    Arguments:
        clock: function that returns seconds
    """

    def __init__(self, shape: Shape, clock: Callable[[], float]) -> None:
        self.shape, self.clock = shape, clock
        types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        self.dtype = types[shape.precision]

    def seconds(self, work: Callable[[], Any]) -> float:
        """Return the shortest of several warm executions."""
        times = []
        for _ in range(4):
            start = self.clock()
            work()
            times.append(self.clock() - start)
            if times[-1] > LONG:
                break
        return min(times)

    def product(self, product: Product) -> float:
        """Return the seconds of one product."""
        kind, b, n, k, m = product
        sizes = ((n, k), (k, m), (n, m))
        if kind == "bmm":
            sizes = tuple((b, *size) for size in sizes)  # type: ignore[assignment]
        left, right = (torch.randn(size).to(self.dtype) for size in sizes[:2])
        result = torch.empty(sizes[2], dtype=self.dtype)
        multiply = torch.mm if kind == "mm" else torch.bmm
        return self.seconds(lambda: multiply(left, right, out=result))

    def measure(self, sentences: int, source: int, target: int, n: int, m: int) -> dict[str, float]:
        """Return seconds, number and share of attention of an update's operations, and bytes copied
        per second.
        """
        counts = products(self.shape, sentences, source, target, n, m)
        seconds = {product: self.product(product) * count for product, count in counts.items()}
        total = sum(seconds.values())
        batched = sum(time for product, time in seconds.items() if product[0] == "bmm")
        return {
            "seconds": total,
            "operations": operations(counts),
            "attention": batched / total,
            "copied": self.copied(),
        }

    def copied(self, size: int = 2**28) -> float:
        """Return bytes read and written per second in a copy that exceeds the caches."""
        source, target = torch.zeros(size // 4), torch.zeros(size // 4)
        times = []
        for _ in range(3):
            start = self.clock()
            target.copy_(source)
            times.append(self.clock() - start)
        return 2 * size / statistics.median(times)
