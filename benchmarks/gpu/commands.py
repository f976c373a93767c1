"""fairseq-train itself on the sample text: two processes on one device, an error, and resuming."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from side_by_side.systems import PRECISIONS, ROOT

from gpu import features
from gpu.correctness import distance
from gpu.features import LIMITS, UPDATES

HEAD = ["run", "precision", "difference", "limit", ""]
SECONDS = 120
"""Time limit of a command, and of the other rank's end after an error."""
ERROR = "planted error"
FAILING = f"""
import sys
from fairseq.distributed.utils import get_global_rank
from fairseq.tasks.translation import TranslationTask
from fairseq_cli.train import cli_main
step = TranslationTask.train_step
def train_step(self, *args, **kwargs):
    if get_global_rank() == 1 and kwargs["update_num"] == 1:
        raise RuntimeError("{ERROR}")
    return step(self, *args, **kwargs)
TranslationTask.train_step = train_step
sys.argv[0] = "fairseq-train"
cli_main()
"""


class Runs:
    """Runs of a small model in a temporary folder.

    Arguments:
        folder: folder of the data and of all checkpoints
        options: the benchmark's command line
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.data = folder, folder / "data"
        self.words = [str(self.data), f"--user-dir={ROOT / 'fairseq_deepnet'}", "--seed=1"]
        self.words += ["--arch=deepnet_transformer_tiny", "--lr=1e-3", "--adam-eps=1e-3"]
        self.words += ["--optimizer=fused_adam", "--max-tokens=512", "--disable-validation"]
        self.words += ["--dropout=0", *(["--cpu"] if options.device == "cpu" else [])]
        command = [sys.executable, "-m", "fairseq_deepnet.cli", "preprocess", "sample"]
        subprocess.run([*command, f"--out={self.data}"], check=True, capture_output=True, cwd=ROOT)

    def train(self, name: str, *words: str, world: int = 1, code: str = "") -> list[str]:
        """Train in `world` processes on the first device; return the errors of those that failed.

        The group is gloo's: NCCL refuses two ranks on one device.
        """
        program = ["-c", code] if code else ["-m", "fairseq_cli.train"]
        command = [sys.executable, *program, *self.words, f"--save-dir={self.folder / name}"]
        command += [*words, f"--distributed-world-size={world}"]
        if world > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            command += ["--distributed-backend=gloo", "--distributed-no-spawn", "--device-id=0"]
            command += [f"--distributed-init-method=tcp://127.0.0.1:{port}"]
        logs = [self.folder / f"{name}.{rank}.log" for rank in range(world)]
        processes = []
        for rank, log in enumerate(logs):
            own = [f"--distributed-rank={rank}"] if world > 1 else []
            with log.open("w", encoding="utf-8") as file:
                process = subprocess.Popen([*command, *own], stdout=file, stderr=file, cwd=ROOT)
            processes.append(process)
        deadline = time.monotonic() + SECONDS
        errors = []
        for process, log in zip(processes, logs, strict=True):
            try:
                status = process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                status = f"timeout after {SECONDS} s"
            if status:
                last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
                errors.append(": ".join([str(status), *last]))
        return errors

    def resume(self, whole: str, precision: str) -> list[str]:
        """Train in one run and in two halves; return the errors."""
        words = ["--dropout=0.1", *PRECISIONS[precision]]
        errors = self.train(f"whole-{precision}", whole, *words)
        for updates in (f"--max-update={UPDATES // 2}", whole):
            errors += self.train(f"resumed-{precision}", updates, *words)
        return errors

    def weights(self, name: str) -> torch.Tensor:
        """Return all weights of a run's last checkpoint as a vector."""
        from fairseq_deepnet.checkpoints import load_checkpoint

        state = load_checkpoint(self.folder / name / "checkpoint_last.pt")["model"]
        return torch.cat([value.float().flatten() for value in state.values()])


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per run: weights after UPDATES updates against those of a plain run."""
    whole = f"--max-update={UPDATES}"
    rows: list[dict[str, Any]] = []

    def compare(run: str, precision: str, errors: list[str], names: tuple[str, str]) -> None:
        row = {"run": run, "precision": precision, "right": False}
        if errors:
            row["error"] = "; ".join(errors)
        else:
            row["off"] = distance(*map(runs.weights, names))
            row["right"] = row["off"] <= LIMITS[precision]
        rows.append(row)

    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), options)
        sharded = ("--ddp-backend=fully_sharded", whole)
        with ThreadPoolExecutor(options.jobs) as pool:
            plain = pool.submit(runs.train, "plain", whole, "--update-freq=2")
            apart = pool.submit(runs.train, "sharded", *sharded, world=2)
            failing = pool.submit(runs.train, "failing", *sharded, world=2, code=FAILING)
            precisions = ("fp32", *options.precisions)
            resumed = [pool.submit(runs.resume, whole, precision) for precision in precisions]
        errors = plain.result() + apart.result()
        compare("sharded, two processes", "fp32", errors, ("sharded", "plain"))
        for precision, run in zip(precisions, resumed, strict=True):
            names = (f"resumed-{precision}", f"whole-{precision}")
            compare("saved and resumed", precision, run.result(), names)
        errors = failing.result()
        log = (Path(folder) / "failing.1.log").read_text(encoding="utf-8")
        ended = len(errors) == 2 and not any("timeout" in error for error in errors)
        row = {"run": "an error in one of two processes ends both", "precision": "fp32"}
        rows.append({**row, "right": ended and ERROR in log})
    return rows


def row(line: dict[str, Any]) -> str:
    """Return the row of the table."""
    return features.row(line, ("run", "precision"))
