"""Training updates of stock fairseq and ours in turn, and the time of their kernels."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from side_by_side import tables
from side_by_side.race import Process, WorkerError, in_turn, start
from side_by_side.systems import Shape, System, estimated_gib

SYSTEMS = (
    System("stock", "stock"),
    System("ours", "ours"),
    System("ours, compiled", "ours", ("--compile",)),
)
HEAD = ["model", "precision", "system", "s / update", "tokens / s", "speed", "in turn"]
HEAD += ["kernels", "kernels / update", "products", "peak GiB"]


def free_gib(options: argparse.Namespace) -> float:
    """Memory of the device that is free now."""
    if options.device == "cuda":
        return float(torch.cuda.mem_get_info()[0] / 2**30)
    from side_by_side.memory import available_gib

    return available_gib()


def warm(system: System, shape: Shape, options: argparse.Namespace) -> Process:
    """A process that has made some updates: a GPU's libraries and torch.compile need several."""
    updates = 2 if options.device == "cpu" else 8
    return start(system, shape, "wall", options.threads, updates, None, options.device)


def measure(
    shape: Shape, options: argparse.Namespace, systems: Sequence[System] = SYSTEMS
) -> list[dict[str, Any]]:
    """A line a system; what fails has a line that says so."""
    gpus = 1 if options.device == "cuda" else 0
    entered = [system for system in systems if options.compile or "--compile" not in system.options]
    needed = {system.name: estimated_gib(system, shape, gpus) for system in entered}
    together = sum(needed.values()) < free_gib(options)
    lines: dict[str, dict[str, Any]] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    groups = [entered] if together else [[system] for system in entered]
    for number, group in enumerate(groups):
        running: dict[str, Process] = {}
        try:
            for system in group:
                try:
                    running[system.name] = warm(system, shape, options)
                except WorkerError as error:
                    lines[system.name] = {"error": str(error)}
            first = number * options.rounds
            rounds = list(in_turn(running, range(first, first + options.rounds)))
            for name in running:
                answers = found[name] = [answered[name] for answered in rounds]
                lines[name] = {
                    "seconds": [answer["wall"] for answer in answers],
                    "losses": [answer["loss"] for answer in answers],
                    "tokens": statistics.median(a["tokens"] / a["wall"] for a in answers),
                    "peak": max(answer["peak"] for answer in answers),
                    "together": together,
                    "profile": running[name].ask("kernels"),
                }
        except WorkerError as error:
            for system in group:
                lines.setdefault(system.name, {"error": str(error)})
        finally:
            for process in running.values():
                process.end()
    base = lines[entered[0].name]
    for name, line in lines.items():
        if "error" not in base and "error" not in line:
            line["speed"] = tables.speed(found[entered[0].name], found[name], "wall")
    about = {"model": shape.name, "precision": shape.precision}
    return [{**about, "system": system.name, **lines[system.name]} for system in entered]


def row(line: dict[str, Any]) -> str:
    cells = [line[key] for key in ("model", "precision", "system")]
    if "error" in line:
        return tables.line([*cells, line["error"], *[""] * (len(HEAD) - 4)])
    kernels, seconds = line["profile"], statistics.median(line["seconds"])
    cells += [f"{seconds:.3f}", f"{line['tokens']:,.0f}"]
    cells += [f"{line['speed']:.2f}" if "speed" in line else ""]
    cells += ["yes" if line["together"] else "no", f"{kernels['seconds'] / seconds:.0%}"]
    cells += [f"{kernels['kernels']:,.0f}", f"{kernels['products'] / kernels['seconds']:.0%}"]
    return tables.line([*cells, f"{line['peak'] / 2**30:.2f}"])
