"""Options that depend on the devices: the batch of each device, precision and launcher.

A single process runs fairseq-train directly. Several processes are started by torchrun, which
forwards signals, ends all processes if one fails, and sets the variables that fairseq reads (RANK,
WORLD_SIZE, MASTER_ADDR). How torchrun is started depends on the nodes:

- On one node, the command is torchrun --standalone.
- On several nodes, users start the same command on each node, with NODE_RANK and MASTER_ADDR.
- In a SLURM job, srun starts one torchrun per node; all connect through the job's first node.
"""

import dataclasses
import math
import re
import subprocess
from collections.abc import Mapping
from typing import Final

from fairseq_deepnet.tools.devices import Devices

PRECISIONS: Final = ("auto", "bf16", "fp16", "fp32")
LAUNCHERS: Final = ("auto", "torchrun", "slurm")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Instructions for the supervisor, computed by another process because planning needs torch."""

    status: int = 0  # exit status if there is no command
    command: tuple[str, ...] = ()  # fairseq-train or its launcher, with all options
    max_update: int = 0  # last update of the run, or 0 if unknown
    falls_back: bool = False  # after a divergence, another plan follows


def parse_tokens(value: object) -> int:
    """Return the number of tokens in a text such as 524288 or "128 x 4096"."""
    factors = re.split(r"\s*[x*×]\s*", str(value).strip())
    if not all(factor.isdecimal() and int(factor) > 0 for factor in factors):
        raise ValueError(
            f"recipe.global-batch-tokens: {value!r} is not a number or product such as 128 x 4096"
        )
    return math.prod(map(int, factors))


@dataclasses.dataclass(frozen=True)
class Batch:
    """Batch of an update: at most `devices` x `max_tokens` x `update_freq` tokens."""

    max_tokens: int
    update_freq: int
    devices: int
    target: int

    @property
    def tokens(self) -> int:
        """Tokens per update over all devices."""
        return self.max_tokens * self.update_freq * self.devices

    def __str__(self) -> str:
        parts = f"{self.max_tokens:,} tokens x {self.devices} x update-freq {self.update_freq}"
        text = f"{self.tokens:,} tokens per update = {parts}"
        if self.tokens != self.target:
            off = 100 * (self.tokens - self.target) / self.target
            text += f" (rounded from {self.target:,}, {off:+.1f} %)"
        if self.max_tokens < 500:  # fairseq only logs a warning
            text += f"; training skips sentences of more than {self.max_tokens} tokens"
        return text


def split_batch(target: int, max_tokens: int, devices: int) -> Batch:
    """Distribute `target` tokens per update over devices that process `max_tokens` at once.

    The necessary update-freq is rounded to the nearest integer. If it is less than 1, or if the
    batch would differ from `target` by more than 5 %, it is rounded up and `max_tokens` falls.
    """
    if target < devices:
        raise ValueError(f"{target} tokens cannot be shared among {devices} devices")
    steps = target / (max_tokens * devices)
    update_freq = round(steps)
    if steps < 1 or abs(update_freq - steps) > 0.05 * steps:
        update_freq = math.ceil(steps)
        max_tokens = target // (update_freq * devices)
    return Batch(max_tokens, update_freq, devices, target)


def choose_batch(options: Mapping[str, object], target: object, devices: int) -> Batch | None:
    """Return the batch, or None if it is not --max-tokens times one --update-freq.

    Args:
        target: the recipe's tokens per update, which count only without --update-freq.
    """
    limit, frequency = str(options.get("max-tokens")), str(options.get("update-freq", 1))
    if not (limit.isdecimal() and frequency.isdecimal()):
        return None
    if target is not None and "update-freq" not in options:
        return split_batch(parse_tokens(target), int(limit), devices)
    tokens = int(limit) * int(frequency) * devices
    return Batch(int(limit), int(frequency), devices, tokens)


def precision_arguments(precision: str, has_gpus: bool, elsewhere: bool = False) -> list[str]:
    """Return fairseq-train's option for a precision.

    "auto" selects fp32 on CPUs, bf16 on GPUs that support it, and fp16 on other GPUs. If
    `elsewhere` is True, the GPUs are in other machines and are assumed to support bf16.

    Raises:
        ValueError: for fp16 on a CPU.
    """
    if precision == "fp32" or (precision == "auto" and not has_gpus):
        return []
    if precision == "fp16" and not has_gpus:
        raise ValueError("PRECISION=fp16 needs a GPU; the CPU trains in fp32 or bf16")
    if precision == "auto":
        import torch

        precision = "bf16" if elsewhere or torch.cuda.is_bf16_supported() else "fp16"
    return [f"--{precision}"]


@dataclasses.dataclass(frozen=True)
class Launcher:
    """Settings of the command that starts the training processes on `devices`."""

    name: str  # torchrun or slurm
    devices: Devices
    node_rank: int = 0  # index of this node (torchrun)
    address: str = ""  # host of node 0, reachable from all nodes; empty for one node
    port: str = "29500"  # port on that host
    job: str = ""  # SLURM's job number
    cores: str = ""  # cores per SLURM task, which a job step does not inherit from its job
    grace: int = 90  # seconds until processes must have exited after a signal

    def arguments(self, sharded: bool = False) -> list[str]:
        """Return fairseq-train's options for the devices, which are the same on every node.

        On CPUs, the DDP backend is legacy_ddp, or fully_sharded if `sharded` is True, because
        pytorch_ddp does not start on CPUs.
        """
        world = ["--distributed-world-size", str(self.devices.total)]
        if self.devices.gpus:
            return world
        if self.devices.total == 1:
            return ["--cpu", *world]
        backend = "fully_sharded" if sharded else "legacy_ddp"
        # fairseq divides by the number of GPUs when it reads torchrun's variables
        rendezvous = ["--distributed-init-method", "env://", "--distributed-rank=-1"]
        cpu = ["--cpu", "--ddp-backend", backend, "--distributed-backend", "gloo"]
        return [*world, *cpu, "--distributed-no-spawn", "--device-id", "0", *rendezvous]

    def prefix(self) -> list[str]:
        """Return the part of the command that precedes fairseq-train on this node."""
        nodes, words = self.devices.nodes, []
        if self.name == "slurm":
            words += ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
            words += [f"--gpus-per-node={self.devices.gpus}", "--kill-on-bad-exit=1"]
            words += [f"--cpus-per-task={self.cores}"] if self.cores else []
        if self.devices.total == 1:
            return words
        words += ["torchrun", f"--nproc-per-node={self.devices.gpus or self.devices.cpu_processes}"]
        if nodes == 1:
            words.append("--standalone")
        elif self.name == "slurm":
            words += [f"--nnodes={nodes}", f"--rdzv-id={self.job}", "--rdzv-backend=c10d"]
            words.append(f"--rdzv-endpoint={self.address}:{self.port}")
        else:
            words += [f"--nnodes={nodes}", f"--node-rank={self.node_rank}"]
            words += [f"--master-addr={self.address}", f"--master-port={self.port}"]
        words.append(f"--shutdown-timeout={self.grace}")
        # srun forwards SIGUSR1 but kills its tasks on SIGTERM
        words.append("--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")
        return [*words, "--no-python", "--"]  # otherwise, torchrun would read --monitor


def choose_launcher(
    name: str,
    devices: Devices,
    environment: Mapping[str, str],
    node_rank: int | None = None,
    grace: int = 90,
    is_dry: bool = False,
) -> Launcher:
    """Return the launcher. For several nodes, "auto" selects one according to `environment`.

    Args:
        name: one of LAUNCHERS
        environment: environment variables, including MASTER_ADDR, MASTER_PORT and SLURM's
        is_dry: True for a dry run, in which the nodes' addresses may be missing

    Raises:
        ValueError: if a variable is missing or contradicts another; the message names it.
    """
    if node_rank is not None and not 0 <= node_rank < devices.nodes:
        raise ValueError(f"NODE_RANK={node_rank}: must be from 0 to {devices.nodes - 1}")
    job, address = environment.get("SLURM_JOB_ID", ""), environment.get("MASTER_ADDR", "")
    port = environment.get("MASTER_PORT", "29500")
    if name == "slurm" or (name == "auto" and devices.nodes > 1 and job and not address):
        if not devices.gpus:
            raise ValueError("LAUNCHER=slurm needs GPUs; set GPUS=N, the number per node")
        if not job and not is_dry:
            raise ValueError("LAUNCHER=slurm needs a SLURM job: sbatch scripts/slurm_train.sbatch")
        address = "FIRST_NODE"
        if job and devices.nodes > 1 and not is_dry:
            command = ["scontrol", "show", "hostnames", environment.get("SLURM_JOB_NODELIST", "")]
            address = subprocess.run(
                command, capture_output=True, encoding="utf-8", check=True
            ).stdout.split()[0]
        if job.isdecimal():  # two jobs may share a node
            port = environment.get("MASTER_PORT", str(20000 + int(job) % 20000))
        cores = environment.get("SLURM_CPUS_PER_TASK", "")
        return Launcher("slurm", devices, 0, address, port, job, cores, grace)
    if devices.nodes == 1:
        return Launcher("torchrun", devices, grace=grace)
    if not is_dry and (node_rank is None or not address):
        raise ValueError(
            f"NODES={devices.nodes}: run this on every node with NODE_RANK=0 to"
            f" {devices.nodes - 1} and MASTER_ADDR=host of node 0, or set LAUNCHER=slurm"
        )
    address = address or "MASTER_ADDR"
    return Launcher("torchrun", devices, node_rank or 0, address, port, grace=grace)
