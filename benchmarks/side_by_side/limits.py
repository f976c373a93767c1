"""How long an update's matrix products take by themselves: the limit that no toolkit can beat.

Every product of forward and backward is made at its true size, on operands that are warm in the
cache, into memory that is there: the vocabulary projection, the linear maps, and attention's
products of all heads. Only attention's have padding in them. A linear map from a to b channels of n
positions is three: its result, and the gradients of its input and its weight. Attention has two
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
"""Seconds from which one look at a product is enough."""

Product = tuple[str, int, int, int, int]
"""Kind (`mm` or `bmm`), then matrices, rows, inner size, columns."""


def linear(positions: int, a: int, b: int) -> list[Product]:
    """Forward, gradient of the input, gradient of the weight."""
    sizes = ((positions, a, b), (positions, b, a), (b, positions, a))
    return [("mm", 1, *size) for size in sizes]


def attention(matrices: int, queries: int, keys: int, channels: int) -> list[Product]:
    """Of all heads: weights and their gradient; results and queries'; keys' and values'."""
    weights = ("bmm", matrices, queries, channels, keys)
    results = ("bmm", matrices, queries, keys, channels)
    of_keys = ("bmm", matrices, keys, queries, channels)
    return [weights, weights, results, results, of_keys, of_keys]


def products(
    shape: Shape, sentences: int, source: int, target: int, n: int = 0, m: int = 0
) -> Counter[Product]:
    """What an update of a batch multiplies, and how often.

    Arguments:
        sentences, source, target: of the batch; lengths with padding
        n, m: source and target positions without padding; by default there is none
    """
    c, f, depth = shape.width, shape.feed_forward, shape.layers
    n, m, heads = n or sentences * source, m or sentences * target, sentences * shape.heads
    d = c // shape.heads
    found: Counter[Product] = Counter(linear(m, c, shape.vocabulary))
    encoder = [linear(n, c, c)] * 4 + [linear(n, c, f), linear(n, f, c)]
    encoder += [attention(heads, source, source, d)]
    decoder = [linear(m, c, c)] * 6 + [linear(n, c, c)] * 2 + [linear(m, c, f), linear(m, f, c)]
    decoder += [attention(heads, target, target, d), attention(heads, target, source, d)]
    for group in (*encoder, *decoder):
        for product in group:
            found[product] += depth
    return found


def operations(found: Counter[Product]) -> int:
    """Multiplications and additions."""
    return sum(2 * b * n * k * m * count for (_, b, n, k, m), count in found.items())


class Limits:
    """Measures products and copies in the precision of a shape.

    Arguments:
        clock: seconds so far
    """

    def __init__(self, shape: Shape, clock: Callable[[], float]) -> None:
        self.shape, self.clock = shape, clock
        types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        self.dtype = types[shape.precision]

    def seconds(self, work: Callable[[], Any]) -> float:
        """The least of a few times of warm work."""
        taken = []
        for _ in range(4):
            start = self.clock()
            work()
            taken.append(self.clock() - start)
            if taken[-1] > LONG:
                break
        return min(taken)

    def product(self, product: Product) -> float:
        """Seconds of one product."""
        kind, b, n, k, m = product
        sizes = ((n, k), (k, m), (n, m))
        if kind == "bmm":
            sizes = tuple((b, *size) for size in sizes)  # type: ignore[assignment]
        one, other = (torch.randn(size).to(self.dtype) for size in sizes[:2])
        result = torch.empty(sizes[2], dtype=self.dtype)
        multiply = torch.mm if kind == "mm" else torch.bmm
        return self.seconds(lambda: multiply(one, other, out=result))

    def measure(self, sentences: int, source: int, target: int, n: int, m: int) -> dict[str, float]:
        """Of an update of such a batch: seconds and number of its operations, and the share of
        attention in the seconds; and how many bytes per second are copied."""
        found = products(self.shape, sentences, source, target, n, m)
        seconds = {product: self.product(product) * count for product, count in found.items()}
        total = sum(seconds.values())
        batched = sum(one for product, one in seconds.items() if product[0] == "bmm")
        return {
            "seconds": total,
            "operations": operations(found),
            "attention": batched / total,
            "copied": self.copied(),
        }

    def copied(self, size: int = 2**28) -> float:
        """Bytes read and written a second, in a copy that no cache holds."""
        one, other = torch.zeros(size // 4), torch.zeros(size // 4)
        taken = []
        for _ in range(3):
            start = self.clock()
            other.copy_(one)
            taken.append(self.clock() - start)
        return 2 * size / statistics.median(taken)
