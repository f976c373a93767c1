"""Options that make a training run fit without changing its updates, except for rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from fairseq_deepnet.footprint import FULLY_SHARDED, Model, Training
from fairseq_deepnet.footprint.activations import auto_segment
from fairseq_deepnet.footprint.memory import LEGACY_BUFFER
from fairseq_deepnet.tools.planning.estimates import Plan, make_plan
from fairseq_deepnet.tools.training import launch

AUTO: Final = "auto"
SMALLEST_MICRO_BATCH: Final = 512
"""Tokens of the smallest micro-batch to try: a long sentence must fit into it."""

POINTWISE: Final = ("adam", "fused_adam", "adamax", "adadelta", "nag", "sgd")
"""fairseq's optimisers that work on parts of a matrix."""

OTHERS: Final = (
    "take more devices, more memory or a smaller model; --bf16, --memory-efficient-bf16 and"
    " --optimizer adafactor need less memory and change the update"
)
Options = dict[str, str]
"""Options of fairseq-train: name -> value, "true" for a switch."""


class Step(NamedTuple):
    """Options that differ from the original plan, with the largest micro-batch that fits."""

    name: str
    effect: str
    options: Options
    plan: Plan


def advise(plan: Plan) -> list[Step]:
    """Return the steps tried to make a plan fit; the last one fits if any does.

    None of them changes the update, except for rounding. In each step the micro-batch is halved,
    and --update-freq doubled, until it fits.
    """
    steps = []
    for name, effect, options, model, training in _ladder(plan):
        best = _largest_that_fits(plan, model, training)
        if best.training.max_tokens != plan.training.max_tokens:
            smaller: Options = {"max-tokens": str(best.training.max_tokens)}
            options = smaller | {"update-freq": str(best.training.update_freq)} | options
        steps.append(Step(name, effect, options, best))
        if best.fits:
            break
    return steps


def _ladder(plan: Plan) -> Iterator[tuple[str, str, Options, Model, Training]]:
    """Yield name, effect, options, model and training of each step; options accumulate."""
    model, training, options = plan.model, plan.training, Options()
    yield "smaller micro-batches", "nothing else changes", options, model, training
    if not model.checkpoint:
        options = {"checkpoint-activations-every": AUTO}
        if model.is_stock:
            options = {"checkpoint-activations": "true"}
        model = _recomputed(model)
        yield as_arguments(options), "layers are computed twice", options, model, training
    several, whole = training.devices > 1, training.ddp_backend in ("pytorch_ddp", "c10d")
    rows: list[tuple[bool, str, Options, dict[str, Any]]] = [
        (
            several and whole and not training.bucket_view and plan.counts.total > LEGACY_BUFFER,
            "a small buffer, and gradients are exchanged after backward",
            {"ddp-backend": "legacy_ddp"},
            {"ddp_backend": "legacy_ddp"},
        ),
        (
            several and not training.sharded and training.optimizer in POINTWISE,
            "each device holds a part of weights, gradients and optimiser's state",
            {"ddp-backend": FULLY_SHARDED, "no-reshard-after-forward": "true"},
            {"ddp_backend": FULLY_SHARDED, "reshard": False, "memory_efficient": False},
        ),
        (
            several and not training.sharded and training.optimizer in POINTWISE,
            "weights are gathered for forward and again for backward",
            {"ddp-backend": FULLY_SHARDED},
            {"ddp_backend": FULLY_SHARDED, "reshard": True, "memory_efficient": False},
        ),
    ]
    for applies, effect, more, changes in rows:
        if applies:
            changed = dataclasses.replace(training, **changes)
            yield as_arguments(more), effect, options | more, model, changed


def _recomputed(model: Model) -> Model:
    """Return the model with all layers recomputed in backward."""
    checkpointing = {}
    for side, shape in model.layers.items():
        every = auto_segment(side, model.scheme, shape, model.depths.of(side))
        checkpointing[side] = dataclasses.replace(
            model.checkpointing[side], every=1 if model.is_stock else every
        )
    return dataclasses.replace(model, checkpointing=checkpointing)


def _largest_that_fits(plan: Plan, model: Model, training: Training) -> Plan:
    """Return the plan with the largest micro-batch that fits, or else with the smallest."""
    tokens = training.max_tokens
    while True:
        batch = launch.split_batch(plan.training.tokens, tokens, training.devices)
        training = dataclasses.replace(
            training, max_tokens=batch.max_tokens, update_freq=batch.update_freq
        )
        candidate = make_plan(model, training, plan.memory_gib, plan.length)
        if candidate.fits or tokens // 2 < SMALLEST_MICRO_BATCH:
            return candidate
        tokens //= 2


def as_arguments(options: Options) -> str:
    """Return changed options as arguments of fairseq-train."""
    return " ".join(f"--{k}" if v == "true" else f"--{k} {v}" for k, v in options.items())
