"""Devices, their shares of the batch, precision, and the commands that start the processes."""

from __future__ import annotations

import subprocess

import pytest
import torch
from fairseq.dataclass.configs import DistributedTrainingConfig
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf

from fairseq_deepnet.tools.devices import Devices, choose_devices
from fairseq_deepnet.tools.fairseq_options import parse_training
from fairseq_deepnet.tools.training import launch
from fairseq_deepnet.tools.training.launch import Launcher, choose_launcher

HANDLED = "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


@pytest.mark.parametrize(
    ("text", "tokens"), [(4096, 4096), ("128 x 4096", 524288), ("2*3x4", 24), ("8 × 5", 40)]
)
def test_a_batch_is_a_number_or_a_product(text: object, tokens: int) -> None:
    assert launch.parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["many", "-5", 0, "", "3 x 0"])
def test_other_batches_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="global-batch-tokens"):
        launch.parse_tokens(text)


@pytest.mark.parametrize(
    ("requested", "limit", "devices", "shares"),
    [
        (524_288, 4096, 1, (4096, 128)),
        (524_288, 4096, 32, (4096, 4)),
        (524_288, 4096, 128, (4096, 1)),
        (524_288, 4096, 256, (2048, 1)),  # more devices than steps: smaller shares
        (2048, 2048, 2, (1024, 1)),
    ],
)
def test_the_batch_is_the_same_for_any_number_of_devices(
    requested: int, limit: int, devices: int, shares: tuple[int, int]
) -> None:
    batch = launch.split_batch(requested, limit, devices)
    assert (batch.max_tokens, batch.update_freq) == shares
    assert batch.tokens == requested
    assert "rounded" not in str(batch)


@pytest.mark.parametrize(
    ("devices", "update_freq", "off"),
    [(7, 18, "-1.6"), (3, 43, "+0.8"), (96, 2, "-0.0")],  # 128 / 7 = 18.29, 42.67, 1.33
)
def test_an_indivisible_batch_is_rounded_and_reported(
    devices: int, update_freq: int, off: str
) -> None:
    batch = launch.split_batch(128 * 4096, 4096, devices)
    assert batch.update_freq == update_freq
    assert f"rounded from 524,288, {off} %" in str(batch)


def test_a_batch_of_many_devices_states_which_sentences_are_skipped() -> None:
    assert "skips" not in str(launch.split_batch(4000, 4000, 8))
    end = "; training skips sentences of more than 31 tokens"
    assert str(launch.split_batch(4000, 4000, 128)).endswith(end)


def test_all_visible_gpus_are_the_default() -> None:
    assert choose_devices("all", 1, 1, visible=8) == Devices(gpus=8)
    assert choose_devices("2", 1, 1, visible=8) == Devices(gpus=2)
    assert choose_devices("0", 2, 1, visible=8) == Devices(gpus=0, cpu_processes=2)
    assert choose_devices("all", 2, 1, visible=0).total == 2


@pytest.mark.parametrize(
    ("requested", "processes", "nodes", "message"),
    [
        ("8", 1, 1, r"GPUS=8, but only 0 visible"),
        ("two", 1, 1, "GPUS=two: a number"),
        ("0", 0, 1, "CPU_PROCESSES=0: at least 1"),
        ("0", 1, 0, "NODES=0, .* at least 1"),
    ],
)
def test_missing_devices_are_refused(
    requested: str, processes: int, nodes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choose_devices(requested, processes, nodes, visible=0)


@pytest.mark.parametrize("bf16_works", [True, False])
def test_precision_on_gpus_is_bf16_if_supported(
    monkeypatch: pytest.MonkeyPatch, bf16_works: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bf16_works)
    expected = ["--bf16"] if bf16_works else ["--fp16"]
    assert launch.precision_arguments("auto", has_gpus=True) == expected
    assert launch.precision_arguments("fp32", has_gpus=True) == []
    assert launch.precision_arguments("auto", has_gpus=False) == []
    assert launch.precision_arguments("bf16", has_gpus=False) == ["--bf16"]
    with pytest.raises(ValueError, match="PRECISION=fp16 needs a GPU"):
        launch.precision_arguments("fp16", has_gpus=False)


def test_one_process_is_fairseq_train_itself() -> None:
    environment = {"MASTER_ADDR": "elsewhere", "SLURM_JOB_ID": "5", "WORLD_SIZE": "64"}
    for gpus, cpu in ((1, []), (0, ["--cpu"])):
        launcher = choose_launcher("auto", Devices(gpus), environment)
        assert launcher.prefix() == []
        assert launcher.arguments() == [*cpu, "--distributed-world-size", "1"]


def test_torchrun_starts_several_processes_of_one_node() -> None:
    eight = choose_launcher("auto", Devices(gpus=8), {})
    assert eight.prefix() == [
        *("torchrun", "--nproc-per-node=8", "--standalone"),
        *("--shutdown-timeout=90", HANDLED, "--no-python", "--"),
    ]
    assert eight.arguments() == ["--distributed-world-size", "8"]
    pair = Launcher("torchrun", Devices(gpus=0, cpu_processes=2), grace=7)
    assert "--nproc-per-node=2" in pair.prefix()
    assert "--shutdown-timeout=7" in pair.prefix()
    assert pair.arguments() == [
        *("--distributed-world-size", "2", "--cpu"),
        *("--ddp-backend", "legacy_ddp", "--distributed-backend", "gloo"),
        *("--distributed-no-spawn", "--device-id", "0"),
        *("--distributed-init-method", "env://", "--distributed-rank=-1"),
    ]
    assert "fully_sharded" in pair.arguments(sharded=True)


def test_torchrun_is_started_on_every_node_with_its_number() -> None:
    environment = {"MASTER_ADDR": "node0", "MASTER_PORT": "4711"}
    launcher = choose_launcher("auto", Devices(gpus=8, nodes=4), environment, 2)
    assert launcher.prefix() == [
        *("torchrun", "--nproc-per-node=8", "--nnodes=4", "--node-rank=2"),
        *("--master-addr=node0", "--master-port=4711"),
        *("--shutdown-timeout=90", HANDLED, "--no-python", "--"),
    ]
    assert launcher.arguments() == ["--distributed-world-size", "32"]


def test_srun_starts_torchrun_on_each_node_with_the_cores_and_gpus_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = subprocess.CompletedProcess([], 0, "node7\nnode8\n")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: hosts)
    environment = {"SLURM_JOB_ID": "1234567", "SLURM_CPUS_PER_TASK": "16"}
    launcher = choose_launcher("auto", Devices(gpus=8, nodes=4), environment)
    assert launcher.prefix() == [
        *("srun", "--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "--gpus-per-node=8"),
        *("--kill-on-bad-exit=1", "--cpus-per-task=16"),
        *("torchrun", "--nproc-per-node=8", "--nnodes=4", "--rdzv-id=1234567"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=node7:34567"),
        *("--shutdown-timeout=90", HANDLED, "--no-python", "--"),
    ]
    assert launcher.arguments() == ["--distributed-world-size", "32"]
    # a single process needs srun but not torchrun
    single = choose_launcher("slurm", Devices(gpus=1), environment)
    assert single.prefix()[0] == "srun"
    assert "torchrun" not in single.prefix()


@pytest.mark.parametrize(
    ("requested", "devices", "environment", "rank", "message"),
    [
        ("auto", Devices(1, nodes=2), {}, None, "NODE_RANK=0 to 1 and MASTER_ADDR"),
        ("torchrun", Devices(1, nodes=2), {"MASTER_ADDR": "a"}, None, "with NODE_RANK=0 to 1"),
        ("torchrun", Devices(1, nodes=2), {}, 0, "MASTER_ADDR=host of node 0"),
        ("auto", Devices(1, nodes=2), {"MASTER_ADDR": "a"}, 2, "NODE_RANK=2: must be from 0 to 1"),
        ("slurm", Devices(0), {}, None, "LAUNCHER=slurm needs GPUs"),
        ("slurm", Devices(1), {}, None, "LAUNCHER=slurm needs a SLURM job: sbatch scripts/"),
    ],
)
def test_a_missing_or_contradicting_variable_is_named(
    requested: str, devices: Devices, environment: dict[str, str], rank: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choose_launcher(requested, devices, environment, rank)


@pytest.mark.parametrize(("rank", "device"), [(0, 0), (3, 3), (4, 0), (7, 3)])
def test_fairseq_takes_rank_and_gpu_from_torchrun(
    monkeypatch: pytest.MonkeyPatch, rank: int, device: int
) -> None:
    """fairseq reads torchrun's variables on a machine that appears to have GPUs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    variables = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": "8"}
    for name, value in (variables | {"RANK": str(rank)}).items():
        monkeypatch.setenv(name, value)
    launcher = Launcher("torchrun", Devices(gpus=4, nodes=2), address="node0")
    arch = ["DATA", "--arch", "deepnet_transformer_tiny"]
    args = vars(parse_training([*arch, *launcher.arguments()]))
    fields = DistributedTrainingConfig.__dataclass_fields__
    config = OmegaConf.structured(
        DistributedTrainingConfig(**{name: args[name] for name in fields if name in args})
    )
    distributed_utils.infer_init_method(config)
    assert config.distributed_init_method == "env://"
    assert (config.distributed_world_size, config.distributed_rank) == (8, rank)
    assert (config.device_id, config.distributed_no_spawn) == (device, True)
