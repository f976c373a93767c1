"""Long-lived processes, one per system, that run one update each per round, in turn.

Updates of one round use the same batch within seconds of each other, so that disturbances of the
machine affect all systems alike. Compare systems by ratios within rounds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from side_by_side.systems import Shape, System


class WorkerError(RuntimeError):
    """Error of a worker process that has ended."""


class Process:
    """A worker process that executes orders with a number of threads."""

    def __init__(self, threads: int) -> None:
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (as long as the process)
        paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "side_by_side.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            encoding="utf-8",
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            },
        )

    def ask(self, order: str, **details: Any) -> dict[str, Any]:
        """Send an order and return its answer; raise WorkerError if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": order, **details}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            status = self.process.wait()
            self.errors.seek(0)
            last = self.errors.read().strip().rpartition("\n")[2]
            killed = " (killed: out of memory?)" if status == -9 else ""
            raise WorkerError(f"the process ended with status {status}{killed}: {last}")
        return dict(json.loads(answer))

    def end(self) -> None:
        """End the process; kill it if it does not exit."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def start(
    system: System, shape: Shape, threads: int, warm_up: int = 2, device: str = "cpu"
) -> Process:
    """Start a process, build its model and warm it up; raise WorkerError if that fails.

    The warm-up updates fill the optimiser's state, memory and caches.
    """
    process = Process(threads)
    entry = {**dataclasses.asdict(system), "plugin": str(system.plugin)}
    try:
        process.ask("build", system=entry, shape=dataclasses.asdict(shape), device=device)
        for _ in range(warm_up):
            process.ask("step")
    except WorkerError:
        process.end()
        raise
    return process


def in_turn(running: Mapping[str, Process], rounds: range) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield one update per process and round, by name, in an order that rotates."""
    names = list(running)
    for number in rounds if names else ():
        turn = number % len(names)
        order = (*names[turn:], *names[:turn])
        yield {name: {**running[name].ask("step"), "round": number} for name in order}


def race(
    systems: list[System], shape: Shape, rounds: int, threads: int
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Race all systems; return their answers per round, and notes on failures.

    All systems run at the same time, so they must fit into memory together.
    """
    notes: list[str] = []
    running: dict[str, Process] = {}
    try:
        for system in systems:
            try:
                running[system.name] = start(system, shape, threads)
            except WorkerError as failure:
                notes.append(f"{shape.name}: {system.name}: {failure}")
        updates = list(in_turn(running, range(rounds)))
    except WorkerError as failure:
        return {}, [*notes, f"{shape.name}: {failure}"]
    finally:
        for process in running.values():
            process.end()
    return {name: [answers[name] for answers in updates] for name in running}, notes
