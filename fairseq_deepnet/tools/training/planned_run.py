"""What a run is going to do: config, command line, data folder and devices, checked against each
other; recorded in the run folder; printed in five lines.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import fairseq_deepnet.models  # noqa: F401  (what is mended in fairseq comes before fairseq)
from fairseq_deepnet import ended
from fairseq_deepnet.checkpoints import LAST
from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.files import PACKAGE, inside_project, say, shown, write_text
from fairseq_deepnet.optim.schedule import misfits
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.corpora.folder import MONOLINGUAL_TASKS, MULTILINGUAL_TASK, DataFolder
from fairseq_deepnet.tools.devices import Devices, bf16_remark, choose_devices
from fairseq_deepnet.tools.planning import advice
from fairseq_deepnet.tools.trained_model import refuse_other_vocabulary
from fairseq_deepnet.tools.training import fallbacks, launch, nodes, run_folder
from fairseq_deepnet.tools.training.fallbacks import FallbackState, Step, SupervisorPlan

MANAGED: Final = {
    "save-dir": "set RUN=FOLDER",
    "user-dir": "it is always this plugin",
    "cpu": "set GPUS=0",
    "distributed-world-size": "set GPUS=N or CPU_PROCESSES=N",
    "bf16": "set PRECISION=bf16",
    "fp16": "set PRECISION=fp16",
}
"""Options that scripts/train.sh sets itself, and what to use instead."""


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

    def summary(self) -> str:
        """Say in five lines what is going to be trained, on what, where.

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
        started = "" if self.launcher.name == "fairseq" else f", {self.launcher}"
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
    return read_record(manifest, remedy="copy it again, or make the folder anew")


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
    launcher = launch.choose_launcher(
        args.launcher, devices, os.environ, args.node_rank, planned=args.dry_run
    )
    away = elsewhere and devices.gpus > visible
    precision = launch.precision_arguments(args.precision, devices.gpus > 0, away)
    if precision == ["--bf16"] and not devices.gpus and (remark := bf16_remark()):
        say(remark)
    memory = advice.device_memory(args.memory, devices, away) if args.memory else None
    if memory is not None:
        say(advice.fit_into(config, data, devices, memory, precision))
    batch = _share_batch(config, devices)
    machine = precision + launcher.arguments(config.options.get("ddp-backend") == "fully_sharded")
    command = _build_command(config, data, args.run, batch, machine)
    parsed = fairseq_options.parse_training(command[1:])
    steps = _fallback_steps(config, parsed)
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


def _fallback_steps(config: configs.Config, parsed: argparse.Namespace) -> tuple[Step, ...] | None:
    if config.options.get("on-divergence") != "fallback":
        return None
    if getattr(parsed, "checkpoint_suffix", ""):
        raise ConfigurationError(
            "--on-divergence fallback contradicts --checkpoint-suffix; use --on-divergence stop"
        )
    text = config.options.get("fallbacks")
    return fallbacks.steps_of(None if text is None else str(text), vars(parsed))


def plan_run(args: argparse.Namespace) -> SupervisorPlan:
    """Plan a run and record it; with --dry-run only show it.

    Raises:
        ValueError, OSError: for what the user can mend; nothing has been written then.
    """
    training = settle(args)
    launcher, run = training.launcher, training.run
    if args.dry_run or launcher.submits:
        parsed = training.parsed
        for misfit in misfits(parsed.lr_scheduler, parsed, parsed.max_update):
            say(f"warning: {misfit}")  # a training that begins here says so itself
        say(training.summary())
        submission = launcher.submission(run, [args.config, *args.extra])
        if not args.dry_run:
            return SupervisorPlan(tuple(submission))
        if launcher.submits:
            print(f"# handed to the queue; the job runs the next line\n{shlex.join(submission)}")
        print("\n".join(launcher.lines(training.command)))
        return SupervisorPlan()
    facts = nodes.facts(training.command, training.data, launcher.devices.nodes)
    command = (*launcher.prefix(), *training.command)
    if launcher.node_rank > 0:
        say(f"waiting for node 0 in {shown(run)}")
        is_complete = functools.partial(run_folder.is_complete, run, training.config)
        joined = nodes.wait_to_join(run, facts, is_complete, args.node_timeout)
        if joined is None:
            say(f"{shown(run)} is complete: nothing to do")
            return SupervisorPlan()
        goes_on = tuple(fallbacks.from_last(command)) if nodes.CONTINUES in joined else command
        return SupervisorPlan(goes_on, training.steps, _state_of(training), first=command)
    nodes.withdraw(run)  # what a killed training left
    run_folder.refuse_changes(run, training.config, args.resume)
    state = _state_of(training)
    if any(run.glob("checkpoints/*.pt")):
        refuse_other_vocabulary(run, training.data)
        run_folder.refuse_other_text(run, training.data)
    if (run / "done").is_file():
        say(f"{shown(run)} is complete: nothing to do (RUN=FOLDER trains another)")
        return SupervisorPlan()
    start, updates, owes_validation = training.parsed.restore_file, 0, False
    first = command
    if run_folder.began_with(run, start):
        command, facts = tuple(fallbacks.from_last(command)), facts | {nodes.CONTINUES: start}
        start = LAST
    if start == LAST:
        is_kept_up = not training.parsed.no_last_checkpoints
        updates, owes_validation = run_folder.resume_point(run, is_kept_up)
    if 0 < training.parsed.max_update <= updates and not owes_validation:
        write_text(run / "done", f"{updates} updates\n")
        say(f"{shown(run)} is complete at update {updates:,}: nothing to do")
        return SupervisorPlan()
    text = training.summary()  # what it refuses leaves no folder
    facts_of_start = run_folder.environment(
        training.config, training.data, launcher.devices, training.batch
    )
    run_folder.record(run, training.config, command, facts_of_start)
    ended.clear(run)
    say(text)
    if updates:
        say(f"going on from update {updates:,}")
    announced = facts if launcher.devices.nodes > 1 else None
    return SupervisorPlan(command, training.steps, state, announced, first)


def _state_of(training: PlannedRun) -> FallbackState:
    """Return the fallbacks that a run goes on with.

    Where a kill has cut the last one off, node 0 finishes it: it alone moves files.
    """
    run, steps = training.run, training.steps
    if steps is not None:
        fallbacks.refuse_changes(
            run, steps, vars(training.parsed), derives_batch=training.batch is not None
        )
        if training.launcher.node_rank == 0:
            fallbacks.roll_back(run)
    state = fallbacks.read(run)
    if steps is not None and training.launcher.node_rank == 0:
        state = _take_owed_fallback(training, steps, state)
    if not state.step:
        return state
    if training.batch is not None:
        fallbacks.follow_devices(state, vars(training.parsed))
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


def _take_owed_fallback(
    training: PlannedRun, steps: tuple[Step, ...], state: FallbackState
) -> FallbackState:
    """Take the fallback of a divergence that its supervisor did not live to answer."""
    last = ended.read(training.run)
    if last.get("why") != ended.Why.DIVERGED or last.get("attempt") != state.step:
        return state
    plan = SupervisorPlan(tuple(training.command), steps, state)
    taken = fall_back(training.run, plan, state)
    if taken is None:
        fallbacks.refuse_changes(training.run, steps, vars(training.parsed))  # raises: none is left
        return state
    say(str(taken))
    return taken


def fall_back(run: Path, plan: SupervisorPlan, state: FallbackState) -> FallbackState | None:
    """Take the next fallback of a run that has diverged; None where none is left."""
    command = plan.attempt(state)
    options = command[command.index("fairseq-train") + 1 :]
    present = vars(fairseq_options.parse_training(options))
    record = ended.read(run)
    return fallbacks.take(run, plan.fallbacks or (), present, record)
