"""Training updates of stock fairseq and ours in turn, and the time of their kernels."""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from side_by_side import tables
from side_by_side.race import Process, WorkerError, in_turn, start
from side_by_side.systems import Shape, System

SYSTEMS = (
    System("stock", "stock"),
    System("ours", "ours"),
    System("ours, varlen_attn", "ours", ("--varlen-attention",)),
    System("ours, compiled", "ours", ("--compile",)),
)
HEAD = ["model", "precision", "system", "s / update", "tokens / s", "speed"]
HEAD += ["kernels", "kernels / update", "products", "peak GiB"]


def measure(shape: Shape, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per system; the row of a system that fails gives the reason.

    All systems are in memory and run updates in turn.
    """
    left_out = set() if options.compile else {"--compile"}
    left_out |= {"--varlen-attention"} if options.device == "cpu" else set()
    entered = [system for system in SYSTEMS if left_out.isdisjoint(system.options)]
    lines: dict[str, dict[str, Any]] = {}
    answers: dict[str, list[dict[str, Any]]] = {}
    running: dict[str, Process] = {}
    warm_up = 2 if options.device == "cpu" else 8  # for a GPU's libraries and torch.compile
    how = (shape, options.threads, warm_up, options.device)
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            starts = {system.name: pool.submit(start, system, *how) for system in entered}
        for name, started in starts.items():
            try:
                running[name] = started.result()
            except WorkerError as error:
                lines[name] = {"error": str(error)}
        rounds = list(in_turn(running, range(options.rounds)))
        for name in running:
            own = answers[name] = [answered[name] for answered in rounds]
            lines[name] = {
                "seconds": [answer["wall"] for answer in own],
                "tokens": statistics.median(a["tokens"] / a["wall"] for a in own),
                "peak": max(answer["peak"] for answer in own),
                "profile": running[name].ask("kernels"),
            }
    except WorkerError as error:
        for system in entered:
            lines.setdefault(system.name, {"error": str(error)})
    finally:
        for process in running.values():
            process.end()
    base = entered[0].name
    for name in answers if base in answers else ():
        if "error" not in lines[name]:
            ratios = tables.ratios(answers[base], answers[name], "wall")
            lines[name]["speed"] = statistics.median(ratios)
    about = {"model": shape.name, "precision": shape.precision}
    return [{**about, "system": system.name, **lines[system.name]} for system in entered]


def row(line: dict[str, Any]) -> str:
    cells = [line[key] for key in ("model", "precision", "system")]
    if "error" in line:
        return tables.line([*cells, line["error"], *[""] * (len(HEAD) - 4)])
    kernels, seconds = line["profile"], statistics.median(line["seconds"])
    cells += [f"{seconds:.3f}", f"{line['tokens']:,.0f}"]
    cells += [f"{line['speed']:.2f}" if "speed" in line else ""]
    cells += [f"{kernels['seconds'] / seconds:.0%}"]
    cells += [f"{kernels['kernels']:,.0f}", f"{kernels['products'] / kernels['seconds']:.0%}"]
    return tables.line([*cells, f"{line['peak'] / 2**30:.2f}"])
