"""What this machine's processor gains from bf16: measured, as names and flags do not tell."""

from __future__ import annotations

import time
from typing import Final

WORTH: Final = 1.2
"""Times the speed of fp32 from which bf16's products pay for the rounding and the conversions."""


def bf16_gain(width: int = 512, rounds: int = 3) -> float:
    """Return how many times as fast as in fp32 matrices are multiplied in bf16 on this CPU.

    A processor with AMX has 7 to 10, one with AVX512-BF16 alone 0.55. Takes some hundredths of a
    second; the types take turns and the best round of each counts, so that other work on the
    machine weighs on both.

    Args:
        width: of the square matrices.
        rounds: that are timed, after one that is not.
    """
    import torch

    best: dict[torch.dtype, float] = {}
    matrices = {
        dtype: torch.ones(width, width, dtype=dtype) for dtype in (torch.float, torch.bfloat16)
    }
    for number in range(rounds + 1):
        for dtype, matrix in matrices.items():
            start = time.perf_counter()
            matrix @ matrix
            spent = time.perf_counter() - start
            if number:
                best[dtype] = min(spent, best.get(dtype, spent))
    return best[torch.float] / best[torch.bfloat16]


def bf16_remark() -> str | None:
    """Return a warning for those who ask for bf16 on a CPU that gains nothing from it."""
    gain = bf16_gain()
    if gain >= WORTH:
        return None
    return (
        f"warning: bf16 gains nothing on this processor, whose products in it run at {gain:.2f}"
        " times the speed of fp32 (on one with AMX at 5 to 10 times); leave it out"
    )
