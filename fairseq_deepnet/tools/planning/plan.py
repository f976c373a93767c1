"""`deepnet plan`: what a training needs, before it starts.

What loads torch is imported where it is used, so that help and bad usage are answered at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tabulate import tabulate

from fairseq_deepnet.files import ROOT
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.devices import DEVICE_GIB, machine_gib

if TYPE_CHECKING:
    from fairseq_deepnet.footprint import Model, Training
    from fairseq_deepnet.tools.planning.advice import Advice
    from fairseq_deepnet.tools.planning.estimates import Plan

ARCH_DEFAULTS: Final = ("max-tokens=4096", "share-all-embeddings=true")
"""What --arch adds to configs/base.yaml."""
HALF: Final = ("fp16", "bf16", "memory-efficient-fp16", "memory-efficient-bf16")
GIB: Final = 2**30
GPUS_A_NODE: Final = 8
"""Processes that share a host's memory, where there are more: assumed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet plan`."""
    add, default = parser.add_argument, "(%(default)s)"
    words = "a YAML file or a name in configs/, and options that win"
    add("words", nargs="*", metavar="CONFIG key=value", help=words)
    add("--arch", help="a named shape, with configs/base.yaml where no CONFIG is")
    add("--gpus", type=int, default=1, help=f"devices in all; 0 is the CPU {default}")
    of_one = f"of one device ({DEVICE_GIB}; with --gpus 0 that of this machine)"
    add("--memory", type=float, metavar="GIB", help=of_one)
    entries = "entries of the dictionary, or of source and target"
    add("--vocabulary", metavar="N[,M]", help=entries)
    add("--data", type=Path, help="the data folder, for its dictionaries")
    auto = "auto: as the options say, else bf16 on GPUs, as scripts/train.sh does"
    add("--precision", choices=("auto", "bf16", "fp16", "fp32"), default="auto", help=auto)
    add("--length", type=int, help="subwords of a sentence, as assumed")
    add("--teraflops", type=float, help="peak of one device in that precision")
    measured = "measure this machine's matrix products instead"
    add("--measure", action="store_true", help=measured)
    add("--utilisation", type=float, help="share of the peak that training reaches, as assumed")
    add("--json", action="store_true", help="JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0 if it fits as it is or with other options, 1 if nothing makes it fit."""
    if args.teraflops is not None and args.measure:
        raise ValueError("--teraflops and --measure contradict each other; give one")
    config, assumptions = read_config(args)

    from fairseq_deepnet.tools.planning import compute
    from fairseq_deepnet.tools.planning.advice import advise
    from fairseq_deepnet.tools.planning.estimates import require_plannable

    configs.check_options(config)
    require_plannable(str(config.options["arch"]))
    sizes, where = read_vocabulary(args, config)
    assumptions.append(f"vocabulary: {where}")
    plan, timed = make(args, config, sizes)
    advice = advise(plan)
    if timed:
        assumptions.append(
            f"{100 * plan.utilisation:.0f} % of {plan.teraflops:.4g} TFLOP/s are reached"
            f"{' (measured here)' if args.measure else ''}, and"
            f" {1e6 * compute.KERNEL_SECONDS:.0f} microseconds start a kernel"
        )
    else:
        assumptions.append("no time: give --teraflops (peak of a device) or --measure")
    if args.json:
        print(json.dumps(as_json(advice, timed), indent=2))
    else:
        print(as_text(advice, assumptions, timed))
    return 0 if advice.fits else 1


def read_config(args: argparse.Namespace) -> tuple[configs.Config, list[str]]:
    """Return the config that the words and --arch name, and what was assumed."""
    words, assumptions = list(args.words), []
    named = bool(words) and "=" not in words[0]
    if not named and args.arch is None:
        raise ValueError("give a config (a file, or a name in configs/) or --arch NAME")
    name, first = (words.pop(0), []) if named else ("base", list(ARCH_DEFAULTS))
    if args.arch is not None:
        first.append(f"arch={args.arch}")
        if first[:-1]:
            assumptions.append(f"configs/base.yaml and {' '.join(first[:-1])}, unless overridden")
    config = configs.load_config(name, [*first, *words])
    if args.precision == "auto":
        if args.gpus and not any(config.options.get(name) for name in HALF):
            config.options["bf16"] = True
            assumptions.append("bf16, as scripts/train.sh trains on GPUs that can")
    else:
        config.options = {k: v for k, v in config.options.items() if k not in HALF}
        if args.precision != "fp32":
            config.options[args.precision] = True
    return config, assumptions


def read_vocabulary(
    args: argparse.Namespace, config: configs.Config
) -> tuple[tuple[int, int], str]:
    """Return the entries of both dictionaries, and where the numbers come from."""
    from fairseq_deepnet.tools.planning import estimates

    if args.vocabulary is not None:
        return estimates.parse_vocabulary(args.vocabulary), "as given"
    if args.data is not None:
        return estimates.vocabulary_in(args.data), f"of {args.data}"
    usual = config.recipe.get("data")
    return estimates.vocabulary_of(config, None if usual is None else ROOT / str(usual))


def make(
    args: argparse.Namespace, config: configs.Config, sizes: tuple[int, int]
) -> tuple[Plan, bool]:
    """Return the plan, and whether its times mean anything."""
    from fairseq_deepnet.footprint.memory import SENTENCE_LENGTH
    from fairseq_deepnet.tools.planning import compute
    from fairseq_deepnet.tools.planning.estimates import estimate

    memory, teraflops, utilisation = args.memory, args.teraflops, compute.UTILISATION
    if memory is None:
        memory = DEVICE_GIB if args.gpus else machine_gib()
    length = SENTENCE_LENGTH if args.length is None else args.length
    timed = args.measure or teraflops is not None
    if args.measure:
        draft = estimate(config, args.gpus, memory, 1, sizes, length)
        teraflops = compute.measure_teraflops(draft.model, draft.training)
        utilisation = compute.GEMM_UTILISATION
    if args.utilisation is not None:
        utilisation = args.utilisation
    speed = teraflops if timed else 1
    return estimate(config, args.gpus, memory, speed, sizes, length, utilisation), timed


def as_text(advice: Advice, assumptions: list[str], timed: bool) -> str:
    """Return the whole report.

    Args:
        assumptions: what was taken for granted, one sentence each
        timed: whether the speed of the device is known
    """
    plan = advice.wanted
    parts = [_parameters(plan), _memory(plan), _compute(plan, timed), _verdict(advice, timed)]
    notes = "\n".join(["Assumed", *(f"  {note}" for note in [*assumptions, *_notes(plan)])])
    return "\n\n".join([*parts, notes])


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    lines = tabulate(rows, tablefmt="plain", colalign=("left", "right"), disable_numparse=True)
    return f"{head}\n{textwrap.indent(lines, '  ')}"


def _parameters(plan: Plan) -> str:
    counts, model = plan.counts, plan.model
    source, target = model.vocabulary
    words = f"{source:,}" if source == target else f"{source:,} and {target:,}"
    tied = "one table" if model.share_all else "projection tied" if model.share_output else "untied"
    rows = [(f"embeddings ({words} entries, {tied})", counts.embeddings)]
    rows.append(("vocabulary projection", counts.projection))
    for side, shape in model.layers.items():
        sizes = f"{shape.embed_dim}/{shape.ffn_dim}/{shape.heads}"
        layers = f"{model.depths.of(side)} layers {sizes} of {counts.layer[side]:,}"
        rows.append((f"{side.value}: {layers}", getattr(counts, side.value)))
    rows.append(("all", counts.total))
    head = f"Parameters: {model.arch}, {model.scheme}"
    return _table(head, [(name, f"{number:,}") for name, number in rows])


def _memory(plan: Plan) -> str:
    from fairseq_deepnet.footprint.memory import FRAGMENTATION, OVERHEAD_GIB

    memory, training = plan.memory, plan.training
    rows = [
        (f"weights ({_held(training)})", memory.weights),
        ("fp32 copy of weights and gradients", memory.masters),
        ("whole while they are computed with", memory.gathered),
        (f"optimiser state ({training.optimizer}, {_held(training, 'fp32')})", memory.optimiser),
        (f"buffers of {training.ddp_backend}", memory.communication),
        ("modules and other objects", memory.host),
        (f"gradients ({_held(training)})", memory.gradients),
        ("copies of weights for --monitor", memory.monitor),
        (f"activations{' (checkpointed)' if plan.model.checkpoint else ''}", memory.activations),
        ("tokens x vocabulary in the loss, at most", memory.loss),
    ]
    lines = [(name, f"{size / GIB:.2f} GiB") for name, size in rows if size]
    lines.append((f"peak of tensors ({memory.peak_moment})", f"{plan.peak_gib:.2f} GiB"))
    process = OVERHEAD_GIB["gpu" if training.gpus else "cpu"]
    share = f"{100 * FRAGMENTATION:.0f} % for the allocator, {process} GiB"
    lines.append((f"needed, with {share} for the process", f"{plan.needed_gib:.2f} GiB"))
    device = {0: "the CPU", 1: "the GPU"}.get(training.gpus, f"each of {training.gpus} GPUs")
    head = f"Memory of {device}, micro-batches of {training.max_tokens:,} tokens per side"
    table = _table(head, lines)
    if plan.model.checkpoint:
        table += f"\n  activation checkpointing: {_checkpointing(plan.model)}"
    return table


def _held(training: Training, precision: str = "") -> str:
    """Return in what type something is held, and in how many parts."""
    if training.sharded:
        return f"fp32, {'host' if training.offload else f'1 / {training.devices}'}"
    return precision or training.precision


def _checkpointing(model: Model) -> str:
    """Return how much of each stack backward computes again."""
    stacks = model.checkpointing.items()
    return "; ".join(f"{s.value}: {kept.describe(model.depths.of(s))}" for s, kept in stacks)


def _compute(plan: Plan, timed: bool) -> str:
    flops, training = plan.flops, plan.training
    times = training.update_freq * training.devices
    unit, scale = ("TFLOP", 1e12) if flops.total * times > 1e12 else ("GFLOP", 1e9)
    rows = [
        ("linear maps, forward", flops.linear),
        ("attention, forward", flops.attention),
        ("vocabulary projection, forward", flops.projection),
        ("backward", flops.backward),
        ("recomputation", flops.recomputation),
        ("an update", flops.total),
    ]
    lines = [(name, f"{size * times / scale:,.2f} {unit}") for name, size in rows if size]
    if timed:
        speed = f"{plan.teraflops:.4g} TFLOP/s a device, of which {100 * plan.utilisation:.0f} %"
        lines.append((f"time an update ({speed})", f"{plan.seconds_per_update:,.2f} s"))
        if plan.hours is not None:
            lines.append((f"time of {training.max_update:,} updates", f"{plan.hours:,.2f} h"))
            if training.gpus > 1:
                lines.append(("GPU-hours", f"{plan.gpu_hours:,.2f}"))
    head = (
        f"Computation of an update: {training.tokens:,} tokens per side ="
        f" {training.max_tokens:,} x update-freq {training.update_freq} x {training.devices}"
    )
    return _table(head, lines)


def _verdict(advice: Advice, timed: bool) -> str:
    from fairseq_deepnet.tools.planning.advice import as_arguments

    plan, memory = advice.wanted, f"{advice.wanted.memory_gib:.4g} GiB"
    if plan.fits:
        return f"It fits into {memory}, with {plan.memory_gib - plan.needed_gib:.1f} GiB to spare."
    lines = [f"It does not fit into {memory}. Tried, each on top of those before:"]
    for step in advice.steps:
        training = step.plan.training
        batch = f"{training.max_tokens:,} tokens x update-freq {training.update_freq}"
        outcome = "fits" if step.plan.fits else "too big"
        speed = f", {step.plan.seconds_per_update:,.1f} s an update" if timed else ""
        lines.append(f"  {step.name}, {batch}: {step.plan.needed_gib:.1f} GiB, {outcome}{speed}")
        lines.append(f"    ({step.effect})")
        if step.plan.model.checkpoint:
            lines.append(f"    {_checkpointing(step.plan.model)}")
    if advice.fits:
        words = [f"{name}={value or 'null'}" for name, value in advice.options.items()]
        lines.append(f"It fits with: {as_arguments(advice.options)}")
        lines.append(f"  as key=value: {' '.join(words)}")
        return "\n".join(lines)
    held = advice.plan.memory
    fixed, loss = (held.persistent + held.gradients) / GIB, held.loss / GIB
    lines += [
        f"No: nothing that fairseq offers makes it fit. The least is {advice.least_gib:.1f} GiB a"
        f" device: {fixed:.1f} GiB are weights, gradients and optimiser, {loss:.1f} GiB the loss of"
        f" {advice.plan.training.max_tokens:,} tokens.",
        "  More GPUs share weights, gradients and the optimiser's state with --ddp-backend"
        " fully_sharded: try --gpus with more of them, a device with more memory, or a smaller"
        " model.",
    ]
    return "\n".join(lines)


def _notes(plan: Plan) -> list[str]:
    from fairseq_deepnet.footprint.memory import checkpoint_size
    from fairseq_deepnet.footprint.setting import CRITERIONS
    from fairseq_deepnet.footprint.sharded import exchanged

    training, model = plan.training, plan.model
    notes = [f"sentences of {plan.length} subwords (--length); micro-batches are full"]
    if not all(shape.attention_dropout == 0 for shape in model.layers.values()):
        notes.append(
            "attention dropout: on the CPU torch keeps tokens x heads x length weights per layer"
            if not training.gpus
            else "attention by a kernel that keeps no tokens x tokens weights"
        )
    if training.gpus:
        processes = 1 if training.sharded else min(training.devices, GPUS_A_NODE)
        who = f"{processes} processes of a node build" if processes > 1 else "the process builds"
        who = "only rank 0 builds" if training.sharded and training.devices > 1 else who
        host = plan.counts.total * 4 * processes / GIB
        saved = checkpoint_size(training, plan.counts) / GIB
        notes.append(
            f"host memory: {host:.1f} GiB while {who} the weights in fp32; {saved:.1f} GiB while"
            " rank 0 saves a checkpoint"
        )
    else:
        notes.append(
            "freed memory goes back to the system, as with MALLOC_MMAP_THRESHOLD_=65536"
            " MALLOC_TRIM_THRESHOLD_=65536; glibc's own choice may hold nearly twice as much"
        )
    if model.is_stock:
        notes.append(f"{model.arch} has fairseq's own layers; its activations are counted as ours")
    if training.sharded and training.devices > 1:
        moved = exchanged(training, plan.counts) / GIB
        notes.append(f"each device receives {moved:.1f} GiB per update, taken to be hidden")
    if training.criterion not in CRITERIONS:
        known = "label_smoothed_cross_entropy"
        notes.append(f"--criterion {training.criterion} holds what {known} does")
    if training.max_update is None:
        notes.append("no --max-update: add max-update=N for the time of the whole run")
    return notes


def as_json(advice: Advice, timed: bool) -> dict[str, Any]:
    """Return the same for programs: bytes, operations, seconds."""
    plan = advice.wanted
    times = ("teraflops", "utilisation", "seconds_per_update", "hours", "gpu_hours")
    counts = dataclasses.asdict(plan.counts)
    counts["layer"] = {side.value: number for side, number in plan.counts.layer.items()}
    return {
        "arch": plan.model.arch,
        "scheme": repr(plan.model.scheme),
        "vocabulary": list(plan.model.vocabulary),
        "length": plan.length,
        "parameters": counts | {"total": plan.counts.total},
        "training": dataclasses.asdict(plan.training),
        "memory_bytes": dataclasses.asdict(plan.memory) | {"peak": plan.memory.peak},
        "recomputed_layers": {s.value: plan.model.recomputed(s) for s in plan.model.layers},
        "peak_gib": plan.peak_gib,
        "needed_gib": plan.needed_gib,
        "memory_gib": plan.memory_gib,
        "fits": plan.fits,
        "flops_per_update": plan.flops_per_update,
        **{name: getattr(plan, name) if timed else None for name in times},
        "advice": {
            "fits": advice.fits,
            "options": advice.options,
            "needed_gib": advice.plan.needed_gib,
            "least_gib": advice.least_gib,
            "tried": [
                {
                    "step": step.name,
                    "max_tokens": step.plan.training.max_tokens,
                    "update_freq": step.plan.training.update_freq,
                    "needed_gib": step.plan.needed_gib,
                    "fits": step.plan.fits,
                }
                for step in advice.steps
            ],
        },
    }
