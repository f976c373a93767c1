"""`deepnet record`: a run is planned before it starts, and leaves what is needed to repeat it.

It checks config, data and devices, writes config.yaml, command.txt and
environment.json, and prints the fairseq-train command (each word ended by NUL) for
scripts/train.sh. It prints nothing where the run is complete.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.optim.schedule import misfits
from fairseq_deepnet.tools import configs, fairseq_options, processor
from fairseq_deepnet.tools.checkpoints.choice import refuse_other_words
from fairseq_deepnet.tools.planning import fitting
from fairseq_deepnet.tools.training import launch, launchers, nodes
from fairseq_deepnet.tools.training.run_folder import (
    differences,
    environment,
    owes_validation,
    record,
    refuse_changes,
    updates_so_far,
)
from fairseq_deepnet.tools.training.settings import build_command, settle, share_batch
from fairseq_deepnet.tools.training.summary import summarise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet record`."""
    parser.add_argument("config", help="a YAML file, or a name in configs/")
    parser.add_argument("--run", type=Path, required=True, help="the run folder")
    parser.add_argument("--data", type=Path, help="data folder (the recipe's)")
    parser.add_argument("--gpus", default="all", help="GPUs to use; 0 is the CPU (all visible)")
    parser.add_argument("--nodes", type=int, default=1, help="machines (1)")
    parser.add_argument("--node-rank", type=int, help="number of this machine, from 0 (torchrun)")
    parser.add_argument("--launcher", default="auto", help=", ".join(launchers.LAUNCHERS))
    parser.add_argument(
        "--node-timeout", type=float, default=600, help="seconds to wait for node 0 (600)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show plan and commands, write nothing"
    )
    parser.add_argument("--cpu-processes", type=int, default=1, help="processes on the CPU (1)")
    parser.add_argument(
        "--memory",
        help=f"GiB of one GPU, or {fitting.AUTO}: add the options that make it fit (no question)",
    )
    parser.add_argument("--precision", default="auto", help=", ".join(launch.PRECISIONS))
    parser.add_argument(
        "--resume", action="store_true", help="go on even if the config is not as recorded"
    )
    parser.add_argument("extra", nargs="*", help="options of fairseq-train, after --")


def run(args: argparse.Namespace) -> int:
    """Plan and record; print the command, or nothing where the run is complete."""
    import torch

    config, data = settle(args)
    visible = torch.cuda.device_count()
    queued = args.launcher == "slurm" and "SLURM_JOB_ID" not in os.environ
    elsewhere = (args.dry_run or queued) and args.gpus != "all"
    devices = launch.choose_devices(
        args.gpus, args.cpu_processes, args.nodes, visible, elsewhere=elsewhere
    )
    launcher = launchers.choose_launcher(
        args.launcher, devices, os.environ, args.node_rank, planned=args.dry_run
    )
    away = elsewhere and devices.gpus > visible
    precision = launch.precision_arguments(args.precision, devices.gpus > 0, away)
    if precision == ["--bf16"] and not devices.gpus and (remark := processor.bf16_remark()):
        say(remark)
    memory = fitting.device_memory(args.memory, devices, away) if args.memory else None
    if memory is not None:
        say(fitting.fit_into(config, data, devices, memory, precision))
    batch = share_batch(config, devices)
    machine = precision + launcher.arguments()
    command = build_command(config, data, args.run, batch, machine)
    parsed = fairseq_options.parse_training(command[1:])
    summary = functools.partial(
        summarise, config, data, args.run, parsed, launcher, batch, precision
    )
    for misfit in misfits(parsed.lr_scheduler, parsed, parsed.max_update):
        say(f"warning: {misfit}")
    if args.dry_run or launcher.submits:
        return _show(args, launcher, command, summary())
    shared = nodes.facts(command, data, devices.nodes)
    if launcher.node_rank > 0:
        return _join(args, config, shared, [*launcher.prefix(), *command])
    nodes.withdraw(args.run)
    refuse_changes(args.run, config, args.resume)
    if any(args.run.glob("checkpoints/*.pt")):
        refuse_other_words(args.run, data)
    if (args.run / "done").is_file():
        say(f"{shown(args.run)} is complete: nothing to do (RUN=FOLDER trains another)")
        return 0
    updates = updates_so_far(args.run)
    at_the_end = updates is not None and parsed.max_update and updates >= parsed.max_update
    if at_the_end and not owes_validation(args.run):
        write_text(args.run / "done", f"{updates} updates\n")
        say(f"{shown(args.run)} is complete at update {updates:,}: nothing to do")
        return 0
    text = summary()  # builds the model once without memory: what it refuses leaves no folder
    words = [*launcher.prefix(), *command]
    record(args.run, config, words, environment(config, data, devices, batch))
    say(text)
    if updates:
        say(f"going on from update {updates:,}")
    if devices.nodes > 1:
        nodes.announce(args.run, shared)
    _hand_over(words)
    return 0


def _hand_over(words: list[str]) -> None:
    """To scripts/train.sh, each word ended by NUL."""
    sys.stdout.write("".join(f"{word}\0" for word in words))


def _show(
    args: argparse.Namespace, launcher: launchers.Launcher, command: list[str], summary: str
) -> int:
    """A dry run's lines for people, or the words that hand the training to SLURM's queue."""
    say(summary)
    submission = launcher.submission(args.run, [args.config, *args.extra])
    if not args.dry_run:
        _hand_over(submission)
        return 0
    if launcher.submits:
        print(f"# handed to the queue; the job runs the next line\n{shlex.join(submission)}")
    print("\n".join(launcher.lines(command)))
    return 0


def _join(
    args: argparse.Namespace, config: configs.Config, shared: dict[str, Any], words: list[str]
) -> int:
    """A node that is not the first: what is recorded is not its business, but must be as here."""

    def is_complete() -> bool:
        recorded = args.run / "config.yaml"
        if not (args.run / "done").is_file() or not recorded.is_file():
            return False
        return not differences(configs.load_config(str(recorded)), config)

    say(f"waiting for node 0 in {shown(args.run)}")
    if nodes.wait_to_join(args.run, shared, is_complete, args.node_timeout):
        _hand_over(words)
    else:
        say(f"{shown(args.run)} is complete: nothing to do")
    return 0
