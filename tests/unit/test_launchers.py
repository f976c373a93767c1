"""Launchers: the words that start the processes, and what fairseq itself makes of its options."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from fairseq.dataclass.configs import DistributedTrainingConfig
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

from fairseq_deepnet.tools.devices import Devices
from fairseq_deepnet.tools.fairseq_options import parse_training
from fairseq_deepnet.tools.training import launch
from fairseq_deepnet.tools.training.launch import Launcher, choose_launcher

ALONE = "--load-checkpoint-on-all-dp-ranks"


def choose(wanted: str, devices: Devices, **environment: str) -> Launcher:
    return choose_launcher(wanted, devices, environment)


@pytest.fixture
def slurm_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")


def test_one_node_is_fairseqs_own_business() -> None:
    one = choose("auto", Devices(gpus=1), MASTER_ADDR="elsewhere", SLURM_JOB_ID="5")
    assert (one.name, one.prefix(), one.arguments()) == (
        "fairseq",
        [],
        ["--distributed-world-size", "1"],
    )
    eight = Launcher("fairseq", Devices(gpus=8), port=23456).arguments()
    assert eight == [
        *("--distributed-world-size", "8", ALONE),
        *("--distributed-init-method", "tcp://127.0.0.1:23456"),
    ]
    cpu = Launcher("fairseq", Devices(gpus=0)).arguments()
    assert cpu == ["--cpu", "--distributed-world-size", "1"]


def test_processes_on_the_cpu_lack_only_their_rank() -> None:
    pair = Launcher("fairseq", Devices(gpus=0, cpu_processes=2), port=23456)
    assert pair.arguments() == [
        *("--cpu", ALONE, "--ddp-backend", "legacy_ddp", "--distributed-backend", "gloo"),
        *("--distributed-no-spawn", "--device-id", "0", "--distributed-world-size", "2"),
        *("--distributed-init-method", "tcp://127.0.0.1:23456"),
    ]
    assert pair.lines(["fairseq-train"]) == [
        "fairseq-train --distributed-rank 0",
        "fairseq-train --distributed-rank 1",
    ]


def test_torchrun_is_started_on_every_node_with_its_number() -> None:
    devices = Devices(gpus=8, nodes=4)
    chosen = choose_launcher("auto", devices, {"MASTER_ADDR": "node0", "MASTER_PORT": "4711"}, 2)
    assert chosen.prefix() == [
        *("torchrun", "--nnodes=4", "--node-rank=2", "--nproc-per-node=8"),
        *("--master-addr=node0", "--master-port=4711", "--no-python"),
    ]
    assert chosen.arguments() == ["--distributed-world-size", "32", ALONE]
    cpu = Launcher("torchrun", Devices(gpus=0, cpu_processes=2, nodes=2))
    assert "--nproc-per-node=2" in cpu.prefix()
    assert cpu.arguments()[-3:] == [
        *("--distributed-init-method", "env://"),
        "--distributed-rank=-1",
    ]


def test_a_dry_run_shows_node_0_and_how_the_others_differ() -> None:
    planned = choose_launcher("auto", Devices(gpus=8, nodes=4), {}, planned=True)
    first, others = planned.lines(["fairseq-train", "--adam-betas", "(0.9, 0.98)"])
    assert first.startswith("torchrun --nnodes=4 --node-rank=0 ")
    assert "--master-addr=MASTER_ADDR" in first
    assert shlex.split(first)[-2:] == ["--adam-betas", "(0.9, 0.98)"]
    assert others == "# nodes 1 to 3: the same with --node-rank=1 to 3"


@pytest.mark.usefixtures("slurm_machine")
def test_srun_starts_one_task_a_node_with_the_cores_and_gpus_of_the_job() -> None:
    devices = Devices(gpus=8, nodes=4)
    chosen = choose(
        "auto", devices, SLURM_JOB_ID="1234567", SLURM_CPUS_PER_TASK="16", SRUN_OPTIONS="--label -v"
    )
    assert chosen.prefix() == [
        *("srun", "--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "--gpus-per-node=8"),
        *("--kill-on-bad-exit=1", "--cpus-per-task=16", "--label", "-v"),
    ]
    assert chosen.arguments() == [
        *("--distributed-world-size", "32", ALONE, "--distributed-port", "34567"),
    ]
    assert not chosen.submits


@pytest.mark.usefixtures("slurm_machine")
def test_outside_a_job_slurm_is_handed_the_training(tmp_path: Path) -> None:
    chosen = choose("slurm", Devices(gpus=4, nodes=2))
    config = tmp_path / "mine.yaml"
    config.touch()
    assert chosen.submits
    assert chosen.submission(tmp_path / "run", [str(config), "--lr", "1"]) == [
        *("sbatch", "--nodes=2", "--gpus-per-node=4", "--job-name=run"),
        f"--output={tmp_path}/run/slurm-%j.out",
        *(str(launch.SBATCH_FILE), str(config), "--lr", "1"),
    ]


@pytest.mark.parametrize(
    ("wanted", "devices", "environment", "rank", "message"),
    [
        ("mpi", Devices(1), {}, None, "LAUNCHER=mpi: choose from auto, fairseq, torchrun, slurm"),
        ("auto", Devices(1, nodes=2), {}, None, "NODE_RANK=0 to 1 and MASTER_ADDR"),
        ("torchrun", Devices(1, nodes=2), {"MASTER_ADDR": "a"}, None, "set NODE_RANK, from 0 to 1"),
        ("torchrun", Devices(1, nodes=2), {}, 0, "MASTER_ADDR is not set"),
        ("torchrun", Devices(1), {"MASTER_PORT": "x"}, None, "MASTER_PORT=x"),
        ("auto", Devices(1, nodes=2), {"MASTER_ADDR": "a"}, 2, "NODE_RANK=2: NODES=2 are numbered"),
        ("fairseq", Devices(1, nodes=2), {}, None, "NODES=2: LAUNCHER=fairseq is for one"),
        ("slurm", Devices(0), {}, None, "LAUNCHER=slurm needs GPUs"),
        (
            *("slurm", Devices(1, nodes=4), {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}),
            *(None, "NODES=4, but this SLURM job has 2"),
        ),
        ("slurm", Devices(1), {}, None, "there is no sbatch on PATH"),
        ("slurm", Devices(1), {"SLURM_JOB_ID": "1"}, None, "there is no srun on PATH"),
    ],
)
def test_what_is_missing_or_contradicts_is_named(
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    devices: Devices,
    environment: dict[str, str],
    rank: int | None,
    message: str,
) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(ValueError, match=message):
        choose_launcher(wanted, devices, environment, rank)


# what fairseq makes of all this, by its own code, on a machine that seems to have GPUs


class Inferred:
    """fairseq's reading of a launcher's options in the process that `environment` belongs to."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, launcher: Launcher, environment: dict[str, str]
    ) -> None:
        gpus = launcher.devices.gpus
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(subprocess, "check_output", lambda command: b"node0\nnode1\n")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        arch = ["DATA", "--arch", "deepnet_transformer_tiny"]
        args = vars(parse_training([*arch, *launcher.arguments()]))
        fields = DistributedTrainingConfig.__dataclass_fields__
        self.config = OmegaConf.structured(
            DistributedTrainingConfig(**{name: args[name] for name in fields if name in args})
        )
        distributed_utils.infer_init_method(self.config)


def test_fairseq_is_not_led_astray_by_the_variables_of_a_job_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    around = {"SLURM_JOB_NODELIST": "node[0-1]", "SLURM_NNODES": "2", "SLURM_NTASKS": "2"}
    around |= {"SLURM_NODEID": "1", "MASTER_ADDR": "far", "MASTER_PORT": "1", "WORLD_SIZE": "64"}
    launcher = choose_launcher("fairseq", Devices(gpus=8), around)
    found = Inferred(monkeypatch, launcher, {**around, "RANK": "3"}).config
    assert found.distributed_init_method == f"tcp://127.0.0.1:{launcher.port}"
    assert (found.distributed_world_size, found.distributed_rank) == (8, 0)
    assert not found.distributed_no_spawn


@pytest.mark.parametrize(("rank", "device"), [(0, 0), (3, 3), (4, 0), (7, 3)])
def test_fairseq_takes_rank_and_gpu_from_torchrun(
    monkeypatch: pytest.MonkeyPatch, rank: int, device: int
) -> None:
    launcher = Launcher("torchrun", Devices(gpus=4, nodes=2), address="node0")
    environment = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": "8"}
    found = Inferred(monkeypatch, launcher, {**environment, "RANK": str(rank)}).config
    assert found.distributed_init_method == "env://"
    assert (found.distributed_world_size, found.distributed_rank) == (8, rank)
    assert (found.device_id, found.distributed_no_spawn) == (device, True)


@pytest.mark.parametrize(("node", "gpus"), [(0, 4), (1, 4), (1, 1)])
def test_fairseq_finds_its_node_in_slurms_variables_and_starts_a_process_a_gpu(
    monkeypatch: pytest.MonkeyPatch, node: int, gpus: int
) -> None:
    launcher = Launcher("slurm", Devices(gpus=gpus, nodes=2), port=23456)
    environment = {"SLURM_STEP_NODELIST": "node[0-1]", "SLURM_NNODES": "2"}
    environment |= {"SLURM_NTASKS_PER_NODE": "1", "SLURM_NODEID": str(node)}
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    found = Inferred(monkeypatch, launcher, environment).config
    assert found.distributed_init_method == "tcp://node0:23456"
    assert found.distributed_world_size == launcher.devices.total
    assert found.distributed_rank == node * gpus  # of the first process on the node
    assert not found.distributed_no_spawn
