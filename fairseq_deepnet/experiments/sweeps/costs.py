"""The plan of a sweep: what each cell is, what it costs, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairseq_deepnet.experiments.report.render import text_grid
from fairseq_deepnet.experiments.sweeps import state
from fairseq_deepnet.experiments.sweeps.cells import Cell
from fairseq_deepnet.experiments.sweeps.evidence import vocabulary
from fairseq_deepnet.experiments.sweeps.state import Status
from fairseq_deepnet.tools.configs import Config
from fairseq_deepnet.tools.training import launch

UNKNOWN: Final = "?"
_HEADING: Final = (
    *("cell", "settings", "parameters", "updates", "tokens/update", "hours", "GPU-hours", "state"),
)


@dataclass(frozen=True)
class Machine:
    """What a cell gets.

    Arguments:
        gpus: GPUs of one cell; 0 is the CPU
        memory_gib: memory of each
        teraflops: peak of each device, 10^12 operations a second; None: not known
        is_assumed: whether that is a guess
    """

    gpus: int
    memory_gib: float
    teraflops: float | None
    is_assumed: bool = False


@dataclass(frozen=True)
class Cost:
    """What a cell takes; None for what cannot be told."""

    cell: Cell
    status: Status
    parameters: int | None
    updates: int | None
    tokens: int | None
    hours: float | None
    gpu_hours: float | None
    fits: bool | None


def updates_of(config: Config) -> int | None:
    """Updates of a run, where its config says them."""
    updates = config.options.get("max-update")
    return int(str(updates)) if updates else None


def tokens_of(config: Config) -> int | None:
    """Tokens of one update over all devices, where the config says them."""
    wanted = config.recipe.get("global-batch-tokens")
    if wanted is not None:
        return launch.parse_tokens(wanted)
    limit = config.options.get("max-tokens")
    return int(str(limit)) if limit else None


def _of_recipe(config: Config) -> int | None:
    told = config.recipe.get("vocabulary")
    return None if told is None else int(str(told))


def cost_of(cell: Cell, folder: Path, machine: Machine) -> Cost:
    """What one cell takes on a machine."""
    from fairseq_deepnet.tools.planning import estimate

    config = cell.resolve()
    status = state.status_of(folder / cell.name)
    updates, tokens = updates_of(config), tokens_of(config)
    symbols = vocabulary(config) or cell.vocabulary or _of_recipe(config)
    if symbols is None:
        return Cost(cell, status, None, updates, tokens, None, None, None)
    if machine.gpus and cell.variables.get("PRECISION") != "fp32":
        config.options["bf16"] = True  # what scripts/train.sh adds on a GPU
    if updates is None:
        updates = cell.planned_updates
        config.options["max-update"] = updates
    plan = estimate(
        config, machine.gpus, machine.memory_gib, machine.teraflops or 1.0, vocabulary=symbols
    )
    is_timed = machine.teraflops is not None
    hours = plan.hours if is_timed else None
    gpu_hours = plan.gpu_hours if is_timed else None
    return Cost(cell, status, plan.parameters, updates, tokens, hours, gpu_hours, plan.fits)


def _number(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def plan_text(title: str, costs: Sequence[Cost], machine: Machine) -> str:
    """The table of all cells, the sum over those to do, and what it rests on."""
    rows = [list(_HEADING)]
    for cost in costs:
        rows.append(
            [
                *(cost.cell.name, cost.cell.described()),
                *(_number(cost.parameters), _number(cost.updates), _number(cost.tokens)),
                *(_number(cost.hours, 2), _number(cost.gpu_hours, 2)),
                cost.status.value + ("" if cost.fits in (True, None) else ", too big"),
            ]
        )
    counts = [f"{sum(c.status is s for c in costs)} {s.value}" for s in Status]
    lines = [title, "", text_grid(rows, 2), "", f"{len(costs)} cells: {', '.join(counts)}"]
    return "\n".join([*lines, *_sums(costs, machine)]) + "\n"


def _sums(costs: Sequence[Cost], machine: Machine) -> list[str]:
    left = [cost for cost in costs if not cost.status.is_result]
    unit = "GPU-hours" if machine.gpus else "core-hours"
    if machine.teraflops is None:
        return [
            f"{unit} are not known: give the peak of the device, as in TERAFLOPS=1 (--teraflops 1),"
            " or plan for other devices with GPUS=8 (--gpus 8)"
        ]
    known = [cost.gpu_hours for cost in left if cost.gpu_hours is not None]
    lines = [f"still to run: {len(left)} cells, {sum(known):,.2f} {unit}"]
    if len(known) < len(left):
        lines[0] += f", without {len(left) - len(known)} whose length is not known"
    devices = f"{machine.gpus} GPU{'s' * (machine.gpus > 1)}" if machine.gpus else "the CPU"
    lines.append(
        f"estimated for {devices} of {machine.memory_gib:g} GiB a cell, "
        f"peak {machine.teraflops:g} TFLOP/s each"
        + " (assumed: an A100's in bf16; --teraflops says another)"
        * machine.is_assumed
    )
    return lines
