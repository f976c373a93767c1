"""Records in a run folder, which prevent a run from resuming with other settings or data."""

import os
import platform
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from fairseq_deepnet import ended
from fairseq_deepnet.checkpoints import LAST, load_checkpoint, num_updates
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.preemption import OWED
from fairseq_deepnet.records import (
    ENVIRONMENT,
    git_revision,
    now,
    read_record,
    sha256,
    versions,
    write_json,
)
from fairseq_deepnet.save_dir import REPAIRED, repair_last
from fairseq_deepnet.stock_names import MAY_DIFFER, in_stock_names
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.devices import Devices
from fairseq_deepnet.tools.trained_model import VOCABULARY_FILES
from fairseq_deepnet.tools.training import launch

_FIXED: Final = re.compile(
    r"(arch|task|residual-scheme|scheme-variant|share-\S+|\S+-(layers|embed-dim|attention-heads)) "
)
"""Changes that a checkpoint cannot follow."""


def differences(old: configs.Config, new: configs.Config) -> list[str]:
    """Describe all options and recipe entries that differ between two configs."""
    before, after = (
        in_stock_names(
            vars(fairseq_options.parse_training(["DATA", *configs.to_arguments(config.options)]))
        )
        | {f"recipe.{key}": config.recipe.get(key) for key in ("data", "global-batch-tokens")}
        for config in (old, new)
    )
    return [
        f"{key.replace('_', '-')} {before.get(key)} -> {after.get(key)}"
        for key in sorted(before.keys() | after.keys())
        if key not in MAY_DIFFER | {"data"} and before.get(key) != after.get(key)
    ]


def record(
    run: Path,
    config: configs.Config,
    data: Path,
    devices: Devices,
    batch: launch.Batch | None,
    command: Sequence[str],
) -> None:
    """Write config.yaml and environment.json, and append this start to command.txt."""
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    write_text(run / "config.yaml", config.to_yaml())
    history, started = run / "command.txt", now()
    earlier = history.read_text(encoding="utf-8") if history.is_file() else ""
    write_text(history, f"{earlier}# {started}\n{shlex.join(command)}\n")
    vocabulary = {
        key: {path.name: sha256(path) for name in names for path in data.glob(name)}
        for key, names in VOCABULARY_FILES.items()
    }
    facts = {
        "started": started,
        "versions": versions(),
        "git": git_revision(),
        "seed": config.options.get("seed", 1),
        "data": {
            "folder": shown(data),
            "corpus_sha256": sha256(data / "corpus.json"),
            "text_sha256": text_digests(data),
            **vocabulary,
        },
        "devices": str(devices),
        "gpus": [torch.cuda.get_device_name(i) for i in range(devices.gpus)],
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "batch": str(batch) if batch else None,
        "tokens": batch.target if batch else None,
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
    write_json(run / ENVIRONMENT, facts)


def refuse_changes(
    run: Path, config: configs.Config, data: Path, batch: launch.Batch | None, resume: bool
) -> list[str]:
    """Return the differences from the recorded config and number of tokens per update.

    Raises:
        ValueError: if the run has checkpoints and was trained with other data, or with other
            settings and `resume` is False.
    """
    is_trained, tokens = any(run.glob("checkpoints/*.pt")), None
    if not (run / "config.yaml").is_file():
        return []
    if is_trained and (run / ENVIRONMENT).is_file():
        facts = read_record(run / ENVIRONMENT, {"data": dict})
        text, tokens = facts["data"].get("text_sha256"), facts.get("tokens")
        if text and text != text_digests(data):
            raise ValueError(
                f"{shown(run)} was trained on other training or validation text than"
                f" {shown(data)} now contains: set RUN=FOLDER to train another run, or restore that"
                " text"
            )
    before = configs.recorded_config(run)
    changes = differences(before, config)
    if tokens and batch and tokens != batch.target and not ended.is_complete(run):
        changes.append(f"tokens per update {tokens:,} -> {batch.target:,}")
    if changes and is_trained:
        start = config.options.get("restore-file", LAST)
        if start not in (LAST, before.options.get("restore-file")):
            raise ValueError(
                f"--restore-file {start}: {shown(run)} already has checkpoints; set RUN=FOLDER to"
                " start another run from that file"
            )
        fixed = [change for change in changes if _FIXED.match(change)]
        if fixed:
            text = "; ".join(fixed)
            raise ValueError(f"{shown(run)} contains a different model ({text}): set RUN=FOLDER")
        if not resume:
            raise ValueError(
                f"{shown(run)} was trained with other settings ({'; '.join(changes)}): set"
                " RUN=FOLDER to start another run, or RESUME=1 to resume with the new settings"
            )
        say(f"resuming with new settings: {'; '.join(changes)}")
    return changes


def text_digests(data: Path) -> dict[str, str]:
    """Return the digests of the training and validation text, listed in the data's corpus.json."""
    manifest = data / "corpus.json"
    files = read_record(manifest).get("files", {}) if manifest.is_file() else {}
    return {name: files[name] for name in files if Path(name).name.startswith(("train", "valid"))}


def resume_point(run: Path, is_kept_up: bool = True) -> tuple[int, bool]:
    """Repair checkpoint_last.pt; return its update number, and True if a validation is still due.

    Args:
        is_kept_up: False with --no-last-checkpoints.
    """
    folder = run / "checkpoints"
    source = repair_last(folder, is_kept_up=is_kept_up)
    if source is not None:
        say(f"checkpoint_last.pt {REPAIRED} {source.name}")
    last = folder / LAST
    state = load_checkpoint(last) if last.is_file() else {}
    return num_updates(state), OWED in state.get("extra_state", {})
