"""Data-parallel training: two CPU processes with half the batch each make one process's update."""

import socket
import subprocess
from pathlib import Path

import torch

from tests.integration.conftest import SMALL, TRAIN


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(data: Path, save_dir: Path, *options: object) -> "subprocess.Popen[str]":
    plugin = Path(__file__).parents[2] / "fairseq_deepnet"
    base = ["--user-dir", plugin, "--arch", "deepnet_transformer", *SMALL, *TRAIN]
    # SGD, because Adam's update would not show a gradient of the wrong size.
    base += ["--optimizer=sgd", "--lr=0.5", "--dropout=0", "--max-update=3"]
    base += ["--disable-validation", "--save-dir", save_dir]
    command = ["fairseq-train", data, *base, *options]
    return subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        cwd=save_dir.parent,
    )


def finish(processes: list["subprocess.Popen[str]"]) -> None:
    """Wait for all; one that fails takes the others with it."""
    try:
        for process in processes:
            output = process.communicate(timeout=900)[0]
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()


def weights(save_dir: Path) -> dict[str, torch.Tensor]:
    held = torch.load(save_dir / "checkpoint_last.pt", weights_only=True)
    assert held["optimizer_history"][-1]["num_updates"] == 3
    return dict(held["model"])


def test_two_processes_make_the_update_of_one(tiny_data: Path, tmp_path: Path) -> None:
    finish([start(tiny_data, tmp_path / "one", "--update-freq=2")])
    # fairseq's criterion alone, ours together: the numbers are the same
    shared = ["--criterion=chunked_label_smoothed_cross_entropy"]
    shared += ["--ddp-backend=legacy_ddp", "--distributed-backend=gloo", "--distributed-no-spawn"]
    shared += ["--device-id=0", "--distributed-world-size=2"]
    shared += [f"--distributed-init-method=tcp://127.0.0.1:{free_port()}"]
    ranks = [f"--distributed-rank={rank}" for rank in (0, 1)]
    finish([start(tiny_data, tmp_path / "two", *shared, rank) for rank in ranks])
    alone, together = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, atol=1e-5, rtol=0, msg=name)
