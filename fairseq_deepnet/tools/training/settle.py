"""Plan of a training run.

The plan combines the config, the command line, the data folder and the devices. It is compared with
the records in the run folder, then recorded there and printed in five lines.
"""

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

import fairseq_deepnet.models  # noqa: F401  (fixes fairseq before it is imported)
from fairseq_deepnet import ended
from fairseq_deepnet.checkpoints import LAST
from fairseq_deepnet.divergence.watch import DEFAULT_FALLBACKS
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.files import PACKAGE, say, shown
from fairseq_deepnet.optim.schedule import misfits
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.devices import choose_devices
from fairseq_deepnet.tools.trained_model import refuse_changed_vocabulary, refuse_other_vocabulary
from fairseq_deepnet.tools.training import fallbacks, launch, run_folder
from fairseq_deepnet.tools.training.launch import Plan

MANAGED: Final = ("save-dir", "user-dir", "cpu", "distributed-world-size", "bf16", "fp16")
"""Options that RUN, GPUS, CPU_PROCESSES and PRECISION determine."""


@dataclass(frozen=True)
class PlannedRun:
    """Run whose settings have been checked but not yet recorded."""

    config: configs.Config  # with the options of the command line
    data: Path  # folder
    run: Path  # folder
    launcher: launch.Launcher  # with the devices
    batch: launch.Batch | None
    precision: list[str]  # fairseq-train's option
    command: list[str]  # fairseq-train, with all options
    parsed: argparse.Namespace  # these options as fairseq parses them
    steps: list[str] | None  # fallbacks; None without --on-divergence fallback

    def summary(self) -> str:
        """Describe the model, data, devices, batch and run in five lines."""
        parsed, devices = self.parsed, self.launcher.devices
        depths = (getattr(parsed, f"{side}_layers", None) for side in ("encoder", "decoder"))
        model = "-".join(f"{depth}L" for depth in depths if depth is not None)
        model += f", {getattr(parsed, 'residual_scheme', 'fairseq')}"
        updates, epochs = parsed.max_update, parsed.max_epoch
        length = f"{updates:,} updates" if updates else f"{epochs or 'unlimited'} epochs"
        precision = (self.precision or ["--fp32"])[0][2:]
        launcher = f", {self.launcher.name}" if devices.total > 1 else ""
        return "\n".join(
            [
                f"model    {parsed.arch}, {model} (config {self.config.name})",
                f"data     {shown(self.data)}",
                f"devices  {devices}, {precision}{launcher}",
                f"batch    {self.batch or 'as in the config'}",
                f"run      {shown(self.run)}, {length}",
            ]
        )


def check_options(config: configs.Config) -> None:
    """Raise ValueError for an option that fairseq-train rejects, or that `deepnet train` sets."""
    for key in MANAGED:
        if key in config.options:
            raise ValueError(
                f"{config.name}: {key}: deepnet train sets this option from RUN=FOLDER, GPUS=N,"
                " CPU_PROCESSES=N and PRECISION=NAME"
            )
    resets = [key for key in config.options if key.startswith("reset-")]
    if resets and config.options.get("restore-file") in (None, LAST):
        raise ValueError(
            f"--{resets[0]} would apply whenever the run resumes: set RUN=FOLDER and --restore-file"
            " FILE, with which it applies only to the first start"
        )
    configs.check_options(config)


def settle(args: argparse.Namespace) -> PlannedRun:
    """Return the run described by the arguments of `deepnet train`.

    Raises:
        ValueError, OSError: for errors that the user can fix.
    """
    config = configs.load_config(args.config)
    configs.override(config, fairseq_options.read_options(args.extra), "command line")
    check_options(config)
    data = args.data or config.data
    if data is None:
        raise ValueError(f"{args.config} names no recipe.data; set DATA=FOLDER")
    try:
        configs.check_data(data, config)
    except FileNotFoundError as error:
        if not args.dry_run:
            raise
        say(str(error))
    config.recipe["data"] = shown(data)

    visible = torch.cuda.device_count()
    elsewhere = args.dry_run and args.gpus != "all"
    devices = choose_devices(args.gpus, args.cpu_processes, args.nodes, visible, elsewhere)
    launcher = launch.choose_launcher(
        *(args.launcher, devices, os.environ, args.node_rank, args.preemption_grace, args.dry_run)
    )
    elsewhere = elsewhere and devices.gpus > visible
    precision = launch.precision_arguments(args.precision, devices.gpus > 0, elsewhere)
    tokens = config.recipe.get("global-batch-tokens")
    batch = launch.choose_batch(config.options, tokens, devices.total)
    is_sharded = config.options.get("ddp-backend") == "fully_sharded"
    machine = precision + launcher.arguments(is_sharded)
    command = _build_command(config, data, args.run, batch, machine)
    parsed = fairseq_options.parse_training(command[1:])
    steps = None
    if config.options.get("on-divergence") == "fallback":
        if launcher.name == "torchrun" and devices.nodes > 1:
            raise ConfigurationError(
                "--on-divergence fallback needs one supervisor for all nodes: use LAUNCHER=slurm,"
                " or --on-divergence stop"
            )
        steps = fallbacks.parse(str(config.options.get("fallbacks") or DEFAULT_FALLBACKS))
        # raises an error if a step changes an option that this run does not set
        fallbacks.arguments(steps, vars(parsed))
    return PlannedRun(config, data, args.run, launcher, batch, precision, command, parsed, steps)


def _build_command(
    config: configs.Config, data: Path, run: Path, batch: launch.Batch | None, machine: list[str]
) -> list[str]:
    """Return the fairseq-train command; `machine` contains options for devices and precision."""
    options = dict(config.options)
    start = str(options.pop("restore-file", None) or LAST)
    if start != LAST:  # only the first start reads it
        options["continue-once"] = start
    if options.get("on-divergence") == "fallback":  # fairseq-train only stops
        options["on-divergence"] = "stop"
        options.pop("fallbacks", None)
    if batch:
        options |= {"max-tokens": batch.max_tokens, "update-freq": batch.update_freq}
    if (data / "corpus.json").is_file():
        folder = DataFolder.open(data)
        refuse_changed_vocabulary(folder)
        options = {**folder.task_options(options), **options}
    options.setdefault("tensorboard-logdir", str(run.resolve() / "tensorboard"))
    command = ["fairseq-train", str(data.resolve()), "--user-dir", str(PACKAGE)]
    command += configs.to_arguments(options)
    return [*command, *machine, "--save-dir", str(run.resolve() / "checkpoints")]


def plan_run(args: argparse.Namespace) -> Plan:
    """Plan and record a start, a resume, or the fallback after a recorded divergence.

    Raises:
        ValueError, OSError: for errors that the user can fix.
    """
    training = settle(args)
    launcher, run, parsed = training.launcher, training.run, training.parsed
    is_first = launcher.node_rank == 0  # only the first node writes records
    if args.dry_run:
        for misfit in misfits(parsed.lr_scheduler, parsed, parsed.max_update):
            say(f"warning: {misfit}")  # the run itself logs this
        say(training.summary())
        print(shlex.join([*launcher.prefix(), *training.command]))
        return Plan()
    if any(run.glob("checkpoints/*.pt")):
        refuse_other_vocabulary(run, training.data)
    config, data, batch = training.config, training.data, training.batch
    changes = run_folder.refuse_changes(run, config, data, batch, args.resume)
    if ended.is_complete(run) and not changes:
        say(f"{shown(run)} is complete: nothing to do (RUN=FOLDER trains another)")
        return Plan()
    history, last = fallbacks.read(run), ended.read(run)
    has_diverged = last.get("why") == ended.Why.DIVERGED and last.get("attempt") == len(history)
    if has_diverged and not training.steps and not args.resume:
        say(f"diverged at update {last['update']:,}: set RUN=FOLDER, or RESUME=1 to resume anyway")
        return Plan(ended.DIVERGED)
    if training.steps and has_diverged:
        if len(history) >= len(training.steps):
            say(
                f"diverged at update {last['update']:,}, and no fallback remains after"
                f" {len(history)}: add steps to --fallbacks, or set RUN=FOLDER"
            )
            return Plan(ended.DIVERGED)
        history = fallbacks.take(run, training.steps[len(history)], last)
    if history:
        say(fallbacks.describe(history))
    updates, owes_validation = 0, False
    if is_first:
        updates, owes_validation = run_folder.resume_point(run, not parsed.no_last_checkpoints)
    if 0 < parsed.max_update <= updates and not owes_validation:
        ended.write(run, ended.Why.COMPLETE, updates)
        say(f"{shown(run)} is complete at update {updates:,}: nothing to do")
        return Plan()
    is_begun = any(run.glob("checkpoints/checkpoint*.pt"))
    words = [w for w in training.command if not (is_begun and w.startswith("--reset-"))]
    if history:
        changes = [fallback["change"] for fallback in history]
        words += [*fallbacks.arguments(changes, vars(parsed)), f"--{ended.ATTEMPT}={len(history)}"]
    command = (*launcher.prefix(), *words)
    if is_first:
        ended.clear(run)  # before record(), as other nodes read both
        run_folder.record(*(run, config, data, launcher.devices, batch, command))
        say(training.summary())
        if updates:
            say(f"resuming from update {updates:,}")
    return Plan(0, command, parsed.max_update, training.steps is not None)
