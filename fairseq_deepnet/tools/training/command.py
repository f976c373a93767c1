"""`deepnet train`: a run is planned, recorded, trained and supervised to its end.

Nothing is imported here that needs torch or fairseq: the supervisor holds neither.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Final

from fairseq_deepnet.files import ROOT
from fairseq_deepnet.tools.processor import all_cores
from fairseq_deepnet.tools.training import supervisor

RUNS: Final = ROOT / "runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `deepnet train`; scripts/train.sh has a variable for each."""
    parser.add_argument("config", help="a YAML file, or a name in configs/")
    parser.add_argument("--run", type=Path, help="run folder (runs/CONFIG)")
    parser.add_argument("--data", type=Path, help="data folder (the recipe's)")
    parser.add_argument("--gpus", default="all", help="GPUs to use; 0 is the CPU (all visible)")
    parser.add_argument("--nodes", default="1", help="machines (1)")
    parser.add_argument("--node-rank", help="number of this machine, from 0 (torchrun)")
    parser.add_argument(
        "--launcher", default="auto", help="auto, fairseq (one node), torchrun or slurm"
    )
    parser.add_argument("--node-timeout", default="600", help="seconds to wait for node 0 (600)")
    parser.add_argument("--cpu-processes", default="1", help="processes on the CPU (1)")
    parser.add_argument("--threads", help="of each CPU process (cores / CPU processes)")
    parser.add_argument(
        "--memory", help="GiB of one GPU, or auto: add the options that make it fit (no question)"
    )
    parser.add_argument("--precision", default="auto", help="auto, bf16, fp16 or fp32")
    parser.add_argument(
        "--preemption-grace", help="seconds to finish an update and save it after a signal (90)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on even if the config is not as recorded"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show plan and commands, write nothing"
    )
    parser.add_argument(
        "--record-only",
        action="store_true",
        help="plan and record, and print the command instead of running it, each word ended by NUL",
    )
    parser.add_argument("extra", nargs="*", help="options of fairseq-train, after --")


def run(args: argparse.Namespace) -> int:
    """Train; return the exit status."""
    if args.run is None:
        args.run = RUNS / Path(args.config).name.removesuffix(".yaml")
    for name, least in (("nodes", 1), ("cpu_processes", 1), ("node_rank", 0)):
        setattr(args, name, _whole(name, getattr(args, name), least))
    for name in ("node_timeout", "preemption_grace"):
        setattr(args, name, _whole(name, getattr(args, name), 1, "seconds"))
    threads = _whole("threads", args.threads, 1) or max(1, _cores() // args.cpu_processes)
    if not (args.dry_run or args.record_only):
        os.environ |= {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        return supervisor.train(args)

    from fairseq_deepnet.tools.training.plan import plan_run

    with contextlib.ExitStack() as stack:
        if args.record_only and not (args.dry_run or args.node_rank) and args.run.is_dir():
            lock = supervisor.RunLock(args.run)
            stack.callback(os.close, lock.take())
        plan = plan_run(args)
    if args.record_only:
        command = plan.state.command(plan.command)
        sys.stdout.write("".join(f"{word}\0" for word in command))
    return 0


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
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if said.isdecimal() and int(said):
        return int(said)
    return all_cores()
