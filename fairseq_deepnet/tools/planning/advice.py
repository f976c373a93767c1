"""Options that make a training run fit without changing its updates, except for rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final, NamedTuple

from fairseq_deepnet.footprint import FULLY_SHARDED, Model, Training
from fairseq_deepnet.footprint.activations import auto_segment
from fairseq_deepnet.footprint.memory import LEGACY_BUFFER
from fairseq_deepnet.tools.planning.estimates import Plan, make_plan
from fairseq_deepnet.tools.training import launch

SMALLEST_MICRO_BATCH: Final = 512
"""Tokens of the smallest micro-batch to try, which must hold a long sentence."""

POINTWISE: Final = ("adam", "fused_adam", "adamax", "adadelta", "nag", "sgd")
"""fairseq's optimisers that operate on parts of a matrix."""

OTHERS: Final = (
    "take more devices, more memory or a smaller model; --bf16, --memory-efficient-bf16 and"
    " --optimizer adafactor need less memory and change the update"
)
Options = dict[str, str]
"""Options of fairseq-train: name -> value, "true" for a switch."""


class Step(NamedTuple):
    """Options that differ from the original plan, with the largest micro-batch that fits."""

    name: str
    options: Options
    plan: Plan


def advise(plan: Plan) -> list[Step]:
    """Return the steps tried to make a plan fit; if any step fits, it is the last.

    No step changes the update, except for rounding. Each halves the micro-batch and doubles
    --update-freq until the plan fits.
    """
    steps = []
    for options, model, training in _ladder(plan):
        best = _largest_that_fits(plan, model, training)
        name = as_arguments(options) or "smaller micro-batches"
        if best.training.max_tokens != plan.training.max_tokens:
            smaller: Options = {"max-tokens": str(best.training.max_tokens)}
            options = smaller | {"update-freq": str(best.training.update_freq)} | options
        steps.append(Step(name, options, best))
        if best.fits:
            break
    return steps


def _ladder(plan: Plan) -> Iterator[tuple[Options, Model, Training]]:
    """Yield options, model and training of each step."""
    model, training, options = plan.model, plan.training, Options()
    yield options, model, training
    if not model.checkpoint:
        options = {"checkpoint-activations-every": "auto"}
        if model.is_stock:
            options = {"checkpoint-activations": "true"}
        model = _recomputed(model)
        yield options, model, training
    whole = training.ddp_backend in ("pytorch_ddp", "c10d") and not training.bucket_view
    if training.devices > 1 and whole and plan.counts.total > LEGACY_BUFFER:
        changed = dataclasses.replace(training, ddp_backend="legacy_ddp")
        yield options | {"ddp-backend": "legacy_ddp"}, model, changed
    if training.devices > 1 and not training.sharded and training.optimizer in POINTWISE:
        options = options | {"ddp-backend": FULLY_SHARDED}
        changed = dataclasses.replace(
            training, ddp_backend=FULLY_SHARDED, reshard=False, memory_efficient=False
        )
        yield options | {"no-reshard-after-forward": "true"}, model, changed
        yield options, model, dataclasses.replace(changed, reshard=True)


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
