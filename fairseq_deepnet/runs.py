"""A run folder: planned before training starts, and holding all that is needed to repeat the run.

`deepnet record` checks config, data and devices, writes config.yaml, command.txt and
environment.json, and prints the fairseq-train command (each word ended by NUL) for
scripts/train.sh. It prints nothing where the run is complete.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet import configs, fairseq_options, launch, launchers, nodes
from fairseq_deepnet.checkpoints import load_checkpoint, mend_last, num_updates
from fairseq_deepnet.corpora.folder import MULTILINGUAL_TASK, DataFolder
from fairseq_deepnet.provenance import (
    git_revision,
    inside_project,
    sha256,
    shown,
    versions,
    write_text,
)

MANAGED: Final = {
    "save-dir": "set RUN=FOLDER",
    "user-dir": "it is always this plugin",
    "cpu": "set GPUS=0",
    "distributed-world-size": "set GPUS=N or CPU_PROCESSES=N",
    "bf16": "set PRECISION=bf16",
    "fp16": "set PRECISION=fp16",
}
"""Options that scripts/train.sh sets itself, and what to use instead."""

_HARMLESS: Final = {"log_interval", "log_format", "num_workers", "data", "no_progress_bar"}
"""What may differ when a run goes on: it changes no number (data folders are compared apart)."""


def say(text: str) -> None:
    """One line of the plan on standard error."""
    print(text, file=sys.stderr, flush=True)


def check_data(data: Path, recipe: dict[str, configs.Value]) -> dict[str, Any]:
    """What corpus.json says of a data folder; empty for one that fairseq-preprocess alone made.

    Raises FileNotFoundError that names the script which makes the folder.
    """
    script = recipe.get("preprocess")
    remedy = f"make it with `bash {script}`" if script else "make it with scripts/preprocess.sh"
    if not any(data.glob("dict*.txt")) or not any(data.glob("train*.idx")):
        raise FileNotFoundError(f"no training data in {shown(data)}: {remedy}, or set DATA=FOLDER")
    manifest = data / "corpus.json"
    if not manifest.is_file():
        return {}
    content = json.loads(manifest.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def check_task(corpus: dict[str, Any], config: configs.Config, data: Path) -> None:
    """Raise ValueError where a config for many pairs meets a folder of one, or the reverse."""
    many = "directions" in corpus
    if many == (config.options.get("task") == MULTILINGUAL_TASK) or not corpus:
        return
    holds = "many language pairs" if many else "one language pair"
    wants = "one language pair" if many else "many language pairs"
    raise ValueError(
        f"{shown(data)} holds {holds}, and config {config.name} trains on {wants}"
        f" (task {config.options.get('task')}); set DATA=FOLDER, or choose another config"
    )


def differences(old: configs.Config, new: configs.Config) -> list[str]:
    """Every option and recipe entry that is not the same in two flat configs, as readable text."""
    before = vars(_as_fairseq_reads(old))
    after = vars(_as_fairseq_reads(new))
    found = [
        f"{key.replace('_', '-')} {before.get(key)} -> {after.get(key)}"
        for key in sorted(before.keys() | after.keys())
        if key not in _HARMLESS and before.get(key) != after.get(key)
    ]
    for key in ("data", "global-batch-tokens"):
        if old.recipe.get(key) != new.recipe.get(key):
            found.append(f"recipe.{key} {old.recipe.get(key)} -> {new.recipe.get(key)}")
    return found


def _as_fairseq_reads(config: configs.Config) -> argparse.Namespace:
    return fairseq_options.parse_training(["DATA", *configs.to_arguments(config.options)])


def environment(
    config: configs.Config, data: Path, devices: launch.Devices, batch: launch.Batch | None
) -> dict[str, Any]:
    """What a person needs, besides config and command, to repeat a run."""
    import torch

    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_revision(),
        "seed": config.options.get("seed", 1),
        "data": {
            "folder": shown(data),
            "corpus_sha256": sha256(data / "corpus.json"),
            "subwords_sha256": {
                path.name: sha256(path) for path in sorted(data.glob("spm*.model"))
            },
        },
        "devices": str(devices),
        "gpus": [torch.cuda.get_device_name(i) for i in range(devices.gpus)],
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "batch": str(batch) if batch else None,
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def record(run: Path, config: configs.Config, command: list[str], facts: dict[str, Any]) -> None:
    """Write config.yaml, command.txt (one line a start) and environment.json (the latest start)."""
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    write_text(run / "config.yaml", config.to_yaml())
    history = run / "command.txt"
    earlier = history.read_text(encoding="utf-8") if history.is_file() else ""
    write_text(history, f"{earlier}# {facts['started']}\n{shlex.join(command)}\n")
    write_text(run / "environment.json", json.dumps(facts, indent=2) + "\n")


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
    parser.add_argument("--precision", default="auto", help=", ".join(launch.PRECISIONS))
    parser.add_argument(
        "--resume", action="store_true", help="go on even if the config is not as recorded"
    )
    parser.add_argument("extra", nargs="*", help="options of fairseq-train, after --")


def _batch(config: configs.Config, devices: launch.Devices) -> launch.Batch | None:
    wanted = config.recipe.get("global-batch-tokens")
    limit = config.options.get("max-tokens")
    if wanted is None or limit is None or "update-freq" in config.options:
        return None
    return launch.split_batch(launch.parse_tokens(wanted), int(str(limit)), devices.total)


def _refuse_changes(run: Path, config: configs.Config, resume: bool) -> None:
    """Raise ValueError where a run that has been trained has other settings than these."""
    recorded = run / "config.yaml"
    if not recorded.is_file() or not any(run.glob("checkpoints/*.pt")):
        return
    changed = differences(configs.load_config(str(recorded)), config)
    if not changed:
        return
    if not resume:
        raise ValueError(
            f"{shown(run)} was trained with other settings ({'; '.join(changed)}): set RUN=FOLDER "
            "to train beside it, or RESUME=1 to go on with the new settings"
        )
    say(f"going on with new settings: {'; '.join(changed)}")
    (run / "done").unlink(missing_ok=True)


def _updates(run: Path) -> int | None:
    """Updates in the checkpoint that the run goes on from, mended where it is damaged."""
    folder = run / "checkpoints"
    mended = mend_last(folder)
    if mended is not None:
        say(f"checkpoint_last.pt is damaged: going on from {mended.name}")
    last = folder / "checkpoint_last.pt"
    return num_updates(load_checkpoint(last)) if last.is_file() else None


def plan(args: argparse.Namespace) -> tuple[configs.Config, Path]:
    """The config with the options of the command line, and the data folder, both checked."""
    config = configs.load_config(args.config)
    extra = fairseq_options.read_options(args.extra, config.choosing())
    config.options |= extra
    config.sources |= dict.fromkeys(extra, "command line")
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
        say(f"{error}; its languages will join the command")
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
    """The fairseq-train command of a run; `machine` holds the options for devices and precision."""
    options = dict(config.options)
    if batch:
        options |= {"max-tokens": batch.max_tokens, "update-freq": batch.update_freq}
    if (data / "corpus.json").is_file():
        told: dict[str, configs.Value] = dict(DataFolder.open(data).task_options())
        options = told | options
    options.setdefault("tensorboard-logdir", str(run.resolve() / "tensorboard"))
    command = ["fairseq-train", str(data.resolve()), "--user-dir", fairseq_options.user_dir()]
    command += configs.to_arguments(options)
    return [*command, *machine, "--save-dir", str(run.resolve() / "checkpoints")]


def run(args: argparse.Namespace) -> int:
    """Plan and record; print the command, or nothing where the run is complete."""
    import torch

    config, data = plan(args)
    visible = torch.cuda.device_count()
    queued = args.launcher == "slurm" and "SLURM_JOB_ID" not in os.environ
    elsewhere = (args.dry_run or queued) and args.gpus != "all"
    devices = launch.choose_devices(
        args.gpus, args.cpu_processes, args.nodes, visible, elsewhere=elsewhere
    )
    launcher = launchers.choose_launcher(
        args.launcher, devices, os.environ, args.node_rank, planned=args.dry_run
    )
    batch = _batch(config, devices)
    precision = launch.precision_arguments(
        args.precision, devices.gpus > 0, elsewhere and devices.gpus > visible
    )
    machine = precision + launcher.arguments()
    command = build_command(config, data, args.run, batch, machine)
    parsed = fairseq_options.parse_training(command[1:])
    summary = functools.partial(
        _summary, config, data, args.run, parsed, launcher, batch, precision
    )
    if args.dry_run or launcher.submits:
        return _show(args, launcher, command, summary())
    shared = nodes.facts(command, data, devices.nodes)
    if launcher.node_rank > 0:
        return _join(args, config, shared, [*launcher.prefix(), *command])
    nodes.withdraw(args.run)
    _refuse_changes(args.run, config, args.resume)
    if (args.run / "done").is_file():
        say(f"{shown(args.run)} is complete: nothing to do (RUN=FOLDER trains another)")
        return 0
    updates = _updates(args.run)
    if updates is not None and parsed.max_update and updates >= parsed.max_update:
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


def _summary(
    config: configs.Config,
    data: Path,
    run: Path,
    parsed: argparse.Namespace,
    launcher: launchers.Launcher,
    batch: launch.Batch | None,
    precision: list[str],
) -> str:
    """What is going to be trained, on what, where: five lines."""
    there = any(data.glob("train*.idx"))
    parameters = fairseq_options.count_parameters(parsed) if there else None
    size = "" if parameters is None else f", {parameters:,} parameters"
    lines = _training_pairs(check_data(data, config.recipe)) if there else None
    pairs = f", {lines:,} training pairs" if lines else "" if there else ", not there yet"
    updates = f", {parsed.max_update:,} updates" if parsed.max_update else ""
    started = "" if launcher.name == "fairseq" else f", {launcher}"
    return "\n".join(
        [
            f"model    {parsed.arch}, {_depth(parsed)}{size} (config {config.name})",
            f"data     {shown(data)}{pairs}",
            f"devices  {launcher.devices}, {precision[0][2:] if precision else 'fp32'}{started}",
            f"batch    {batch or 'as the config says'}",
            f"run      {shown(run)}{updates}",
        ]
    )


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


def _training_pairs(corpus: dict[str, Any]) -> int | None:
    """Sentence pairs to train on; of many pairs each counts once, though it serves two ways."""
    lines = corpus.get("lines", {}).get("train")
    return sum(lines.values()) if isinstance(lines, dict) else lines


def _depth(parsed: argparse.Namespace) -> str:
    scheme = getattr(parsed, "residual_scheme", None)
    layers = f"{getattr(parsed, 'encoder_layers', '?')}L-{getattr(parsed, 'decoder_layers', '?')}L"
    return f"{layers}, {scheme}" if scheme else layers
