"""The plan of a sweep: its share of the machine for each cell, and what the cell costs there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from fairseq_deepnet.experiments import state
from fairseq_deepnet.experiments.cells import Cell
from fairseq_deepnet.experiments.runs import Status, tokens_of, updates_of, vocabulary_of
from fairseq_deepnet.tools import tables
from fairseq_deepnet.tools.devices import DEVICE_GIB, choose_devices, gpu_gib

if TYPE_CHECKING:
    from fairseq_deepnet.tools.planning.estimates import Plan

ASSUMED_TERAFLOPS: Final = 312.0
"""Peak of a GPU whose speed is not given: an A100's in bf16."""
_HEADING: Final = (
    *(
        "cell",
        "differs from its config in",
        "parameters",
        "updates",
        "tokens/update",
        "hours",
        "GPU-hours",
        "state",
    ),
)


class Machine(NamedTuple):
    """What a cell gets: GPUs (0 is the CPU), the memory of each, its peak, maybe a guess."""

    gpus: int
    memory_gib: float
    teraflops: float | None
    is_assumed: bool = False


def machine_of(gpus: int, memory_gib: float | None, teraflops: float | None) -> Machine:
    """Return one cell's share, with the memory that is there unless it is given."""
    if memory_gib is None and gpus:
        memory_gib = gpu_gib(1) or DEVICE_GIB  # a dry run may be for another machine
    elif memory_gib is None:
        memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    assumed = ASSUMED_TERAFLOPS if gpus else None
    return Machine(gpus, round(memory_gib, 1), teraflops or assumed, teraflops is None)


class Cost(NamedTuple):
    """What a cell takes; None for what is not known, `plan` without a vocabulary."""

    cell: Cell
    status: Status
    updates: int | None
    tokens: int | None
    plan: Plan | None


def cost_of(cell: Cell, folder: Path, machine: Machine) -> Cost:
    """Return what one cell takes on a machine."""
    from fairseq_deepnet.tools.planning.estimates import estimate

    config = cell.resolve()
    status = state.status_of(folder / cell.name)
    updates, tokens = updates_of(config), tokens_of(config)
    symbols = vocabulary_of(config) or cell.panel.vocabulary or config.recipe.get("vocabulary")
    if symbols is None:
        return Cost(cell, status, updates, tokens, None)
    if machine.gpus and cell.variables.get("PRECISION") != "fp32":
        config.options["bf16"] = True  # what scripts/train.sh adds on a GPU
    if updates is None:
        updates = config.options["max-update"] = cell.panel.planned_updates
    speed = machine.teraflops or 1.0
    plan = estimate(config, machine.gpus, machine.memory_gib, speed, vocabulary=int(str(symbols)))
    return Cost(cell, status, updates, tokens, plan)


def _number(value: float | None, digits: int = 0) -> str:
    return "?" if value is None else f"{value:,.{digits}f}"


def plan_text(title: str, costs: Sequence[Cost], machine: Machine) -> str:
    """Return the table of all cells, the sum over those to do, and what it rests on."""
    rows = [list(_HEADING)]
    for cost in costs:
        plan, is_timed = cost.plan, machine.teraflops is not None
        hours = [plan.hours, plan.gpu_hours] if plan and is_timed else [None, None]
        numbers = (plan.parameters if plan else None, cost.updates, cost.tokens)
        end = ", too big" if plan and not plan.fits else ""
        row = [
            cost.cell.name,
            ", ".join(f"{k} {v}" for k, v in cost.cell.differences().items()),
            *map(_number, numbers),
        ]
        rows.append([*row, *(_number(value, 2) for value in hours), cost.status.value + end])
    counts = [f"{sum(c.status is s for c in costs)} {s.value}" for s in Status]
    lines = [title, "", tables.text(rows, 2), "", f"{len(costs)} cells: {', '.join(counts)}"]
    return "\n".join([*lines, *_sums(costs, machine)]) + "\n"


def _sums(costs: Sequence[Cost], machine: Machine) -> list[str]:
    left = [cost for cost in costs if not cost.status.is_result]
    unit = "GPU-hours" if machine.gpus else "core-hours"
    if machine.teraflops is None:
        return [
            f"{unit} are not known: give the peak of the device, as in TERAFLOPS=1 (--teraflops 1),"
            " or plan for other devices with GPUS=8 (--gpus 8)"
        ]
    hours = [cost.plan.gpu_hours if cost.plan else None for cost in left]
    known = [value for value in hours if value is not None]
    total = f"still to run: {len(left)} cells, {sum(known):,.2f} {unit}"
    if len(known) < len(left):
        total += f", without {len(left) - len(known)} whose length is not known"
    devices = f"{machine.gpus} GPU{'s' * (machine.gpus > 1)}" if machine.gpus else "the CPU"
    assumed = " (assumed: an A100's in bf16; --teraflops says another)" * machine.is_assumed
    return [
        total,
        f"estimated for {devices} of {machine.memory_gib:g} GiB a cell, "
        f"peak {machine.teraflops:g} TFLOP/s each{assumed}",
    ]


def shares(
    gpus: str, parallel: int, visible: list[str], cores: int, threads: int | None = None
) -> list[dict[str, str]]:
    """Return one set of variables for scripts/train.sh and scripts/eval_bleu.sh a cell at work.

    Args:
        gpus: GPUs to use in all, or "all"; "0" is the CPU
        parallel: cells at once; ValueError for more than there are GPUs
        visible: the machine's GPUs, as CUDA_VISIBLE_DEVICES names them
        threads: of each cell on the CPU; None for an equal share of the cores
    """
    for name, number in (("parallel", parallel), ("threads", threads)):
        if number is not None and number < 1:
            raise ValueError(f"--{name} {number}: at least 1 is needed")
    count = choose_devices(gpus, 1, 1, len(visible)).gpus
    if not count:
        cpus = str(threads or max(1, cores // parallel))
        # training has one process of many threads, scoring many processes of one
        share = {"GPUS": "0", "THREADS": cpus, "PROCESSES": cpus, "OMP_NUM_THREADS": "1"}
        return [share] * parallel
    if parallel > count:
        raise ValueError(
            f"--parallel {parallel}: {parallel} cells at once on {count} "
            f"GPU{'s' if count > 1 else ''}; at most {count}"
        )
    each = count // parallel
    slots = (visible[slot * each : (slot + 1) * each] for slot in range(parallel))
    return [{"GPUS": str(each), "CUDA_VISIBLE_DEVICES": ",".join(names)} for names in slots]
