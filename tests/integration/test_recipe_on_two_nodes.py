"""A recipe trained for real on two nodes by torchrun and in two processes of one: equal weights.

The nodes are two torchrun agents on 127.0.0.1 with one CPU process each, which meet by gloo.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fairseq_deepnet.checkpoints import load_checkpoint, num_updates
from tests.support.runs import TINY, make_data
from tests.support.shell import ROOT
from tests.support.training import free_port

# a rate that moves the weights within two updates
OPTIONS = [*TINY, "--max-tokens=64", "--warmup-updates=1", "--lr=0.01", "--log-interval=1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


def start(run: Path, data: Path, updates: int, *options: str, **env: str) -> subprocess.Popen[str]:
    variables = {"DEEPNET_SKIP_SETUP": "1", "GPUS": "0", "THREADS": "1", "OMP_NUM_THREADS": "1"}
    variables |= {"RUN": str(run), "DATA": str(data), "DEPTH": "1"}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        [
            *("bash", str(ROOT / "scripts" / "train_multi30k.sh")),
            *(*OPTIONS, f"--max-update={updates}", *options),
        ],
        env={**os.environ, **variables, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
    )


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    """What each said; one that fails takes the others with it."""
    try:
        said = [process.communicate(timeout=900)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, text in zip(processes, said, strict=True):
        assert process.returncode == 0, text
    return said


def weights(run: Path, updates: int) -> dict[str, torch.Tensor]:
    held = load_checkpoint(run / "checkpoints" / "checkpoint_last.pt")
    assert num_updates(held) == updates
    return dict(held["model"])


def on_two_nodes(run: Path, data: Path, updates: int, *options: str, **env: str) -> list[str]:
    meeting = {"NODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **env}
    # the second node first, so that it has to wait
    later = start(run, data, updates, *options, NODE_RANK="1", **meeting)
    return finish(start(run, data, updates, *options, NODE_RANK="0", **meeting), later)


@pytest.mark.slow
def test_two_nodes_train_what_two_processes_train(tmp_path: Path, data: Path) -> None:
    alone, nodes = tmp_path / "processes", tmp_path / "nodes"
    (said,) = finish(start(alone, data, 2, CPU_PROCESSES="2"))
    assert "2 CPU processes" in said
    first, second = on_two_nodes(nodes, data, 2)
    assert "2 CPU processes (2 nodes of 1)" in first
    assert "update 2/2" in first
    assert "waiting for node 0" in second
    assert "update 2/2" not in second

    expected, found = weights(alone, 2), weights(nodes, 2)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    earlier = load_checkpoint(nodes / "checkpoints" / "checkpoint1.pt")["model"]
    assert any(not torch.equal(value, earlier[name]) for name, value in found.items())
    assert sorted(path.name for path in nodes.iterdir() if path.is_file()) == [
        *(".lock", "command.txt", "config.yaml", "ended.json", "environment.json"),
        *("node1.log", "train.log"),
    ]
    command = shlex.split((nodes / "command.txt").read_text(encoding="utf-8").splitlines()[1])
    assert command[:4] == ["torchrun", "--nproc-per-node=1", "--nnodes=2", "--node-rank=0"]


@pytest.mark.slow
def test_two_nodes_resume_where_they_were(tmp_path: Path, data: Path) -> None:
    run = tmp_path / "run"
    on_two_nodes(run, data, 1)
    first, _ = on_two_nodes(run, data, 3, RESUME="1")
    assert "resuming from update 1" in first
    assert "update 3/3" in first
    assert "update 1/3" not in first
    assert weights(run, 3)
