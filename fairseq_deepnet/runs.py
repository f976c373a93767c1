"""A run folder: planned before training starts, and holding all that is needed to repeat the run.

`deepnet record` checks config, data and devices, writes config.yaml, command.txt and
environment.json, and prints the fairseq-train command (each word ended by NUL) for
scripts/train.sh. It prints nothing where the run is complete.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet import configs, fairseq_options, launch

ROOT: Final = Path(__file__).resolve().parents[1]
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


def shown(path: Path) -> str:
    """A path as a person would write it: relative to the project where it lies inside."""
    resolved = path.resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else str(resolved)


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


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


def merge_extra(config: configs.Config, words: list[str]) -> None:
    """Merge fairseq-train options given on the command line into a config.

    Raises ValueError for options fairseq does not know and for words that belong to none.
    """
    if not words:
        return
    choosing = configs.to_arguments({k: v for k, v in config.options.items() if k == "arch"})
    chosen = [
        part
        for index, word in enumerate(words)
        if word.split("=")[0]
        in ("--arch", "--criterion", "--task", "--optimizer", "--lr-scheduler")
        for part in words[index : index + (1 if "=" in word else 2)]
    ]
    parser = fairseq_options.training_parser(["DATA", *choosing, *chosen])
    known = fairseq_options.option_actions(parser)
    position = 0
    while position < len(words):
        word = words[position]
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ValueError(
                f"{word!r} belongs to no option; options of fairseq-train are expected"
            )
        if name not in known:
            hint = fairseq_options.nearest(name, list(known))
            raise ValueError(f"{word}: fairseq-train has no such option{hint}")
        position += 1
        if known[name].nargs == 0:
            config.options[name] = True
        elif equals:
            config.options[name] = value
        elif position < len(words):
            config.options[name] = words[position]
            position += 1
        else:
            raise ValueError(f"{word}: a value is expected")
        config.sources[name] = "command line"


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


def updates_done(run: Path) -> int | None:
    """Updates in checkpoint_last.pt; None where there is none. ValueError if it is damaged."""
    from fairseq_deepnet.checkpoints import load_checkpoint, num_updates

    path = run / "checkpoints" / "checkpoint_last.pt"
    return num_updates(load_checkpoint(path)) if path.is_file() else None


def versions() -> dict[str, str | None]:
    """Versions of what a result depends on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in (
        "fairseq_deepnet",
        "fairseq-fixed",
        "torch",
        "numpy",
        "sentencepiece",
        "sacrebleu",
    ):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_revision() -> str | None:
    """The project's commit, with `+changes` where files differ from it; None outside git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty=+changes"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def sha256(path: Path) -> str | None:
    """Digest of a (small) file; None where it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


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


def _resolve(path: Path | str) -> Path:
    path = Path(path)
    return path if path.is_absolute() or path.exists() else ROOT / path


def _batch(config: configs.Config, devices: launch.Devices) -> launch.Batch | None:
    wanted = config.recipe.get("global-batch-tokens")
    limit = config.options.get("max-tokens")
    if wanted is None or limit is None or "update-freq" in config.options:
        return None
    return launch.split_batch(launch.parse_tokens(wanted), int(str(limit)), devices.total)


def _refuse_changes(run: Path, config: configs.Config, resume: bool) -> None:
    recorded = run / "config.yaml"
    if not recorded.is_file():
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


def run(args: argparse.Namespace) -> int:
    """Plan and record; print the command, or nothing where the run is complete."""
    import torch

    config = configs.load_config(args.config)
    merge_extra(config, args.extra)
    for key, remedy in MANAGED.items():
        if key in config.options:
            source = config.sources[key]
            raise ValueError(f"{source}: {key}: scripts/train.sh sets this itself; {remedy}")
    if args.data is None and "data" not in config.recipe:
        raise ValueError(f"{args.config} names no recipe.data; set DATA=FOLDER")
    data = _resolve(args.data or str(config.recipe["data"]))
    corpus = check_data(data, config.recipe)
    config.recipe["data"] = shown(data)
    configs.check_options(config)
    devices = launch.choose_devices(
        args.gpus, args.cpu_processes, args.nodes, torch.cuda.device_count()
    )
    batch = _batch(config, devices)
    precision = launch.precision_arguments(args.precision, devices.gpus > 0)

    _refuse_changes(args.run, config, args.resume)
    limit = _as_fairseq_reads(config).max_update
    if (args.run / "done").is_file():
        say(f"{shown(args.run)} is complete: nothing to do (RUN=FOLDER trains another)")
        return 0
    updates = updates_done(args.run)

    command = ["fairseq-train", str(data.resolve()), "--user-dir", fairseq_options.user_dir()]
    options = dict(config.options)
    if batch:
        options |= {"max-tokens": batch.max_tokens, "update-freq": batch.update_freq}
    command += configs.to_arguments(options)
    for side in ("source", "target"):
        if side in corpus and f"{side}-lang" not in config.options:
            command += [f"--{side}-lang", corpus[side]]
    command += precision + launch.device_arguments(devices, random.randint(20000, 60000))
    folder = args.run.resolve()
    command += ["--save-dir", str(folder / "checkpoints")]
    if "tensorboard-logdir" not in config.options:
        command += ["--tensorboard-logdir", str(folder / "tensorboard")]

    if updates is not None and limit and updates >= limit:
        write_text(args.run / "done", f"{updates} updates\n")
        say(f"{shown(args.run)} is complete at update {updates}: nothing to do")
        return 0
    record(args.run, config, command, environment(config, data, devices, batch))
    lines = corpus.get("lines", {}).get("train")
    say(f"config   {config.name}: {config.options.get('arch')}, {_depth(config)}")
    say(f"data     {shown(data)}" + (f" ({lines:,} training pairs)" if lines else ""))
    say(f"devices  {devices}, {precision[0][2:] if precision else 'fp32'}")
    say(f"batch    {batch}" if batch else "batch    as the config says")
    say(f"run      {shown(args.run)}" + ("" if limit is None else f", {limit:,} updates"))
    if updates:
        say(f"going on from update {updates:,}")
    sys.stdout.write("".join(f"{word}\0" for word in command))
    return 0


def _depth(config: configs.Config) -> str:
    encoder = config.options.get("encoder-layers", 6)
    decoder = config.options.get("decoder-layers", 6)
    scheme = config.options.get("residual-scheme")
    return f"{encoder}L-{decoder}L" + (f", {scheme}" if scheme else "")
