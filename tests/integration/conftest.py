"""Tiny corpus and command runner for all tests of fairseq's commands."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.trainer import Trainer

from tests.support.corpus import binarise
from tests.support.shell import commands_path

RunCommand = Callable[..., "subprocess.CompletedProcess[str]"]

SIZES = ("layers=2", "embed-dim=16", "ffn-embed-dim=24", "attention-heads=2")
SMALL = [f"--{side}-{size}" for side in ("encoder", "decoder") for size in SIZES]
SMALL += ["--share-all-embeddings"]
TRAIN = [
    "--optimizer=adam",
    "--lr=0.001",
    "--criterion=label_smoothed_cross_entropy",
    "--label-smoothing=0.1",
    "--max-tokens=200",
    "--max-update=2",
    "--num-workers=0",
    "--log-format=simple",
    "--cpu",
]


HALF_PRECISION = {
    "bf16": ["--bf16"],
    "fp16, one flat row": ["--fp16"],
    "fp16": ["--fp16", "--fp16-no-flatten-grads"],
    "fp16 without fp32 weights": ["--fp16", "--memory-efficient-fp16"],
    "bf16 without fp32 weights": ["--memory-efficient-bf16"],
}


@pytest.fixture
def cpu_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fairseq's fp16 run without a GPU, which flat weights and overflow norms do not need."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return binarise(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def run_command() -> RunCommand:
    """Return a function that runs a command in a folder without checking its exit status."""

    def run(
        *command: object, cwd: Path, stdin: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, "PATH": commands_path()},
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=900,
        )

    return run


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Record loss per token and gradient norm of every update, before fairseq rounds them."""
    seen: list[tuple[float, float]] = []
    log = Trainer._reduce_and_log_stats

    def noted(self: Any, outputs: Any, sample_size: float, grad_norm: Any = None) -> Any:
        if grad_norm is not None:
            loss = sum(float(output["loss"]) for output in outputs)
            seen.append((loss / sample_size, float(grad_norm)))
        return log(self, outputs, sample_size, grad_norm)

    monkeypatch.setattr(Trainer, "_reduce_and_log_stats", noted)
    return seen
