"""What a training is going to do: config, command line, data folder and devices, checked against
each other and against what the run folder holds; recorded there; printed in five lines.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import fairseq_deepnet.models  # noqa: F401  (fixes fairseq before it is imported)
from fairseq_deepnet import ended
from fairseq_deepnet.checkpoints import LAST
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.files import PACKAGE, inside_project, say, shown
from fairseq_deepnet.optim.schedule import misfits
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.corpora.folder import MONOLINGUAL_TASKS, MULTILINGUAL_TASK, DataFolder
from fairseq_deepnet.tools.devices import Devices, choose_devices
from fairseq_deepnet.tools.planning import advice
from fairseq_deepnet.tools.trained_model import refuse_other_vocabulary
from fairseq_deepnet.tools.training import fallbacks, launch, run_folder
from fairseq_deepnet.tools.training.fallbacks import Step
from fairseq_deepnet.tools.training.launch import Plan

MANAGED: Final = {
    "save-dir": "set RUN=FOLDER",
    "user-dir": "it is always this plugin",
    "cpu": "set GPUS=0",
    "distributed-world-size": "set GPUS=N or CPU_PROCESSES=N",
    "bf16": "set PRECISION=bf16",
    "fp16": "set PRECISION=fp16",
}
"""Options that deepnet train sets itself, and what to use instead."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that is settled: nothing of it is written yet."""

    config: configs.Config  # with the options of the command line, checked
    data: Path  # folder
    run: Path  # folder
    launcher: launch.Launcher  # which starts the processes, and on what devices
    batch: launch.Batch | None  # of an update; None where the config has it another way
    precision: list[str]  # fairseq-train's options for it
    command: list[str]  # fairseq-train, with all options
    parsed: argparse.Namespace  # these options, as fairseq reads them
    steps: tuple[Step, ...] | None  # of --on-divergence fallback; None for another policy

    @property
    def is_first(self) -> bool:
        """True on the node that writes the records."""
        return self.launcher.node_rank == 0

    def summary(self) -> str:
        """Describe in five lines what is going to be trained, on what, where.

        Builds the model once without memory, which refuses what cannot be.
        """
        there, parsed = any(self.data.glob("train*.idx")), self.parsed
        parameters = fairseq_options.count_parameters(parsed) if there else None
        size = "" if parameters is None else f", {parameters:,} parameters"
        corpus = check_data(self.data, self.config.recipe) if there else {}
        lines = corpus.get("lines", {}).get("train")
        if isinstance(lines, dict):  # a pair that serves two ways counts once
            lines = sum(lines.values())
        what = "lines" if "language" in corpus else "pairs"
        amount = f", {lines:,} training {what}" if lines else "" if there else ", not there yet"
        updates = f", {parsed.max_update:,} updates" if parsed.max_update else ""
        if not updates and parsed.max_epoch:
            updates = f", {parsed.max_epoch} epochs"
        started = "" if self.launcher.devices.total == 1 else f", {self.launcher}"
        precision = self.precision[0][2:] if self.precision else "fp32"
        return "\n".join(
            [
                f"model    {parsed.arch}, {_depth(parsed)}{size} (config {self.config.name})",
                f"data     {shown(self.data)}{amount}",
                f"devices  {self.launcher.devices}, {precision}{started}",
                f"batch    {self.batch or 'as the config says'}",
                f"run      {shown(self.run)}{updates}",
            ]
        )


def _depth(parsed: argparse.Namespace) -> str:
    scheme = getattr(parsed, "residual_scheme", None)
    depths = (getattr(parsed, f"{side}_layers", None) for side in ("encoder", "decoder"))
    layers = "-".join(f"{depth}L" for depth in depths if depth is not None) or "?L"
    return f"{layers}, {scheme}" if scheme else layers


def check_data(data: Path, recipe: dict[str, configs.Value]) -> dict[str, Any]:
    """Return what corpus.json says of a data folder; empty for one of fairseq-preprocess.

    Raises FileNotFoundError that names the script which makes the folder.
    """
    script = recipe.get("preprocess")
    remedy = f"make it with `bash {script}`" if script else "make it with scripts/preprocess.sh"
    if not any(data.glob("dict*.txt")) or not any(data.glob("train*.idx")):
        raise FileNotFoundError(f"no training data in {shown(data)}: {remedy}, or set DATA=FOLDER")
    manifest = data / "corpus.json"
    if not manifest.is_file():
        return {}
    return read_record(manifest, remedy="copy it again, or create the folder again")


def check_task(corpus: dict[str, Any], config: configs.Config, data: Path) -> None:
    """Raise ValueError where a config's task meets a folder of another kind."""
    kinds = {"directions": "many language pairs", "language": "text of one language"}
    holds = next((kinds[key] for key in kinds if key in corpus), "one language pair")
    tasks = {MULTILINGUAL_TASK: "many language pairs"}
    tasks |= dict.fromkeys(MONOLINGUAL_TASKS, "text of one language")
    wants = tasks.get(str(config.options.get("task")), "one language pair")
    if corpus and holds != wants:
        raise ValueError(
            f"{shown(data)} holds {holds}, and config {config.name} trains on {wants}"
            f" (task {config.options.get('task')}); set DATA=FOLDER, or choose another config"
        )


def _read_config(args: argparse.Namespace) -> tuple[configs.Config, Path]:
    """Return config, with the options of the command line, and data folder, both checked."""
    config = configs.load_config(args.config)
    extra = fairseq_options.read_options(args.extra)
    configs.override(config, extra, "command line")
    for key, remedy in MANAGED.items():
        if key in config.options:
            source = config.sources[key]
            raise ValueError(f"{source}: {key}: deepnet train sets this itself; {remedy}")
    if args.data is None and "data" not in config.recipe:
        raise ValueError(f"{args.config} names no recipe.data; set DATA=FOLDER")
    data = inside_project(args.data or str(config.recipe["data"]))
    try:
        check_task(check_data(data, config.recipe), config, data)
    except FileNotFoundError as error:
        if not args.dry_run:
            raise
        alone = config.options.get("task") in MONOLINGUAL_TASKS
        say(str(error) if alone else f"{error}; its languages will join the command")
    config.recipe["data"] = shown(data)
    configs.check_options(config)
    return config, data


def settle(args: argparse.Namespace) -> PlannedRun:
    """Return what `deepnet train` is to do by its arguments, checked.

    Raises:
        ValueError, OSError: for what the user can mend.
    """
    config, data = _read_config(args)
    visible = torch.cuda.device_count()
    queued = args.launcher == "slurm" and "SLURM_JOB_ID" not in os.environ
    elsewhere = (args.dry_run or queued) and args.gpus != "all"
    devices = choose_devices(
        args.gpus, args.cpu_processes, args.nodes, visible, elsewhere=elsewhere
    )
    launcher = dataclasses.replace(
        launch.choose_launcher(
            args.launcher, devices, os.environ, args.node_rank, planned=args.dry_run
        ),
        grace=args.preemption_grace,
        timeout=args.node_timeout,
    )
    away = elsewhere and devices.gpus > visible
    precision = launch.precision_arguments(args.precision, devices.gpus > 0, away)
    memory = advice.device_memory(args.memory, devices, away) if args.memory else None
    if memory is not None:
        say(advice.fit_into(config, data, devices, memory, precision))
    batch = _share_batch(config, devices)
    machine = precision + launcher.arguments(config.options.get("ddp-backend") == "fully_sharded")
    command = _build_command(config, data, args.run, batch, machine)
    parsed = fairseq_options.parse_training(command[1:])
    steps = _fallback_steps(config, parsed, launcher)
    return PlannedRun(config, data, args.run, launcher, batch, precision, command, parsed, steps)


def _share_batch(config: configs.Config, devices: Devices) -> launch.Batch | None:
    """Return the recipe's batch on these devices; None if the config has it another way."""
    wanted = config.recipe.get("global-batch-tokens")
    limit = config.options.get("max-tokens")
    if wanted is None or limit is None or "update-freq" in config.options:
        return None
    return launch.split_batch(launch.parse_tokens(wanted), int(str(limit)), devices.total)


def _build_command(
    config: configs.Config,
    data: Path,
    run: Path,
    batch: launch.Batch | None,
    machine: list[str],
) -> list[str]:
    """Return the fairseq-train command; `machine` has the options for devices and precision."""
    options = dict(config.options)
    if options.get("on-divergence") == "fallback":  # the supervisor's part: fairseq-train stops
        options["on-divergence"] = "stop"
        options.pop("fallbacks", None)
    if batch:
        options |= {"max-tokens": batch.max_tokens, "update-freq": batch.update_freq}
    if (data / "corpus.json").is_file():
        pairs = str(options.get("lang-pairs") or "")
        if Path(pairs).is_file():  # fairseq takes a file that holds them
            pairs = Path(pairs).read_text(encoding="utf-8").strip()
        options = {**DataFolder.open(data).task_options(pairs), **options}
    options.setdefault("tensorboard-logdir", str(run.resolve() / "tensorboard"))
    command = ["fairseq-train", str(data.resolve()), "--user-dir", str(PACKAGE)]
    command += configs.to_arguments(options)
    return [*command, *machine, "--save-dir", str(run.resolve() / "checkpoints")]


def _fallback_steps(
    config: configs.Config, parsed: argparse.Namespace, launcher: launch.Launcher
) -> tuple[Step, ...] | None:
    if config.options.get("on-divergence") != "fallback":
        return None
    if launcher.name == "torchrun" and launcher.devices.nodes > 1:
        raise ConfigurationError(
            "--on-divergence fallback needs one supervisor for all nodes: use LAUNCHER=slurm, or"
            " --on-divergence stop"
        )
    if getattr(parsed, "checkpoint_suffix", ""):
        raise ConfigurationError(
            "--on-divergence fallback contradicts --checkpoint-suffix; use --on-divergence stop"
        )
    text = config.options.get("fallbacks")
    return fallbacks.steps_of(None if text is None else str(text), vars(parsed))


def plan_run(args: argparse.Namespace) -> Plan:
    """Plan the training of `deepnet train`, or what is left of it, and record it.

    The same function serves the first start, a resume, and the fallback after a divergence: a
    divergence that ended.json records, and that no fallback has answered, is answered here.

    Raises:
        ValueError, OSError: for what the user can fix; nothing has been written then.
    """
    training = settle(args)
    launcher, run = training.launcher, training.run
    if args.dry_run or launcher.submits:
        return _show(training, [args.config, *args.extra], args.dry_run)
    run_folder.refuse_changes(run, training.config, training.data, args.resume, training.is_first)
    if ended.is_complete(run):
        say(f"{shown(run)} is complete: nothing to do (RUN=FOLDER trains another)")
        return Plan()
    state, remark = fallbacks.read(run), ""
    last = ended.read(run)
    if training.steps is None:
        if state.step:
            say(
                f"warning: this run had fallen back ({shown(run / fallbacks.NAME)}); without"
                " --on-divergence fallback that does not count"
            )
            state = fallbacks.State()
    else:
        state = fallbacks.roll_back(run)
        if last.get("why") == ended.Why.DIVERGED and last.get("attempt") == state.step:
            taken = fallbacks.take(run, training.steps, vars(training.parsed), last)
            if taken is None:
                say(
                    f"diverged at update {last['update']:,}, and no fallback is left after"
                    f" {state.step} ({shown(run)}/{fallbacks.NAME}): add steps to --fallbacks, or"
                    " set RUN=FOLDER to train with other options"
                )
                return Plan(ended.DIVERGED)
            state, remark = taken, str(taken)
            say(remark)
        elif state.step:
            say(f"this run has fallen back: {state} ({shown(run / fallbacks.NAME)})")
    if any(run.glob("checkpoints/*.pt")):
        refuse_other_vocabulary(run, training.data)
    updates, owes_validation = 0, False
    if training.is_first:
        is_kept_up = not training.parsed.no_last_checkpoints
        updates, owes_validation = run_folder.resume_point(run, is_kept_up)
    if 0 < training.parsed.max_update <= updates and not owes_validation:
        ended.write(run, ended.Why.COMPLETE, updates)
        say(f"{shown(run)} is complete at update {updates:,}: nothing to do")
        return Plan()
    words = _continuing(training.command, any(run.glob("checkpoints/checkpoint*.pt")))
    if state.step:
        words += [*state.arguments(vars(training.parsed)), f"--{ended.ATTEMPT}={state.step}"]
    command = (*launcher.prefix(), *words)
    if training.is_first:
        text = training.summary()  # what it refuses leaves no folder
        facts = run_folder.environment(
            training.config, training.data, launcher.devices, training.batch
        )
        run_folder.record(run, training.config, command, facts)
        ended.clear(run)
        if not remark:
            say(text)
        if updates:
            say(f"resuming from update {updates:,}")
    return Plan(0, command, falls_back=training.steps is not None, remark=remark)


def _show(training: PlannedRun, words: list[str], dry: bool) -> Plan:
    """Print what would be trained; return the command that hands it to a queue."""
    parsed, launcher = training.parsed, training.launcher
    for misfit in misfits(parsed.lr_scheduler, parsed, parsed.max_update):
        say(f"warning: {misfit}")  # a training that begins here says so itself
    say(training.summary())
    submission = launcher.submission(training.run, words)
    if not dry:
        return Plan(0, tuple(submission), submits=True)
    if launcher.submits:
        print(f"# handed to the queue; the job runs the next line\n{shlex.join(submission)}")
    print("\n".join(launcher.lines(_continuing(training.command, False))))
    return Plan()


_RESETS: Final = {
    f"--reset-{part}" for part in ("optimizer", "lr-scheduler", "meters", "dataloader")
}


def _continuing(command: list[str], has_checkpoints: bool) -> list[str]:
    """Return a command that begins with its --restore-file once, and resumes after that.

    That is fairseq's --continue-once; the --reset-* options are for the beginning, too.
    """
    if "--restore-file" not in command:
        return list(command)
    place = command.index("--restore-file")
    start = command[place + 1]
    if start == LAST:
        return list(command)
    if not Path(start).is_file():
        raise ConfigurationError(f"--restore-file {start}: there is no such file")
    words = [*command[:place], *command[place + 2 :], "--continue-once", start]
    return [word for word in words if not (has_checkpoints and word in _RESETS)]
