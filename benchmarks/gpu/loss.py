"""The criterion's passes over its tables: one kernel against torch's own, numbers and time."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from side_by_side import tables
from torch import Tensor

from fairseq_deepnet.criterions import chunked
from gpu.correctness import FP32_DISTANCE, PADDING, TYPES, distance

HEAD = ["tokens", "width", "words", "precision", "torch's, s", "one kernel, s", "speed"]
HEAD += ["first, s", "loss", "gradients", ""]
SMOOTHING = 0.1
FORMS: dict[str, tuple[str, ...]] = {"torch's": (), "one kernel": ("cuda", "cpu")}
"""Ways to make a chunk's gradient, and the devices on which one kernel makes it."""


@contextmanager
def form(name: str) -> Iterator[None]:
    """Let the criterion make its chunks' gradients this way."""
    with mock.patch.object(chunked, "FUSED_ON", FORMS[name]):
        yield


def once(given: list[Tensor], target: Tensor) -> tuple[float, list[Tensor]]:
    """Seconds of the loss with its gradients, and these: the loss, of features and of weight."""
    began = time.perf_counter()
    loss = chunked.smoothed_cross_entropy(*given, None, target, SMOOTHING, PADDING).loss
    grads = torch.autograd.grad(loss, given)
    if loss.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began, [loss.detach(), *grads]


def measure(precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """A line; `error` where the kernel could not be compiled."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((options.tokens, options.width), (options.vocabulary, options.width))
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    made[1] *= options.width**-0.5  # logits of size 1
    given = [x.to(options.device, TYPES[precision]).requires_grad_() for x in made]
    target = torch.randint(2, options.vocabulary, (options.tokens,), generator=generator)
    target = target.to(options.device)
    line: dict[str, Any] = {"precision": precision, "right": False}
    line |= {name: getattr(options, name) for name in ("tokens", "width", "vocabulary")}
    found: dict[str, list[Tensor]] = {}
    for name in FORMS:
        with form(name):
            line["first"], found[name] = once(given, target)  # compiles
    if chunked.one_kernel.given_up:
        return {**line, "error": "the kernel could not be compiled"}
    taken: dict[str, list[float]] = {name: [] for name in FORMS}
    for number in range(options.rounds):
        for name in list(FORMS)[:: 1 if number % 2 else -1]:
            with form(name):
                taken[name].append(once(given, target)[0])
    off = [distance(*pair) for pair in zip(found["one kernel"], found["torch's"], strict=True)]
    right = max(off) < FP32_DISTANCE
    return {**line, "taken": taken, "loss": off[0], "gradients": max(off[1:]), "right": right}


def row(line: dict[str, Any]) -> str:
    """Its line of the table."""
    cells = [f"{line[key]:,}" for key in ("tokens", "width", "vocabulary")]
    cells.append(line["precision"])
    if "error" in line:
        return tables.line([*cells, line["error"], *[""] * (len(HEAD) - 6), "**off**"])
    base, other = line["taken"].values()
    cells += [f"{statistics.median(taken):.4f}" for taken in (base, other)]
    cells += [f"{statistics.median(tables.ratios(base, other)):.2f}", f"{line['first']:.1f}"]
    cells += [f"{line[key]:.1e}" for key in ("loss", "gradients")]
    return tables.line([*cells, "ok" if line["right"] else "**off**"])
