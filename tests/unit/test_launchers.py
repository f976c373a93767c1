"""Launchers: the words that start the processes, and what fairseq itself makes of its options."""

from __future__ import annotations

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


HANDLED = "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


def test_one_process_is_fairseq_train_itself() -> None:
    around = {"MASTER_ADDR": "elsewhere", "SLURM_JOB_ID": "5", "WORLD_SIZE": "64"}
    for gpus, cpu in ((1, []), (0, ["--cpu"])):
        one = choose("auto", Devices(gpus), **around)
        assert one.prefix() == []
        assert one.arguments() == [*cpu, "--distributed-world-size", "1"]
    assert one.lines(["fairseq-train", "--adam-betas", "(0.9, 0.98)"]) == [
        "fairseq-train --adam-betas '(0.9, 0.98)'"
    ]


def test_several_processes_of_one_node_are_torchruns() -> None:
    eight = choose("auto", Devices(gpus=8))
    assert eight.prefix() == [
        *("torchrun", "--nproc-per-node=8", "--standalone"),
        *("--shutdown-timeout=90", HANDLED, "--no-python"),
    ]
    assert eight.arguments() == ["--distributed-world-size", "8", ALONE]
    pair = Launcher("torchrun", Devices(gpus=0, cpu_processes=2), grace=7)
    assert "--nproc-per-node=2" in pair.prefix()
    assert "--shutdown-timeout=7" in pair.prefix()
    assert pair.arguments() == [
        *("--distributed-world-size", "2", ALONE, "--cpu"),
        *("--ddp-backend", "legacy_ddp", "--distributed-backend", "gloo"),
        *("--distributed-no-spawn", "--device-id", "0"),
        *("--distributed-init-method", "env://", "--distributed-rank=-1"),
    ]
    assert "fully_sharded" in pair.arguments(sharded=True)


def test_torchrun_is_started_on_every_node_with_its_number() -> None:
    devices = Devices(gpus=8, nodes=4)
    chosen = choose_launcher("auto", devices, {"MASTER_ADDR": "node0", "MASTER_PORT": "4711"}, 2)
    assert chosen.prefix() == [
        *("torchrun", "--nproc-per-node=8", "--nnodes=4", "--node-rank=2"),
        *("--master-addr=node0", "--master-port=4711", "--rdzv-conf=timeout=600"),
        *("--shutdown-timeout=90", HANDLED, "--no-python"),
    ]
    assert chosen.arguments() == ["--distributed-world-size", "32", ALONE]


@pytest.mark.usefixtures("slurm_machine")
def test_srun_starts_a_torchrun_on_each_node_with_the_cores_and_gpus_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = subprocess.CompletedProcess([], 0, "node7\nnode8\n")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: listed)
    around = {"SLURM_JOB_ID": "1234567", "SLURM_CPUS_PER_TASK": "16", "SRUN_OPTIONS": "--label -v"}
    chosen = choose("auto", Devices(gpus=8, nodes=4), **around)
    assert chosen.prefix() == [
        *("srun", "--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "--gpus-per-node=8"),
        *("--kill-on-bad-exit=1", "--cpus-per-task=16", "--label", "-v"),
        *("torchrun", "--nproc-per-node=8", "--nnodes=4", "--rdzv-id=1234567"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=node7:34567", "--rdzv-conf=join_timeout=600"),
        *("--shutdown-timeout=90", HANDLED, "--no-python"),
    ]
    assert chosen.arguments() == ["--distributed-world-size", "32", ALONE]
    assert not chosen.submits
    # one process needs no torchrun, but the job's node
    one = choose("slurm", Devices(gpus=1), **around)
    assert one.prefix()[0] == "srun"
    assert "torchrun" not in one.prefix()
    listed.stdout = ""
    with pytest.raises(ValueError, match="names no node of this job"):
        choose("auto", Devices(gpus=8, nodes=4), **around)


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
        ("mpi", Devices(1), {}, None, "LAUNCHER=mpi: choose from auto, torchrun, slurm"),
        ("auto", Devices(1, nodes=2), {}, None, "NODE_RANK=0 to 1 and MASTER_ADDR"),
        ("torchrun", Devices(1, nodes=2), {"MASTER_ADDR": "a"}, None, "with NODE_RANK=0 to 1"),
        ("torchrun", Devices(1, nodes=2), {}, 0, "MASTER_ADDR=host of node 0"),
        *(
            ("torchrun", Devices(1, nodes=2), {"MASTER_ADDR": "a", "MASTER_PORT": port}, 0, port)
            for port in ("x", "0", "65536")
        ),
        ("auto", Devices(1, nodes=2), {"MASTER_ADDR": "a"}, 2, "NODE_RANK=2: NODES=2 are numbered"),
        ("fairseq", Devices(1), {}, None, "LAUNCHER=fairseq: choose from"),
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
