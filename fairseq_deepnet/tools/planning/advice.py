"""Options that make a training fit and leave its updates as they are, but for rounding.

`deepnet plan` prints them; MEMORY= of a training adds them before it starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fairseq_deepnet.footprint import FULLY_SHARDED, Model, Training
from fairseq_deepnet.footprint.activations import auto_segment
from fairseq_deepnet.footprint.memory import LEGACY_BUFFER
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.devices import DEVICE_GIB, Devices, gpu_gib
from fairseq_deepnet.tools.planning.estimates import Plan, estimate, make_plan, vocabulary_of
from fairseq_deepnet.tools.training import launch

AUTO: Final = "auto"
SMALLEST_MICRO_BATCH: Final = 512
"""Tokens of the smallest micro-batch that is tried: a long sentence must fit into one."""

POINTWISE: Final = ("adam", "fused_adam", "adamax", "adadelta", "nag", "sgd")
"""fairseq's optimisers that need no whole matrix, and so run on a part of it."""

OTHERS: Final = (
    "take more devices, more memory or a smaller model; --bf16, --memory-efficient-bf16 and"
    " --optimizer adafactor need less memory and change the update"
)
Options = dict[str, str]
"""Options of fairseq-train: name -> value, "true" for a switch."""


class Step(NamedTuple):
    """Options that differ from the plan as it is wanted, with the largest micro-batch that fits."""

    name: str
    effect: str
    options: Options
    plan: Plan


def advise(plan: Plan) -> list[Step]:
    """Return the steps that were tried to make a plan fit; the last one fits if any does.

    All of them leave the update as it is, but for rounding. For each step the micro-batch is
    halved, and --update-freq doubled, until it fits. More devices are no step.
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
    """Yield each step's name, effect and options, on top of those before it, and what they make."""
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
    """Return the model with all layers computed again in backward."""
    checkpointing = {}
    for side, shape in model.layers.items():
        every = auto_segment(side, model.scheme, shape, model.depths.of(side))
        checkpointing[side] = dataclasses.replace(
            model.checkpointing[side], every=1 if model.is_stock else every
        )
    return dataclasses.replace(model, checkpointing=checkpointing)


def _largest_that_fits(plan: Plan, model: Model, training: Training) -> Plan:
    """Return the plan with the largest micro-batch that fits; else with the smallest."""
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
    """Return changed options as fairseq-train takes them."""
    return " ".join(f"--{k}" if v == "true" else f"--{k} {v}" for k, v in options.items())


def device_memory(wanted: str, devices: Devices, elsewhere: bool) -> float | None:
    """Return GiB of one device to plan with; None on a CPU, unless they are given.

    Args:
        wanted: GiB, or "auto": what the GPUs here have; of those `elsewhere` a usual size.
    """
    if wanted != AUTO:
        try:
            return float(wanted)
        except ValueError:
            raise ValueError(f"MEMORY={wanted}: give GiB of one GPU, or {AUTO}") from None
    if not devices.gpus:
        return None
    return DEVICE_GIB if elsewhere else gpu_gib(devices.gpus)


def fit_into(
    config: configs.Config,
    data: Path,
    devices: Devices,
    memory_gib: float,
    precision: Sequence[str],
) -> str:
    """Add to a config what makes it fit, if anything has to be; return a line that says so.

    Args:
        data: the data folder, for its dictionaries; need not be there yet.
        memory_gib: of one device.
        precision: the options of it that will be added.

    Raises:
        ValueError: if nothing that leaves the update as it is makes it fit.
    """
    options = config.options | {word.removeprefix("--"): True for word in precision}
    gpus, device = (devices.total, "a GPU") if devices.gpus else (0, "the CPU")
    sizes, _ = vocabulary_of(config, data)
    wanted = estimate(dataclasses.replace(config, options=options), gpus, memory_gib, sizes)
    steps = advise(wanted)
    last = steps[-1]
    if not last.plan.fits:
        least = min(step.plan.needed_gib for step in steps)
        raise ValueError(
            f"the training needs {least:.1f} GiB, and {device} has {memory_gib:.4g}; {OTHERS}, or"
            " set MEMORY= to start it all the same"
        )
    changes = dict(last.options)
    if "global-batch-tokens" in config.recipe and "update-freq" not in config.options:
        changes.pop("update-freq", None)  # follows from the batch and the devices
    pairs = (configs.parse_override(f"{name}={value}") for name, value in changes.items())
    configs.override(config, dict(pairs), "deepnet plan")
    line = f"memory   {last.plan.needed_gib:.1f} of {memory_gib:.4g} GiB of {device}"
    if changes:
        line += f" with {as_arguments(changes)}; without {wanted.needed_gib:.1f}"
    return f"{line} (deepnet plan)"
