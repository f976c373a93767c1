"""What devices add to a config: their share of the global batch, precision, and the launcher.

One process is fairseq-train itself. Several are torchrun's, which passes signals on, ends what is
left when one fails, and sets the variables that fairseq reads (RANK, WORLD_SIZE, MASTER_ADDR):

- one node: torchrun --standalone
- several: the same command on every node, with NODE_RANK and MASTER_ADDR
- SLURM: srun starts one torchrun per node; they meet at the job's first node
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import ROOT
from fairseq_deepnet.tools.devices import Devices

PRECISIONS: Final = ("auto", "bf16", "fp16", "fp32")
SMALL_SHARE: Final = 512
"""Tokens; sentences are rarely longer."""
LAUNCHERS: Final = ("auto", "torchrun", "slurm")
DEFAULT_PORT: Final = 29500
SBATCH_FILE: Final = ROOT / "scripts" / "slurm_train.sbatch"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the supervisor is to do, without torch or fairseq."""

    status: int = 0  # to end with where there is no command
    # fairseq-train or its launcher, with all options; empty where there is nothing to start
    command: tuple[str, ...] = ()
    submits: bool = False  # whether the command is sbatch
    falls_back: bool = False  # whether a divergence is to be planned again
    remark: str = ""  # for the log: the fallback that was just taken


def parse_tokens(value: object) -> int:
    """Return the tokens of 524288 or "128 x 4096"."""
    factors = re.split(r"\s*[x*×]\s*", str(value).strip())
    if not all(factor.isdecimal() and int(factor) > 0 for factor in factors):
        raise ValueError(
            f"recipe.global-batch-tokens: {value!r} is neither a number nor like 128 x 4096"
        )
    return math.prod(map(int, factors))


@dataclasses.dataclass(frozen=True)
class Batch:
    """One update: `devices` x `max_tokens` x `update_freq` tokens at most."""

    max_tokens: int
    update_freq: int
    devices: int
    wanted: int

    @property
    def tokens(self) -> int:
        """Tokens of one update over all devices."""
        return self.max_tokens * self.update_freq * self.devices

    @property
    def is_exact(self) -> bool:
        """True if that is the recipe's batch."""
        return self.tokens == self.wanted

    def __str__(self) -> str:
        parts = f"{self.max_tokens:,} tokens x {self.devices} x update-freq {self.update_freq}"
        text = f"{self.tokens:,} tokens per update = {parts}"
        if not self.is_exact:
            off = 100 * (self.tokens - self.wanted) / self.wanted
            text += f" (rounded: the recipe wants {self.wanted:,}, {off:+.1f} %)"
        if self.update_freq == 1 and self.max_tokens < SMALL_SHARE:
            text += "; a sentence longer than a device's share would stop the training"
        return text


def split_batch(wanted: int, max_tokens: int, devices: int) -> Batch:
    """Share `wanted` tokens per update out over devices that hold `max_tokens` at a time.

    Where one step of all devices is more than is wanted, each takes an equal, smaller share.
    Otherwise update-freq is the nearest whole number, and `is_exact` says whether it fits.
    """
    if wanted < devices:
        raise ValueError(f"{wanted} tokens cannot be shared out over {devices} devices")
    if max_tokens * devices > wanted:
        return Batch(wanted // devices, 1, devices, wanted)
    update_freq = max(1, round(wanted / (max_tokens * devices)))
    return Batch(max_tokens, update_freq, devices, wanted)


def precision_arguments(precision: str, has_gpus: bool, elsewhere: bool = False) -> list[str]:
    """Return fairseq-train's option for a precision; "auto" on GPUs is bf16 or else fp16.

    GPUs `elsewhere` than on this machine are taken to know bf16, as all since 2020 do.

    Raises ValueError for fp16 on the CPU and for a name that is not known.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"PRECISION={precision}: choose from {', '.join(PRECISIONS)}")
    if precision == "fp32" or (precision == "auto" and not has_gpus):
        return []
    if precision == "fp16" and not has_gpus:
        raise ValueError("PRECISION=fp16 needs a GPU; the CPU trains in fp32 or bf16")
    if precision == "auto":
        precision = "bf16" if elsewhere or _bf16_works() else "fp16"
    return [f"--{precision}"]


def _bf16_works() -> bool:
    import torch

    from fairseq_deepnet.tools import fairseq_options

    # fairseq's parser takes --bf16 to mean a TPU, unless that is fixed: the GPU would lie idle
    means_tpu = fairseq_options.parse_training(["DATA", "--arch", "transformer", "--bf16"]).tpu
    return torch.cuda.is_bf16_supported() and not means_tpu


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The way to start the processes of `devices`."""

    name: str  # torchrun or slurm
    devices: Devices  # on each node, and the number of nodes
    node_rank: int = 0  # this node among them, from 0 (torchrun)
    address: str = ""  # host of node 0, reachable from all nodes; empty for one node
    port: int = DEFAULT_PORT  # of that host
    extra: tuple[str, ...] = ()  # further words for srun
    job: str = ""  # SLURM's number of the job; empty where one is still to be submitted
    grace: int = 90  # seconds that processes have to end after a signal
    timeout: int = 600  # seconds that nodes wait for one another

    @property
    def submits(self) -> bool:
        """True if this is only to hand a job to SLURM's queue."""
        return self.name == "slurm" and not self.job

    def arguments(self, sharded: bool = False) -> list[str]:
        """Return fairseq-train's options for the devices, the same on every node.

        Backend pytorch_ddp does not start on the CPU; legacy_ddp with gloo does, and
        fully_sharded, if the training is to be `sharded`.
        """
        world = ["--distributed-world-size", str(self.devices.total)]
        if self.devices.total == 1:
            return world if self.devices.gpus else ["--cpu", *world]
        # otherwise rank 0 sends the others classes that torch refuses to unpickle
        world.append("--load-checkpoint-on-all-dp-ranks")
        if self.devices.gpus:
            return world
        backend = "fully_sharded" if sharded else "legacy_ddp"
        # fairseq's own reading of torchrun's variables divides by the number of GPUs
        meeting = ["--distributed-init-method", "env://", "--distributed-rank=-1"]
        cpu = ["--cpu", "--ddp-backend", backend, "--distributed-backend", "gloo"]
        return [*world, *cpu, "--distributed-no-spawn", "--device-id", "0", *meeting]

    def prefix(self) -> list[str]:
        """Return the words before fairseq-train on this node."""
        words = []
        if self.name == "slurm":
            nodes = self.devices.nodes
            words += ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
            words += [f"--gpus-per-node={self.devices.gpus}", "--kill-on-bad-exit=1", *self.extra]
        return words if self.devices.total == 1 else [*words, *self._torchrun()]

    def _torchrun(self) -> list[str]:
        words = ["torchrun", f"--nproc-per-node={self.devices.gpus or self.devices.cpu_processes}"]
        if self.devices.nodes == 1:
            words.append("--standalone")
        elif self.name == "slurm":
            words += [f"--nnodes={self.devices.nodes}", f"--rdzv-id={self.job}"]
            words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={self.address}:{self.port}"]
            words.append(f"--rdzv-conf=join_timeout={self.timeout}")
        else:
            words += [f"--nnodes={self.devices.nodes}", f"--node-rank={self.node_rank}"]
            words += [f"--master-addr={self.address}", f"--master-port={self.port}"]
            words.append(f"--rdzv-conf=timeout={self.timeout}")
        words.append(f"--shutdown-timeout={self.grace}")
        # srun passes SIGUSR1 on, and kills its tasks at SIGTERM
        words.append("--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")
        return [*words, "--no-python"]

    def submission(self, run: Path, words: list[str]) -> list[str]:
        """Return the sbatch command that trains `words` (a config and its options) as a job."""
        return [
            "sbatch",
            f"--nodes={self.devices.nodes}",
            f"--gpus-per-node={self.devices.gpus}",
            f"--job-name={run.name}",
            f"--output={run.resolve()}/slurm-%j.out",
            str(SBATCH_FILE),
            str(Path(words[0]).resolve()) if Path(words[0]).is_file() else words[0],
            *words[1:],
        ]

    def lines(self, command: list[str]) -> list[str]:
        """Return the command as a person would type it, with a comment on further nodes."""
        lines = [shlex.join([*self.prefix(), *command])]
        last = self.devices.nodes - 1
        if self.name == "torchrun" and last and self.node_rank == 0:
            others = "1" if last == 1 else f"1 to {last}"
            lines.append(f"# node{'s' * (last > 1)} {others}: the same with --node-rank={others}")
        return lines

    def __str__(self) -> str:
        nodes = f"{self.devices.nodes} node{'s' if self.devices.nodes > 1 else ''}"
        if self.name == "slurm":
            return f"slurm, {nodes}"
        if self.devices.nodes == 1:
            return "torchrun" if self.devices.total > 1 else "one process"
        return f"torchrun, node {self.node_rank} of {nodes} by {self.address}:{self.port}"


def choose_launcher(
    wanted: str,
    devices: Devices,
    environment: Mapping[str, str],
    node_rank: int | None = None,
    planned: bool = False,
) -> Launcher:
    """Return the launcher; "auto" with several nodes is what `environment` offers.

    Args:
        wanted: one of LAUNCHERS
        devices: what is to be started
        environment: MASTER_ADDR, MASTER_PORT, SRUN_OPTIONS and SLURM's variables are read
        node_rank: this node's number; None where it was not given
        planned: nothing is started, so what only the real start needs may be missing

    Raises ValueError that names the variable which is missing or contradicts another.
    """
    if wanted not in LAUNCHERS:
        raise ValueError(f"LAUNCHER={wanted}: choose from {', '.join(LAUNCHERS)}")
    if node_rank is not None and not 0 <= node_rank < devices.nodes:
        raise ValueError(f"NODE_RANK={node_rank}: NODES={devices.nodes} are numbered from 0")
    in_job = "SLURM_JOB_ID" in environment and "MASTER_ADDR" not in environment
    if wanted == "slurm" or (wanted == "auto" and devices.nodes > 1 and in_job):
        return _slurm(devices, environment, planned)
    if devices.nodes == 1:
        return Launcher("torchrun", devices)
    last = devices.nodes - 1
    if not planned and (node_rank is None or not environment.get("MASTER_ADDR")):
        raise ValueError(
            f"NODES={devices.nodes}: run this on every node with NODE_RANK=0 to {last}"
            " and MASTER_ADDR=host of node 0, or set LAUNCHER=slurm"
        )
    address = environment.get("MASTER_ADDR") or "MASTER_ADDR"
    return Launcher("torchrun", devices, node_rank or 0, address, _port(environment, DEFAULT_PORT))


def _port(environment: Mapping[str, str], default: int) -> int:
    text = environment.get("MASTER_PORT", str(default))
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError(f"MASTER_PORT={text}: a port from 1 to 65535 is expected")
    return int(text)


def _slurm(devices: Devices, environment: Mapping[str, str], planned: bool) -> Launcher:
    if not devices.gpus:
        raise ValueError("LAUNCHER=slurm needs GPUs; set GPUS=N, those of each node")
    job = environment.get("SLURM_JOB_ID", "")
    extra = shlex.split(environment.get("SRUN_OPTIONS", ""))
    cores = environment.get("SLURM_CPUS_PER_TASK")
    if cores:  # a step does not take this over from its job
        extra.insert(0, f"--cpus-per-task={cores}")
    port = _port(environment, 20000 + int(job) % 20000 if job.isdecimal() else DEFAULT_PORT)
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    if nodes.isdecimal() and int(nodes) < devices.nodes:
        raise ValueError(
            f"NODES={devices.nodes}, but this SLURM job has {nodes}; set NODES={nodes}"
        )
    for program in ("srun", "scontrol") if job else ("sbatch",):
        if not planned and shutil.which(program) is None:
            raise ValueError(
                f"LAUNCHER=slurm: there is no {program} on PATH; is this a SLURM machine?"
            )
    address = "FIRST_NODE"
    if job and not planned and devices.nodes > 1:
        listed = ["scontrol", "show", "hostnames", environment.get("SLURM_JOB_NODELIST", "")]
        hosts = subprocess.run(listed, capture_output=True, encoding="utf-8", check=False).stdout
        if not hosts.split():
            raise ValueError("LAUNCHER=slurm: `scontrol show hostnames` names no node of this job")
        address = hosts.split()[0]
    return Launcher("slurm", devices, 0, address, port, tuple(extra), job)
