"""What a run is going to do: config, command line and data folder, checked against each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.files import inside_project, say, shown
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.corpora.folder import MONOLINGUAL_TASKS, MULTILINGUAL_TASK, DataFolder
from fairseq_deepnet.tools.training import launch

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
    """The config with the options of the command line, and the data folder, both checked."""
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


def share_batch(config: configs.Config, devices: launch.Devices) -> launch.Batch | None:
    """The recipe's global batch on these devices; None where the config says it another way."""
    wanted = config.recipe.get("global-batch-tokens")
    limit = config.options.get("max-tokens")
    if wanted is None or limit is None or "update-freq" in config.options:
        return None
    return launch.split_batch(launch.parse_tokens(wanted), int(str(limit)), devices.total)
