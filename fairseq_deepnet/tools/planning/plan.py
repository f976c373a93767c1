"""`deepnet plan`: what a training needs, before it starts.

Modules that load torch are imported where they are used, so that help and bad usage are answered at
once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tabulate import tabulate

from fairseq_deepnet.files import ROOT
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.devices import DEVICE_GIB, machine_gib

if TYPE_CHECKING:
    from fairseq_deepnet.tools.planning.advice import Advice
    from fairseq_deepnet.tools.planning.estimates import Plan

ARCH_DEFAULTS: Final = ("max-tokens=4096", "share-all-embeddings=true")
"""What --arch adds to configs/base.yaml."""
HALF: Final = ("fp16", "bf16", "memory-efficient-fp16", "memory-efficient-bf16")
GIB: Final = 2**30
GPUS_PER_NODE: Final = 8
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
    add("--length", type=int, default=32, help=f"subwords of a sentence, as assumed {default}")
    add("--teraflops", type=float, help="peak of one device in that precision, for the time")
    reached = f"share of the peak that training reaches, as assumed {default}"
    add("--utilisation", type=float, default=0.3, help=reached)
    add("--json", action="store_true", help="JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0 if it fits as it is or with other options, 1 if nothing makes it fit."""
    config, notes = read_config(args)

    from fairseq_deepnet.tools.planning.advice import advise
    from fairseq_deepnet.tools.planning.estimates import estimate, require_plannable

    configs.check_options(config)
    require_plannable(str(config.options["arch"]))
    sizes, where = read_vocabulary(args, config)
    memory = args.memory
    if memory is None:
        memory = DEVICE_GIB if args.gpus else machine_gib()
    speed = (args.teraflops, args.length, args.utilisation)
    advice = advise(estimate(config, args.gpus, memory, sizes, *speed))
    if args.json:
        print(json.dumps(as_json(advice), indent=2))
    else:
        print(as_text(advice, [*notes, f"vocabulary: {where}"]))
    return 0 if advice.last.plan.fits else 1


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


def as_text(advice: Advice, assumptions: list[str]) -> str:
    """Return the whole report: what is needed in one table, what makes it fit, what is assumed."""
    plan = advice.wanted
    sections = {
        "Parameters": _parameters(plan),
        "Memory": _memory(plan),
        "Update": _update(plan),
    }
    rows = [
        ("" if number else section, *row)
        for section, part in sections.items()
        for number, row in enumerate(part)
    ]
    sides = ("left", "left", "right")
    table = tabulate(rows, tablefmt="plain", colalign=sides, disable_numparse=True)
    head = f"{plan.model.arch}, {plan.model.scheme}\n\n{table}"
    notes = "\n".join(["Assumed", *(f"  {note}" for note in [*assumptions, *_notes(plan)])])
    return f"{head}\n\n{_verdict(advice)}\n\n{notes}"


def _parameters(plan: Plan) -> list[tuple[str, str]]:
    counts, model = plan.counts, plan.model
    words = " and ".join(f"{entries:,}" for entries in dict.fromkeys(model.vocabulary))
    tied = "one table" if model.share_all else "projection tied" if model.share_output else "untied"
    rows = [(f"embeddings ({words} entries, {tied})", counts.embeddings)]
    rows.append(("vocabulary projection", counts.projection))
    for side, shape in model.layers.items():
        sizes = f"{shape.embed_dim}/{shape.ffn_dim}/{shape.heads}"
        layers = f"{model.depths.of(side)} layers {sizes} of {counts.layer[side]:,}"
        rows.append((f"{side.value}: {layers}", getattr(counts, side.value)))
    rows.append(("all", counts.total))
    return [(name, f"{number:,}") for name, number in rows]


def _memory(plan: Plan) -> list[tuple[str, str]]:
    from fairseq_deepnet.footprint.memory import FRAGMENTATION, OVERHEAD_GIB

    memory, training, model = plan.memory, plan.training, plan.model
    shard = "host" if training.offload else f"1 / {training.devices}"
    held = f"fp32, {shard}" if training.sharded else ""
    again = (f"{s.value} by {kept.every}" for s, kept in model.checkpointing.items() if kept.every)
    checkpointed = f" (checkpointed: {', '.join(again)})" if model.checkpoint else ""
    rows = {
        f"weights ({held or training.precision})": memory.weights,
        "fp32 copy of weights and gradients": memory.masters,
        "whole while they are computed with": memory.gathered,
        f"optimiser state ({training.optimizer}, {held or 'fp32'})": memory.optimiser,
        f"buffers of {training.ddp_backend}": memory.communication,
        "modules and other objects": memory.host,
        f"gradients ({held or training.precision})": memory.gradients,
        "copies of weights for --monitor": memory.monitor,
        f"activations{checkpointed}": memory.activations,
        "tokens x vocabulary in the loss, at most": memory.loss,
        f"peak of tensors ({memory.peak_moment})": memory.peak,
    }
    process = OVERHEAD_GIB["gpu" if training.gpus else "cpu"]
    share = f"{100 * FRAGMENTATION:.0f} % for the allocator, {process} GiB"
    needed = (f"needed, with {share} for the process", f"{plan.needed_gib:.2f} GiB")
    return [*((name, f"{size / GIB:.2f} GiB") for name, size in rows.items() if size), needed]


def _update(plan: Plan) -> list[tuple[str, str]]:
    flops, training = plan.flops, plan.training
    times = training.update_freq * training.devices
    unit, scale = ("TFLOP", 1e12) if flops.total * times > 1e12 else ("GFLOP", 1e9)
    parts = {
        "linear maps, forward": flops.linear,
        "attention, forward": flops.attention,
        "vocabulary projection, forward": flops.projection,
        "backward": flops.backward,
        "recomputation": flops.recomputation,
        "all": flops.total,
    }
    batch = f"{training.max_tokens:,} x update-freq {training.update_freq} x {training.devices}"
    rows = [(f"tokens per side: {batch}", f"{training.tokens:,}")]
    rows += [(name, f"{n * times / scale:,.2f} {unit}") for name, n in parts.items() if n]
    if plan.seconds_per_update is not None:
        speed = f"{plan.teraflops:.4g} TFLOP/s per device, of which {100 * plan.utilisation:.0f} %"
        rows.append((f"time ({speed})", f"{plan.seconds_per_update:,.2f} s"))
    if plan.hours is not None:
        rows.append((f"time of {training.max_update:,} updates", f"{plan.hours:,.2f} h"))
        rows.append(("device-hours", f"{plan.gpu_hours:,.2f}"))
    return rows


def _verdict(advice: Advice) -> str:
    from fairseq_deepnet.tools.planning.advice import as_arguments

    plan, last, memory = advice.wanted, advice.last, f"{advice.wanted.memory_gib:.4g} GiB"
    if plan.fits:
        return f"It fits into {memory}, with {plan.memory_gib - plan.needed_gib:.1f} GiB to spare."
    lines = [f"It does not fit into {memory}. Tried, each on top of those before:"]
    for step in advice.steps:
        training, seconds = step.plan.training, step.plan.seconds_per_update
        batch = f"{training.max_tokens:,} tokens x update-freq {training.update_freq}"
        outcome = "fits" if step.plan.fits else "too big"
        speed = "" if seconds is None else f", {seconds:,.1f} s per update"
        lines.append(f"  {step.name}, {batch}: {step.plan.needed_gib:.1f} GiB, {outcome}{speed}")
        lines.append(f"    ({step.effect})")
    if last.plan.fits:
        words = [f"{name}={value or 'null'}" for name, value in last.options.items()]
        lines.append(f"It fits with: {as_arguments(last.options)}")
        lines.append(f"  as key=value: {' '.join(words)}")
    else:
        lines.append(
            f"Nothing that fairseq offers makes it fit: {advice.least_gib:.1f} GiB per device are"
            " the least. Try --gpus with more devices, which share weights, gradients and the"
            " optimiser's state with --ddp-backend fully_sharded, more memory or a smaller model."
        )
    return "\n".join(lines)


def _notes(plan: Plan) -> list[str]:
    from fairseq_deepnet.footprint import CRITERIONS
    from fairseq_deepnet.footprint.memory import checkpoint_size, exchanged

    training, model = plan.training, plan.model
    notes = [f"sentences of {plan.length} subwords (--length); micro-batches are full"]
    if training.gpus:
        processes = 1 if training.sharded else min(training.devices, GPUS_PER_NODE)
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
        similar = "label_smoothed_cross_entropy"
        notes.append(f"--criterion {training.criterion} holds what {similar} does")
    return notes


def as_json(advice: Advice) -> dict[str, Any]:
    """Return the same for programs: bytes, operations, seconds (None without --teraflops)."""
    plan, last = advice.wanted, advice.last
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
        "peak_gib": plan.memory.peak / GIB,
        "needed_gib": plan.needed_gib,
        "memory_gib": plan.memory_gib,
        "fits": plan.fits,
        "flops_per_update": plan.flops_per_update,
        **{name: getattr(plan, name) for name in times},
        "advice": {
            "fits": last.plan.fits,
            "options": last.options,
            "needed_gib": last.plan.needed_gib,
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
