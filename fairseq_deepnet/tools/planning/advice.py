"""Options that make a training fit, tried in order: what changes the result least comes first.

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
from fairseq_deepnet.stock_names import STOCK_NAMES
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.devices import DEVICE_GIB, Devices, gpu_gib
from fairseq_deepnet.tools.planning.estimates import Plan, estimate, make_plan, vocabulary_of
from fairseq_deepnet.tools.training import launch

AUTO: Final = "auto"
SMALLEST_MICRO_BATCH: Final = 512
"""Tokens of the smallest micro-batch that is tried: a long sentence must fit into one."""

POINTWISE: Final = ("adam", "fused_adam", "adamax", "adadelta", "nag", "sgd")
"""fairseq's optimisers that need no whole matrix, and so run on a part of it."""

EXACT: Final = frozenset(
    {
        *("max-tokens", "update-freq", "checkpoint-activations", "checkpoint-activations-every"),
        *("ddp-backend", "no-reshard-after-forward"),
    }
)
"""Options of which any value makes the same update, but for rounding."""

Options = dict[str, str | None]
"""Options of fairseq-train: name -> value, "true" for a switch, None for one to take out."""


@dataclasses.dataclass(frozen=True)
class Step:
    """Options that were tried, with the largest micro-batch that fits.

    `options` are all that differ from the plan as it is wanted.
    """

    name: str
    effect: str
    options: Options
    plan: Plan

    @property
    def is_exact(self) -> bool:
        """True if the update stays as it is, but for rounding."""
        return self.options.keys() <= EXACT


class Trial(NamedTuple):
    """Options that differ from the plan as it is wanted, and the model and training with them."""

    options: Options
    model: Model
    training: Training

    def change(self, options: Options, **fields: Any) -> Trial:
        """Return the trial with more options, and what these change of the training."""
        training = dataclasses.replace(self.training, **fields)
        return Trial(self.options | options, self.model, training)


def advise(plan: Plan) -> list[Step]:
    """Return the steps that were tried to make a plan fit; the last one fits if any does.

    For each step the micro-batch is halved, and --update-freq doubled, until it fits, so that the
    global batch stays. More devices are no step.
    """
    steps = []
    for name, effect, trial in _ladder(plan):
        best, options = _largest_that_fits(plan, trial), trial.options
        if best.training.max_tokens != plan.training.max_tokens:
            smaller: Options = {"max-tokens": str(best.training.max_tokens)}
            options = smaller | {"update-freq": str(best.training.update_freq)} | options
        steps.append(Step(name, effect, options, best))
        if best.fits:
            break
    return steps


def _ladder(plan: Plan) -> Iterator[tuple[str, str, Trial]]:
    """Yield name and effect of each step in order, with its options on top of those before it."""
    model, training = plan.model, plan.training
    trial = Trial({}, model, training)
    yield "smaller micro-batches", "the same update", trial
    if not model.checkpoint:
        trial = _recomputed(model, training)
        yield as_arguments(trial.options), "the same update; layers are computed twice", trial
    several, whole = training.devices > 1, training.ddp_backend in ("pytorch_ddp", "c10d")
    if several and whole and not training.bucket_view and plan.counts.total > LEGACY_BUFFER:
        trial = trial.change({"ddp-backend": "legacy_ddp"}, ddp_backend="legacy_ddp")
        effect = "the same update; a small buffer, and gradients are exchanged after backward"
        yield "--ddp-backend legacy_ddp", effect, trial
    unsharded = trial
    if several and not training.sharded and training.optimizer in POINTWISE:
        name, effect = f"--ddp-backend {FULLY_SHARDED}", "the same update; each device holds a part"
        trial = trial.change(
            {"ddp-backend": FULLY_SHARDED}, ddp_backend=FULLY_SHARDED, memory_efficient=False
        )
        whole_layers = trial.change({"no-reshard-after-forward": "true"}, reshard=False)
        effect += " of weights, gradients and optimiser's state"
        yield f"{name} --no-reshard-after-forward", effect, whole_layers
        trial = trial.change({}, reshard=True)
        effect = "the same update; weights are gathered for forward and again for backward"
        yield name, effect, trial
    if training.precision == "fp32" and training.gpus:
        half = {"precision": "bf16", "flat": False}
        trial, unsharded = (t.change({"bf16": "true"}, **half) for t in (trial, unsharded))
        yield "--bf16", "half the activations; weights are kept in fp32", trial
    if training.sharded:
        return  # what follows rounds weights, or looks at whole matrices
    trial, precision = unsharded, unsharded.training.precision
    if precision != "fp32" and not training.memory_efficient:
        name = f"memory-efficient-{precision}"
        trial = trial.change({name: "true"}, memory_efficient=True)
        yield f"--{name}", "no fp32 weights: small updates are lost in rounding", trial
    if training.optimizer != "adafactor":
        options: Options = {"optimizer": "adafactor"}
        if STOCK_NAMES.get(training.optimizer, training.optimizer) == "adam":
            options |= {"adam-betas": None, "adam-eps": None}
        trial = trial.change(options, optimizer="adafactor", first_moment=False)
        effect = "another optimiser, with a learning rate of its own to find"
        yield "--optimizer adafactor", effect, trial


def _recomputed(model: Model, training: Training) -> Trial:
    """Return the trial in which backward computes all layers again."""
    if model.is_stock:
        options: Options = {"checkpoint-activations": "true"}
    else:
        options = {"checkpoint-activations-every": AUTO}
    checkpointing = {}
    for side, shape in model.layers.items():
        every = auto_segment(side, model.scheme, shape, model.depths.of(side))
        checkpointing[side] = dataclasses.replace(
            model.checkpointing[side], every=1 if model.is_stock else every
        )
    return Trial(options, dataclasses.replace(model, checkpointing=checkpointing), training)


def _largest_that_fits(plan: Plan, trial: Trial) -> Plan:
    """Return the plan with the largest micro-batch that fits; else with the smallest."""
    tokens, training = trial.training.max_tokens, trial.training
    while True:
        batch = launch.split_batch(plan.training.tokens, tokens, training.devices)
        training = dataclasses.replace(
            training, max_tokens=batch.max_tokens, update_freq=batch.update_freq
        )
        machine = plan.memory_gib, plan.teraflops, plan.length, plan.utilisation
        candidate = make_plan(trial.model, training, *machine)
        if candidate.fits or tokens // 2 < SMALLEST_MICRO_BATCH:
            return candidate
        tokens //= 2


def as_arguments(options: Options) -> str:
    """Return changed options as fairseq-train takes them."""
    given = {name: value for name, value in options.items() if value is not None}
    words = [
        f"--{name}" if value == "true" else f"--{name} {value}" for name, value in given.items()
    ]
    gone = [f"--{name}" for name, value in options.items() if value is None]
    return " ".join(words) + (f" (without {', '.join(gone)})" if gone else "")


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
        ValueError: where nothing makes it fit, or only what changes the update: that is the user's
            to choose.
    """
    options = config.options | {word.removeprefix("--"): True for word in precision}
    gpus, device = (devices.total, "a GPU") if devices.gpus else (0, "the CPU")
    sizes, _ = vocabulary_of(config, data)
    wanted = estimate(dataclasses.replace(config, options=options), gpus, memory_gib, sizes)
    steps = advise(wanted)
    last = steps[-1]
    if not (last.plan.fits and last.is_exact):
        least = min(step.plan.needed_gib for step in steps if step.is_exact)
        other = "no option makes it fit"
        if last.plan.fits:
            other = f"{as_arguments(last.options)} fits, and changes the training ({last.effect})"
        raise ValueError(
            f"the training needs {least:.1f} GiB, and {device} has {memory_gib:.4g}; {other}; take"
            " GPUs with more memory or a smaller model; MEMORY= starts it all the same"
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
