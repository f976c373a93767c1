"""Overhead of `--ddp-backend fully_sharded` on one device, which holds the whole model."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from side_by_side import tables
from side_by_side.systems import Shape, System

from gpu import training

SYSTEMS = (
    System("plain", "ours", ("--dropout=0",)),
    System("sharded", "ours", ("--dropout=0", "--ddp-backend=fully_sharded")),
)
HEAD = ["model", "precision", "plain, s / update", "sharded, s / update", "overhead", "loss"]
HEAD += ["plain, GiB", "sharded, GiB", ""]
OVERHEAD = 0.05
LOSS = 2**-7
"""Largest difference of the losses after all rounds: twice the rounding error of bf16."""


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the row of the deepest shape in bf16, with `error` if one of the two runs failed.

    The overhead is judged only on a GPU.
    """
    shape = Shape(max(options.layers), options.width, options.vocabulary, options.tokens, "bf16")
    lines = training.measure(shape, options, SYSTEMS)
    about = {"model": shape.name, "precision": shape.precision, "right": False}
    wrong = [f"{line['system']}: {line['error']}" for line in lines if "error" in line]
    if wrong:
        return [{**about, "error": "; ".join(wrong)}]
    plain, sharded = lines
    overhead = 1 / sharded["speed"] - 1
    off = max(abs(b / a - 1) for a, b in zip(plain["losses"], sharded["losses"], strict=True))
    right = off < LOSS and (options.device == "cpu" or overhead < OVERHEAD)
    seconds = [statistics.median(line["seconds"]) for line in lines]
    peaks = [line["peak"] for line in lines]
    measured = {"seconds": seconds, "overhead": overhead, "loss": off, "peaks": peaks}
    return [{**about, **measured, "right": right}]


def row(line: dict[str, Any]) -> str:
    """Return the row of the table."""
    cells = [line["model"], line["precision"]]
    if "error" in line:
        return tables.line([*cells, line["error"], *[""] * (len(HEAD) - 4), "**off**"])
    cells += [f"{seconds:.3f}" for seconds in line["seconds"]]
    cells += [f"{line['overhead']:.1%}", f"{line['loss']:.1e}"]
    cells += [f"{peak / 2**30:.2f}" for peak in line["peaks"]]
    return tables.line([*cells, "ok" if line["right"] else "**off**"])
