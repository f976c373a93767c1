"""`deepnet train`: plan a run, record it, and supervise its training to the end.

Nothing is imported here that needs torch or fairseq: the supervisor holds neither.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import ROOT
from fairseq_deepnet.tools.devices import all_cores
from fairseq_deepnet.tools.training import supervise

RUNS: Final = ROOT / "runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `deepnet train`; scripts/train.sh has a variable for each."""
    add = parser.add_argument
    add("config", help="a YAML file, or a name in configs/")
    add("--run", type=Path, help="run folder (runs/CONFIG)")
    add("--data", type=Path, help="data folder (the recipe's)")
    add("--gpus", default="all", help="GPUs to use; 0 is the CPU (all visible)")
    add("--nodes", default="1", help="machines (1)")
    add("--node-rank", help="number of this machine, from 0 (torchrun)")
    add("--launcher", default="auto", help="auto, torchrun or slurm")
    add("--node-timeout", default="600", help="seconds that nodes wait for one another (600)")
    add("--cpu-processes", default="1", help="processes on the CPU (1)")
    add("--threads", help="of each CPU process (cores / CPU processes)")
    add("--memory", help="GiB of one GPU, or auto: add the options that make it fit (no question)")
    add("--precision", default="auto", help="auto, bf16, fp16 or fp32")
    add(
        "--preemption-grace",
        default="90",
        help="seconds to finish an update and save it after a signal (90)",
    )
    add("--resume", action="store_true", help="resume with other settings")
    add("--dry-run", action="store_true", help="show plan and commands, write nothing")
    add("extra", nargs="*", help="options of fairseq-train, after --")


def run(args: argparse.Namespace) -> int:
    """Train; return the exit status."""
    if args.run is None:
        args.run = RUNS / Path(args.config).name.removesuffix(".yaml")
    for name, least in (("nodes", 1), ("cpu_processes", 1), ("node_rank", 0)):
        setattr(args, name, _whole(name, getattr(args, name), least))
    for name in ("node_timeout", "preemption_grace"):
        setattr(args, name, _whole(name, getattr(args, name), 1, "seconds"))
    threads = _whole("threads", args.threads, 1) or max(1, _cores() // args.cpu_processes)
    if args.dry_run:
        from fairseq_deepnet.tools.training.settle import plan_run

        plan_run(args)
        return 0
    os.environ |= {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    return supervise.train(args)


def _whole(name: str, text: str | None, least: int, what: str = "a number") -> int | None:
    """Return a whole number that was given for an option; None where it was not given."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
        variable = name.upper()
        raise ValueError(f"{variable} is '{text}'; it must be {what} from {least} on")
    return int(text)


def _cores() -> int:
    """Return the processors that this process may use, as nproc counts them."""
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(text) if text.isdecimal() and int(text) else all_cores()
