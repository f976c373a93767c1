"""A run folder: planned before training starts, and holding all that is needed to repeat the run.

`deepnet record` checks config, data and devices, writes config.yaml, command.txt and
environment.json, and prints the fairseq-train command (each word ended by NUL) for
scripts/train.sh. It prints nothing where the run is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet import configs, fairseq_options, launch
from fairseq_deepnet.checkpoints import load_checkpoint, mend_last, num_updates
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
    if not any(data.glob("dict.*.txt")) or not any(data.glob("train*.idx")):
        raise FileNotFoundError(f"no training data in {shown(data)}: {remedy}, or set DATA=FOLDER")
    manifest = data / "corpus.json"
    if not manifest.is_file():
        return {}
    content = json.loads(manifest.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


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
    arch = config.options.get("arch")
    extra = fairseq_options.read_options(args.extra, [f"--arch={arch}"] if arch else [])
    config.options |= extra
    config.sources |= dict.fromkeys(extra, "command line")
    for key, remedy in MANAGED.items():
        if key in config.options:
            source = config.sources[key]
            raise ValueError(f"{source}: {key}: scripts/train.sh sets this itself; {remedy}")
    if args.data is None and "data" not in config.recipe:
        raise ValueError(f"{args.config} names no recipe.data; set DATA=FOLDER")
    data = inside_project(args.data or str(config.recipe["data"]))
    check_data(data, config.recipe)
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
    corpus = check_data(data, config.recipe)
    for side in ("source", "target"):
        if side in corpus:
            options.setdefault(f"{side}-lang", corpus[side])
    options.setdefault("tensorboard-logdir", str(run.resolve() / "tensorboard"))
    command = ["fairseq-train", str(data.resolve()), "--user-dir", fairseq_options.user_dir()]
    command += configs.to_arguments(options)
    return [*command, *machine, "--save-dir", str(run.resolve() / "checkpoints")]


def run(args: argparse.Namespace) -> int:
    """Plan and record; print the command, or nothing where the run is complete."""
    import torch

    config, data = plan(args)
    devices = launch.choose_devices(
        args.gpus, args.cpu_processes, args.nodes, torch.cuda.device_count()
    )
    batch = _batch(config, devices)
    precision = launch.precision_arguments(args.precision, devices.gpus > 0)
    machine = precision + launch.device_arguments(devices, random.randint(20000, 60000))
    command = build_command(config, data, args.run, batch, machine)
    parsed = fairseq_options.parse_training(command[1:])
    _refuse_changes(args.run, config, args.resume)
    if (args.run / "done").is_file():
        say(f"{shown(args.run)} is complete: nothing to do (RUN=FOLDER trains another)")
        return 0
    updates = _updates(args.run)
    if updates is not None and parsed.max_update and updates >= parsed.max_update:
        write_text(args.run / "done", f"{updates} updates\n")
        say(f"{shown(args.run)} is complete at update {updates:,}: nothing to do")
        return 0
    parameters = fairseq_options.count_parameters(parsed)
    record(args.run, config, command, environment(config, data, devices, batch))

    lines = check_data(data, config.recipe).get("lines", {}).get("train")
    size = "" if parameters is None else f", {parameters:,} parameters"
    say(f"model    {parsed.arch}, {_depth(parsed)}{size} (config {config.name})")
    say(f"data     {shown(data)}" + (f", {lines:,} training pairs" if lines else ""))
    say(f"devices  {devices}, {precision[0][2:] if precision else 'fp32'}")
    say(f"batch    {batch or 'as the config says'}")
    say(
        f"run      {shown(args.run)}"
        + (f", {parsed.max_update:,} updates" * bool(parsed.max_update))
    )
    if updates:
        say(f"going on from update {updates:,}")
    sys.stdout.write("".join(f"{word}\0" for word in command))
    return 0


def _depth(parsed: argparse.Namespace) -> str:
    scheme = getattr(parsed, "residual_scheme", None)
    layers = f"{getattr(parsed, 'encoder_layers', '?')}L-{getattr(parsed, 'decoder_layers', '?')}L"
    return f"{layers}, {scheme}" if scheme else layers
