"""Options that make a training fit, tried in order: what changes the result least comes first.

`deepnet plan` prints them; MEMORY= of a training adds them before it starts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.footprint import Model, Training
from fairseq_deepnet.footprint.choice import recomputing
from fairseq_deepnet.footprint.memory import LEGACY_BUFFER
from fairseq_deepnet.footprint.setting import FULLY_SHARDED
from fairseq_deepnet.models.checkpoint_memory import FREE_SHARE
from fairseq_deepnet.schemes import Side
from fairseq_deepnet.stock_names import STOCK_NAMES
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.devices import DEVICE_GIB, Devices, gpu_gib
from fairseq_deepnet.tools.planning.estimates import Plan, estimate, make_plan, vocabulary_of
from fairseq_deepnet.tools.training import launch

AUTO: Final = "auto"
SMALLEST_MICRO_BATCH: Final = 512
"""Tokens of the smallest micro-batch that is tried: a long sentence must fit into one."""

CHECKPOINTING: Final = {False: "checkpoint-memory", True: "checkpoint-activations"}
"""Is the model stock fairseq's -> the option that computes layers twice."""

POINTWISE: Final = ("adam", "fused_adam", "adamax", "adadelta", "nag", "sgd")
"""fairseq's optimisers that need no whole matrix, and so run on a part of it."""

EXACT: Final = frozenset(
    {
        *("max-tokens", "update-freq", "checkpoint-memory", "checkpoint-activations"),
        *("ddp-backend", "no-reshard-after-forward"),
    }
)
"""Options of which any value makes the same update, but for rounding."""


@dataclasses.dataclass(frozen=True)
class Step:
    """Options that were tried on top of those before, with the largest micro-batch that fits."""

    name: str
    effect: str
    plan: Plan


@dataclasses.dataclass(frozen=True)
class Advice:
    """The plan as it is wanted, and what was tried, in order; the last step fits if any does."""

    wanted: Plan
    steps: tuple[Step, ...]

    @property
    def fits(self) -> bool:
        """True if some options make it fit."""
        return self.steps[-1].plan.fits

    @property
    def plan(self) -> Plan:
        """The plan that fits, or that comes nearest."""
        return self.steps[-1].plan

    @property
    def options(self) -> dict[str, str | None]:
        """Options to change: name -> value, "true" for a switch, None for one to take out."""
        return difference(self.wanted, self.plan)

    def is_exact(self, step: Step) -> bool:
        """Return True if a step leaves the update as it is, but for rounding."""
        return difference(self.wanted, step.plan).keys() <= EXACT

    @property
    def least_gib(self) -> float:
        """The least memory that any step needs."""
        return min(step.plan.needed_gib for step in self.steps)


def difference(old: Plan, new: Plan) -> dict[str, str | None]:
    """Return the fairseq-train options that turn one plan into another."""
    a, b = old.training, new.training
    found: dict[str, str | None] = {}
    if (a.max_tokens, a.update_freq) != (b.max_tokens, b.update_freq):
        found |= {"max-tokens": str(b.max_tokens), "update-freq": str(b.update_freq)}
    elif b.bounded and not a.bounded:
        found["max-tokens"] = str(b.max_tokens)
    changed = new.checkpoint_gib != old.checkpoint_gib or not old.model.checkpoint
    if new.model.checkpoint and changed:
        stock = new.model.is_stock
        found[CHECKPOINTING[stock]] = "true" if stock else f"{new.checkpoint_gib:.10g}"
    if a.ddp_backend != b.ddp_backend:
        found["ddp-backend"] = b.ddp_backend
    if b.sharded and not b.reshard and (a.reshard or not a.sharded):
        found["no-reshard-after-forward"] = "true"
    if b.memory_efficient and not a.memory_efficient:
        found[f"memory-efficient-{b.precision}"] = "true"
    elif a.precision != b.precision:
        found[b.precision] = "true"
    if a.optimizer != b.optimizer:
        found["optimizer"] = b.optimizer
        if STOCK_NAMES.get(a.optimizer, a.optimizer) == "adam":
            found |= {"adam-betas": None, "adam-eps": None}
    return found


def advise(plan: Plan) -> Advice:
    """Look for options that make a plan fit; the plan itself if it does.

    For each step the micro-batch is halved, and --update-freq doubled, until it fits, so that the
    global batch stays. The order: nothing else; --checkpoint-memory (the same update, as many
    layers computed twice as must be); legacy_ddp, whose buffer is smaller than all gradients;
    fully_sharded, whose parameters are whole through an update, or only where they are computed
    with; bf16; and unsharded again --memory-efficient-* (weights rounded at every update) and
    adafactor (another optimiser). More devices are no step.
    """
    steps = []
    for name, effect, model, training in _ladder(plan):
        if model.is_recomputed and not (plan.model.is_recomputed or model.is_stock):
            best = _checkpointed(plan, model, training)
        else:
            best = _largest_that_fits(plan, model, training, plan.checkpoint_gib)
        steps.append(Step(name, effect, best))
        if best.fits:
            break
    return Advice(plan, tuple(steps))


def _checkpointed(plan: Plan, model: Model, training: Training) -> Plan:
    """Plan with the share of the device for --checkpoint-memory that `auto` takes, in full
    hundredths; where recomputing all needs more, and yet fits, with that: else training would warn.
    """
    share = math.floor(100 * FREE_SHARE * plan.memory_gib) / 100
    best = _largest_that_fits(plan, model, training, share)
    if best.fits and best.model.is_recomputed and best.needed_gib > share:
        whole = min(math.ceil(100 * best.needed_gib) / 100, plan.memory_gib)
        best = _largest_that_fits(plan, model, best.training, whole)
    return best


def _ladder(plan: Plan) -> list[tuple[str, str, Model, Training]]:
    """Return the steps in order, each on top of those before it."""
    model, training = plan.model, plan.training
    found = [("smaller micro-batches", "the same update", model, training)]

    def add(name: str, effect: str) -> None:
        found.append((name, effect, model, training))

    if not model.is_recomputed:
        model = dataclasses.replace(model, segment=1 if model.is_stock else model.segment)
        model = dataclasses.replace(model, checkpointing={s: recomputing(model, s) for s in Side})
        if not model.is_stock:  # --checkpoint-memory asks for --max-tokens
            training = dataclasses.replace(training, bounded=True)
        add(f"--{CHECKPOINTING[model.is_stock]}", "the same update; layers are computed twice")
    whole = training.ddp_backend in ("pytorch_ddp", "c10d") and not training.bucket_view
    if training.devices > 1 and whole and plan.parameters > LEGACY_BUFFER:
        training = dataclasses.replace(training, ddp_backend="legacy_ddp")
        effect = "the same update; a small buffer, and gradients are exchanged after backward"
        add("--ddp-backend legacy_ddp", effect)
    unsharded = training
    if training.devices > 1 and not training.sharded and training.optimizer in POINTWISE:
        training = dataclasses.replace(
            training, ddp_backend=FULLY_SHARDED, reshard=False, memory_efficient=False
        )
        add(
            f"--ddp-backend {FULLY_SHARDED} --no-reshard-after-forward",
            "the same update; each device holds a part of weights, gradients and optimiser's state",
        )
        training = dataclasses.replace(training, reshard=True)
        add(
            f"--ddp-backend {FULLY_SHARDED}",
            "the same update; weights are gathered for forward and again for backward",
        )
    if training.precision == "fp32" and training.gpus:
        training = dataclasses.replace(training, precision="bf16", flat=False)
        unsharded = dataclasses.replace(unsharded, precision="bf16", flat=False)
        add("--bf16", "half the activations; weights are kept in fp32")
    if plan.training.sharded:
        return found  # what follows rounds weights, or looks at whole matrices
    training = unsharded
    if training.precision != "fp32" and not training.memory_efficient:
        training = dataclasses.replace(training, memory_efficient=True)
        effect = "no fp32 weights: small updates are lost in rounding"
        add(f"--memory-efficient-{training.precision}", effect)
    if training.optimizer != "adafactor":
        training = dataclasses.replace(training, optimizer="adafactor", first_moment=False)
        add("--optimizer adafactor", "another optimiser, with a learning rate of its own to find")
    return found


def _largest_that_fits(
    plan: Plan, model: Model, training: Training, checkpoint_gib: float | None
) -> Plan:
    """Return the plan with the largest micro-batch that fits; else with the smallest."""
    tokens = training.max_tokens
    machine = (plan.memory_gib, plan.teraflops, plan.length, plan.utilisation)
    while True:
        batch = launch.split_batch(plan.training.tokens, tokens, training.devices)
        bounded = training.bounded or batch.max_tokens != plan.training.max_tokens
        tried = dataclasses.replace(
            training, max_tokens=batch.max_tokens, update_freq=batch.update_freq, bounded=bounded
        )
        candidate = make_plan(model, tried, *machine, checkpoint_gib)
        if candidate.fits or tokens // 2 < SMALLEST_MICRO_BATCH:
            return candidate
        tokens //= 2


def as_arguments(options: dict[str, str | None]) -> str:
    """Return changed options as fairseq-train takes them."""
    given = {name: value for name, value in options.items() if value is not None}
    words = [f"--{name}" + f" {value}" * (value != "true") for name, value in given.items()]
    gone = [f"--{name}" for name, value in options.items() if value is None]
    return " ".join(words) + (f" (without {', '.join(gone)})" if gone else "")


def device_memory(wanted: str, devices: Devices, elsewhere: bool) -> float | None:
    """Return GiB of one device to plan with; None on a CPU, unless they are said.

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
        ValueError: where nothing makes it fit, or only what changes the update: that is the user's
            to choose.
    """
    planned = config.options | {word.removeprefix("--"): True for word in precision}
    gpus = devices.total if devices.gpus else 0
    sizes, _ = vocabulary_of(config, data)
    wanted = dataclasses.replace(config, options=planned)
    advice = advise(estimate(wanted, gpus, memory_gib, teraflops=1, vocabulary=sizes))
    device = "a GPU" if gpus else "the CPU"
    room = f"of {memory_gib:.4g} GiB of {device}"
    if advice.wanted.fits:
        return f"memory   {advice.wanted.needed_gib:.1f} {room} (deepnet plan)"
    if not (advice.fits and advice.is_exact(advice.steps[-1])):
        least = min(step.plan.needed_gib for step in advice.steps if advice.is_exact(step))
        raise ValueError(
            f"the training needs {least:.1f} GiB, and {device} has {memory_gib:.4g}"
            f"{_what_else(advice)}; MEMORY= starts it all the same"
        )
    options = dict(advice.options)
    if "global-batch-tokens" in config.recipe and "update-freq" not in config.options:
        options.pop("update-freq", None)  # follows from the batch and the devices
    found = (configs.parse_override(f"{name}={value}") for name, value in options.items())
    configs.override(config, dict(found), "deepnet plan")
    return (
        f"memory   {advice.plan.needed_gib:.1f} {room} with {as_arguments(options)}; without"
        f" {advice.wanted.needed_gib:.1f} (deepnet plan)"
    )


def _what_else(advice: Advice) -> str:
    """Return what would fit, where no option that leaves the update as it is does."""
    if not advice.fits:
        return (
            f", and no option makes it fit ({advice.least_gib:.1f} GiB are the least): take"
            " GPUs with more memory or a smaller model"
        )
    return (
        f"; {as_arguments(advice.options)} fits, and changes the training"
        f" ({advice.steps[-1].effect}): add that, or take GPUs with more memory"
    )
