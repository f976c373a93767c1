"""A recipe trained by torchrun on two nodes and in two processes of one node: equal weights.

The nodes are two torchrun agents on 127.0.0.1 with one CPU process each, which communicate by gloo.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from tests.support.runs import TINY, make_data
from tests.support.shell import ROOT
from tests.support.training import finish, free_port

# a learning rate that moves the weights within two updates
OPTIONS = [*TINY, "--max-tokens=64", "--warmup-updates=1", "--lr=0.01", "--log-interval=1"]


def start(run: Path, data: Path, updates: int, **env: str) -> subprocess.Popen[str]:
    variables = {"DEEPNET_SKIP_SETUP": "1", "GPUS": "0", "THREADS": "1", "OMP_NUM_THREADS": "1"}
    variables |= {"RUN": str(run), "DATA": str(data), "DEPTH": "1"}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = str(ROOT / "scripts" / "train_multi30k.sh")
    return subprocess.Popen(
        ["bash", script, *OPTIONS, f"--max-update={updates}"],
        env={**os.environ, **variables, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
    )


def weights(run: Path, updates: int) -> dict[str, torch.Tensor]:
    state = load_checkpoint(run / "checkpoints" / "checkpoint_last.pt")
    assert num_updates(state) == updates
    return dict(state["model"])


def on_two_nodes(run: Path, data: Path, updates: int, **env: str) -> list[str]:
    meeting = {"NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **env}
    # the second node first, so that it has to wait
    later = start(run, data, updates, NODE_RANK="1", **meeting)
    return finish(start(run, data, updates, NODE_RANK="0", **meeting), later)


@pytest.mark.slow
def test_two_nodes_train_what_two_processes_train_and_resume(tmp_path: Path) -> None:
    data = make_data(tmp_path / "corpus")
    alone, nodes = tmp_path / "processes", tmp_path / "nodes"
    finish(start(alone, data, 2, CPU_PROCESSES="2"))
    on_two_nodes(nodes, data, 1)
    first, second = on_two_nodes(nodes, data, 2, RESUME="1")
    assert "2 CPU processes (2 nodes of 1)" in first
    assert "resuming from update 1" in first
    assert "update 2/2" in first
    assert "update 2/2" not in second
    expected, trained = weights(alone, 2), weights(nodes, 2)
    assert expected.keys() == trained.keys()
    for name, value in expected.items():
        assert torch.equal(trained[name], value), name
    assert sorted(path.name for path in nodes.iterdir() if path.is_file()) == [
        *(".lock", "command.txt", "config.yaml", "ended.json", "environment.json"),
        *("node1.log", "train.log"),
    ]
