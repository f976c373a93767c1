"""A plan as text and as JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any, Final

from tabulate import tabulate

from fairseq_deepnet.footprint import Model
from fairseq_deepnet.footprint.memory import (
    FRAGMENTATION,
    GIB,
    OVERHEAD_GIB,
    checkpoint_size,
)
from fairseq_deepnet.footprint.setting import CRITERIONS, Training
from fairseq_deepnet.footprint.sharded import exchanged
from fairseq_deepnet.schemes import Side
from fairseq_deepnet.tools.planning.advice import Advice
from fairseq_deepnet.tools.planning.estimates import Plan

GPUS_A_NODE: Final = 8
"""Processes that share a host's memory, where there are more: assumed."""


def as_text(advice: Advice, assumptions: list[str], timed: bool) -> str:
    """Return everything that `deepnet plan` says.

    Args:
        assumptions: what was taken for granted, one sentence each
        timed: whether the speed of the device is known
    """
    plan = advice.wanted
    parts = [_parameters(plan), _memory(plan), _compute(plan, timed), _verdict(advice, timed)]
    notes = [*assumptions, *_notes(plan)]
    parts.append("\n".join(["Assumed", *(f"  {note}" for note in notes)]))
    return "\n\n".join(parts)


def _parameters(plan: Plan) -> str:
    counts, model = plan.counts, plan.model
    source, target = model.vocabulary
    words = f"{source:,}" if source == target else f"{source:,} and {target:,}"
    tied = "one table" if model.share_all else "projection tied" if model.share_output else "untied"
    rows = [(f"embeddings ({words} entries, {tied})", counts.embeddings)]
    rows.append(("vocabulary projection", counts.projection))
    for side in Side:
        depth, total = model.depths.of(side), getattr(counts, side.value)
        shape, each = model.layers[side], counts.layer[side]
        sizes = f"{shape.embed_dim}/{shape.ffn_dim}/{shape.heads}"
        rows.append((f"{side.value}: {depth} layers {sizes} of {each:,}", total))
    rows.append(("all", counts.total))
    head = f"Parameters: {plan.model.arch}, {model.scheme}"
    return _table(head, [(name, f"{number:,}") for name, number in rows])


def _memory(plan: Plan) -> str:
    memory, training = plan.memory, plan.training
    rows = [
        (f"weights ({_held(training)})", memory.weights),
        ("fp32 copy of weights and gradients", memory.masters),
        ("whole while they are computed with", memory.gathered),
        (f"optimiser state ({training.optimizer}, {_held(training, 'fp32')})", memory.optimiser),
        (f"buffers of {training.ddp_backend}", memory.communication),
        ("modules and other objects", memory.host),
        (f"gradients ({_held(training)})", memory.gradients),
        (f"activations{' (checkpointed)' if plan.model.checkpoint else ''}", memory.activations),
        ("tokens x vocabulary in the loss, at most", memory.loss),
    ]
    lines = [(name, f"{size / GIB:.2f} GiB") for name, size in rows if size]
    lines.append((f"peak of tensors ({memory.peak_moment})", f"{plan.peak_gib:.2f} GiB"))
    where = "gpu" if training.gpus else "cpu"
    share = f"{100 * FRAGMENTATION:.0f} % for the allocator, {OVERHEAD_GIB[where]} GiB"
    lines.append((f"needed, with {share} for the process", f"{plan.needed_gib:.2f} GiB"))
    device = {0: "the CPU", 1: "the GPU"}.get(training.gpus, f"each of {training.gpus} GPUs")
    head = f"Memory of {device}, micro-batches of {training.max_tokens:,} tokens a side"
    table = _table(head, lines)
    if plan.model.checkpoint:
        table += f"\n  activation checkpointing: {_checkpointing(plan.model)}"
    return table


def _held(training: Training, precision: str = "") -> str:
    """Say in what type something is held, and in how many parts."""
    if training.sharded:
        where = "host" if training.offload else f"1 / {training.devices}"
        return f"fp32, {where}"
    return precision or training.precision


def _checkpointing(model: Model) -> str:
    """Return how much of each stack backward computes again."""
    kept = ((side, model.checkpointing[side].describe(model.depths.of(side))) for side in Side)
    return "; ".join(f"{side.value}: {text}" for side, text in kept)


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
        f"Computation of an update: {training.tokens:,} tokens a side ="
        f" {training.max_tokens:,} x update-freq {training.update_freq} x {training.devices}"
    )
    return _table(head, lines)


def _verdict(advice: Advice, timed: bool) -> str:
    plan = advice.wanted
    memory = f"{plan.memory_gib:.4g} GiB"
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
        lines.append(f"It fits with: {as_arguments(advice.options)}")
        lines.append(f"  as key=value: {as_overrides(advice.options)}")
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


def as_arguments(options: dict[str, str | None]) -> str:
    """Return changed options as fairseq-train takes them."""
    given = {name: value for name, value in options.items() if value is not None}
    words = [f"--{name}" + f" {value}" * (value != "true") for name, value in given.items()]
    gone = [f"--{name}" for name, value in options.items() if value is None]
    return " ".join(words) + (f" (without {', '.join(gone)})" if gone else "")


def as_overrides(options: dict[str, str | None]) -> str:
    """Return changed options as `deepnet args` and `deepnet plan` take them."""
    return " ".join(f"{name}={value or 'null'}" for name, value in options.items())


def _notes(plan: Plan) -> list[str]:
    training, model = plan.training, plan.model
    notes = [f"sentences of {plan.length} subwords (--length); micro-batches are full"]
    if not all(shape.attention_dropout == 0 for shape in model.layers.values()):
        notes.append(
            "attention dropout: on the CPU torch keeps tokens x heads x length weights a layer"
            if not training.gpus
            else "attention by a kernel that keeps no tokens x tokens weights"
        )
    if training.gpus:
        processes = 1 if training.sharded else min(training.devices, GPUS_A_NODE)
        host = plan.counts.total * 4 * processes / GIB
        who = f"{processes} processes of a node build" if processes > 1 else "the process builds"
        who = "rank 0 alone builds" if training.sharded and training.devices > 1 else who
        saved = checkpoint_size(training, plan.counts) / GIB
        notes.append(
            f"host memory: {host:.1f} GiB while {who} the weights in fp32; {saved:.1f} GiB while"
            " rank 0 saves a checkpoint"
            + (", none with --use-sharded-state" if training.sharded else "")
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
        notes.append(f"each device receives {moved:.1f} GiB an update, taken to be hidden")
    if training.criterion not in CRITERIONS:
        known = "label_smoothed_cross_entropy"
        notes.append(f"--criterion {training.criterion} holds what {known} does")
    if training.max_update is None:
        notes.append("no --max-update: add max-update=N for the time of the whole run")
    return notes


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    lines = tabulate(rows, tablefmt="plain", colalign=("left", "right"), disable_numparse=True)
    return f"{head}\n{textwrap.indent(lines, '  ')}"


def as_json(advice: Advice, timed: bool) -> dict[str, Any]:
    """Return the same for programs: bytes, operations, seconds."""
    plan = advice.wanted
    times = {
        "teraflops": plan.teraflops,
        "utilisation": plan.utilisation,
        "seconds_per_update": plan.seconds_per_update,
        "hours": plan.hours,
        "gpu_hours": plan.gpu_hours,
    }
    tried = [
        {
            "step": step.name,
            "max_tokens": step.plan.training.max_tokens,
            "update_freq": step.plan.training.update_freq,
            "needed_gib": step.plan.needed_gib,
            "fits": step.plan.fits,
        }
        for step in advice.steps
    ]
    counts = dataclasses.asdict(plan.counts)
    counts["layer"] = {side.value: number for side, number in plan.counts.layer.items()}
    memory = dataclasses.asdict(plan.memory) | {"peak": plan.memory.peak}
    return {
        "arch": plan.model.arch,
        "scheme": repr(plan.model.scheme),
        "vocabulary": list(plan.model.vocabulary),
        "length": plan.length,
        "parameters": counts | {"total": plan.counts.total},
        "training": dataclasses.asdict(plan.training),
        "memory_bytes": memory,
        "recomputed_layers": {side.value: plan.model.recomputed(side) for side in Side},
        "peak_gib": plan.peak_gib,
        "needed_gib": plan.needed_gib,
        "memory_gib": plan.memory_gib,
        "fits": plan.fits,
        "flops_per_update": plan.flops_per_update,
        **(times if timed else dict.fromkeys(times)),
        "advice": {
            "fits": advice.fits,
            "options": advice.options,
            "needed_gib": advice.plan.needed_gib,
            "least_gib": advice.least_gib,
            "tried": tried,
        },
    }
