"""What a run is going to do: config, command line, data folder and devices, checked against each
other; recorded in the run folder; told in five lines.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
from pathlib import Path
from typing import Any, Final

import torch

import fairseq_deepnet.models  # noqa: F401  (what is mended in fairseq comes before fairseq)
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.files import inside_project, say, shown, write_text
from fairseq_deepnet.optim.schedule import misfits
from fairseq_deepnet.records import read_record
from fairseq_deepnet.signals import DIVERGENCE_RECORD, RECORD
from fairseq_deepnet.tools import configs, fairseq_options, processor
from fairseq_deepnet.tools.checkpoints.choice import refuse_other_words
from fairseq_deepnet.tools.corpora.folder import MONOLINGUAL_TASKS, MULTILINGUAL_TASK, DataFolder
from fairseq_deepnet.tools.planning import fitting
from fairseq_deepnet.tools.training import fallbacks, launch, launchers, nodes, run_folder
from fairseq_deepnet.tools.training.fallbacks import FallbackState, Plan, Step

MANAGED: Final = {
    "save-dir": "set RUN=FOLDER",
    "user-dir": "it is always this plugin",
    "cpu": "set GPUS=0",
    "distributed-world-size": "set GPUS=N or CPU_PROCESSES=N",
    "bf16": "set PRECISION=bf16",
    "fp16": "set PRECISION=fp16",
}
"""Options that scripts/train.sh sets itself, and what to use instead."""


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
    return read_record(manifest, remedy="copy it again, or make the folder anew")


def check_task(corpus: dict[str, Any], config: configs.Config, data: Path) -> None:
    """Raise ValueError where a config's task meets a folder of another kind."""
    kinds = {"directions": "many language pairs", "language": "text of one language"}
    holds = next((kinds[key] for key in kinds if key in corpus), "one language pair")
    tasks = {MULTILINGUAL_TASK: "many language pairs"}
    tasks |= dict.fromkeys(MONOLINGUAL_TASKS, "text of one language")
    wants = tasks.get(str(config.options.get("task")), "one language pair")
    if holds == wants or not corpus:
        return
    raise ValueError(
        f"{shown(data)} holds {holds}, and config {config.name} trains on {wants}"
        f" (task {config.options.get('task')}); set DATA=FOLDER, or choose another config"
    )


def settle(args: argparse.Namespace) -> tuple[configs.Config, Path]:
    """Return config, with the options of the command line, and data folder, both checked."""
    config = configs.load_config(args.config)
    extra = fairseq_options.read_options(args.extra, config.choosing())
    configs.override(config, extra, "command line")
    for key, remedy in MANAGED.items():
        if key in config.options:
            source = config.sources[key]
            raise ValueError(f"{source}: {key}: scripts/train.sh sets this itself; {remedy}")
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


def build_command(
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
        told: dict[str, configs.Value] = dict(DataFolder.open(data).task_options())
        options = told | options
    options.setdefault("tensorboard-logdir", str(run.resolve() / "tensorboard"))
    command = ["fairseq-train", str(data.resolve()), "--user-dir", fairseq_options.user_dir()]
    command += configs.to_arguments(options)
    return [*command, *machine, "--save-dir", str(run.resolve() / "checkpoints")]


def share_batch(config: configs.Config, devices: launch.Devices) -> launch.Batch | None:
    """Return the recipe's batch on these devices; None if the config has it another way."""
    wanted = config.recipe.get("global-batch-tokens")
    limit = config.options.get("max-tokens")
    if wanted is None or limit is None or "update-freq" in config.options:
        return None
    return launch.split_batch(launch.parse_tokens(wanted), int(str(limit)), devices.total)


def plan_run(args: argparse.Namespace) -> Plan:
    """Plan a run and record it; with --dry-run only show it.

    Raises:
        ValueError, OSError: for what the user can mend; nothing has been written then.
    """
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
    sharded = config.options.get("ddp-backend") == "fully_sharded"
    machine = precision + launcher.arguments(sharded)
    command = build_command(config, data, args.run, batch, machine)
    parsed = fairseq_options.parse_training(command[1:])
    steps = fallback_steps(config, parsed)
    summary = functools.partial(
        summarise, config, data, args.run, parsed, launcher, batch, precision
    )
    for misfit in misfits(parsed.lr_scheduler, parsed, parsed.max_update):
        say(f"warning: {misfit}")
    if args.dry_run or launcher.submits:
        say(summary())
        return _show_or_submit(args, launcher, command)
    shared = nodes.facts(command, data, devices.nodes)
    words = (*launcher.prefix(), *command)
    if launcher.node_rank > 0:
        say(f"waiting for node 0 in {shown(args.run)}")
        is_complete = functools.partial(run_folder.is_complete, args.run, config)
        if nodes.wait_to_join(args.run, shared, is_complete, args.node_timeout):
            return Plan(words, steps, _state_of(args.run, steps, parsed, moves=False))
        say(f"{shown(args.run)} is complete: nothing to do")
        return Plan()
    nodes.withdraw(args.run)
    run_folder.refuse_changes(args.run, config, args.resume)
    state = _state_of(args.run, steps, parsed)
    if any(args.run.glob("checkpoints/*.pt")):
        refuse_other_words(args.run, data)
    if (args.run / "done").is_file():
        say(f"{shown(args.run)} is complete: nothing to do (RUN=FOLDER trains another)")
        return Plan()
    updates = run_folder.updates_so_far(args.run)
    if _is_at_the_end(args.run, updates, parsed.max_update):
        return Plan()
    text = summary()  # builds the model once without memory: what it refuses leaves no folder
    environment = run_folder.environment(config, data, devices, batch)
    run_folder.record(args.run, config, list(words), environment)
    for name in (RECORD, DIVERGENCE_RECORD):  # of how it ended before
        (args.run / name).unlink(missing_ok=True)
    say(text)
    if updates:
        say(f"going on from update {updates:,}")
    if devices.nodes > 1:
        nodes.announce(args.run, shared)
    return Plan(words, steps, state)


def _show_or_submit(
    args: argparse.Namespace, launcher: launchers.Launcher, command: list[str]
) -> Plan:
    """Show what a dry run would start; else return what hands the training to SLURM's queue."""
    submission = launcher.submission(args.run, [args.config, *args.extra])
    if not args.dry_run:
        return Plan(tuple(submission))
    if launcher.submits:
        print(f"# handed to the queue; the job runs the next line\n{shlex.join(submission)}")
    print("\n".join(launcher.lines(command)))
    return Plan()


def _is_at_the_end(run: Path, updates: int | None, last: int) -> bool:
    """True if a run has made its last update, and owes nothing; it is marked as done then."""
    if updates is None or not last or updates < last or run_folder.owes_validation(run):
        return False
    write_text(run / "done", f"{updates} updates\n")
    say(f"{shown(run)} is complete at update {updates:,}: nothing to do")
    return True


def fallback_steps(config: configs.Config, parsed: argparse.Namespace) -> tuple[Step, ...] | None:
    """Return the steps of --on-divergence fallback; None for another policy."""
    if config.options.get("on-divergence") != "fallback":
        return None
    if getattr(parsed, "checkpoint_suffix", ""):
        raise ConfigurationError(
            "--on-divergence fallback contradicts --checkpoint-suffix; use --on-divergence stop"
        )
    text = config.options.get("fallbacks")
    return fallbacks.steps_of(None if text is None else str(text), vars(parsed))


def _state_of(
    run: Path, steps: tuple[Step, ...] | None, parsed: argparse.Namespace, moves: bool = True
) -> FallbackState:
    """Return the fallbacks that a run goes on with.

    Where a kill has cut the last one off, it is finished if this node moves files: the first does.
    """
    if steps is not None:
        fallbacks.refuse_changes(run, steps, vars(parsed))
        state = fallbacks.roll_back(run) if moves else fallbacks.read(run)
    else:
        state = fallbacks.read(run)
    if not state.step:
        return state
    taken = f"{fallbacks.shown(state.overrides)} ({shown(run / fallbacks.NAME)})"
    if steps is not None:
        say(
            f"fallback {state.step}: this run has fallen back to {taken}; remove that file and the"
            " checkpoints to start without"
        )
        return state
    say(
        f"warning: this run had fallen back to {taken}; without --on-divergence fallback that does"
        " not count"
    )
    return FallbackState()


def fall_back(run: Path, plan: Plan, state: FallbackState) -> FallbackState | None:
    """Take the next fallback of a run that has diverged; None where none is left."""
    command = state.command(plan.command)
    options = command[command.index("fairseq-train") + 1 :]
    present = vars(fairseq_options.parse_training(options))
    record = read_record(run / DIVERGENCE_RECORD, {"update": int, "good?": dict})
    return fallbacks.take(run, plan.fallbacks or (), present, record)


def summarise(
    config: configs.Config,
    data: Path,
    run: Path,
    parsed: argparse.Namespace,
    launcher: launchers.Launcher,
    batch: launch.Batch | None,
    precision: list[str],
) -> str:
    """Say in five lines what is going to be trained, on what, where."""
    there = any(data.glob("train*.idx"))
    parameters = fairseq_options.count_parameters(parsed) if there else None
    size = "" if parameters is None else f", {parameters:,} parameters"
    corpus = check_data(data, config.recipe) if there else {}
    lines = _training_lines(corpus)
    what = "lines" if "language" in corpus else "pairs"
    amount = f", {lines:,} training {what}" if lines else "" if there else ", not there yet"
    updates = f", {parsed.max_update:,} updates" if parsed.max_update else ""
    if not updates and parsed.max_epoch:
        updates = f", {parsed.max_epoch} epochs"
    started = "" if launcher.name == "fairseq" else f", {launcher}"
    return "\n".join(
        [
            f"model    {parsed.arch}, {_depth(parsed)}{size} (config {config.name})",
            f"data     {shown(data)}{amount}",
            f"devices  {launcher.devices}, {precision[0][2:] if precision else 'fp32'}{started}",
            f"batch    {batch or 'as the config says'}",
            f"run      {shown(run)}{updates}",
        ]
    )


def _training_lines(corpus: dict[str, Any]) -> int | None:
    """Return lines or pairs to train on; a pair that serves two ways counts once."""
    lines = corpus.get("lines", {}).get("train")
    return sum(lines.values()) if isinstance(lines, dict) else lines


def _depth(parsed: argparse.Namespace) -> str:
    scheme = getattr(parsed, "residual_scheme", None)
    depths = (getattr(parsed, f"{side}_layers", None) for side in ("encoder", "decoder"))
    layers = "-".join(f"{depth}L" for depth in depths if depth is not None) or "?L"
    return f"{layers}, {scheme}" if scheme else layers
