"""A run folder: the records that repeat a run, and the refusal to resume it with other settings."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet import ended
from fairseq_deepnet.checkpoints import (
    LAST,
    load_checkpoint,
    num_updates,
)
from fairseq_deepnet.files import inside_project, say, shown, write_text
from fairseq_deepnet.preemption import OWED
from fairseq_deepnet.records import git_revision, now, read_record, sha256, versions, write_record
from fairseq_deepnet.save_dir import REPAIRED, repair_last
from fairseq_deepnet.stock_names import HARMLESS, in_stock_names
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.devices import Devices
from fairseq_deepnet.tools.trained_model import ENVIRONMENT, VOCABULARY_FILES
from fairseq_deepnet.tools.training import launch

_MAY_DIFFER: Final = HARMLESS | {
    *("monitor_interval", "monitor", "on_divergence", "fallbacks"),
    "data",
}
"""What may differ when a run resumes (data folders are compared apart)."""


def differences(old: configs.Config, new: configs.Config) -> list[str]:
    """Return every option and recipe entry that differs in two flat configs, as text."""
    read = fairseq_options.parse_training
    before, after = (
        in_stock_names(vars(read(["DATA", *configs.to_arguments(config.options)])))
        for config in (old, new)
    )
    found = [
        f"{key.replace('_', '-')} {before.get(key)} -> {after.get(key)}"
        for key in sorted(before.keys() | after.keys())
        if key not in _MAY_DIFFER and before.get(key) != after.get(key)
    ]
    recipes = [dict(config.recipe) for config in (old, new)]
    for recipe in recipes:
        if recipe.get("data") is not None:  # a folder may have become a symbolic link
            recipe["data"] = shown(inside_project(str(recipe["data"])))
    for key in ("data", "global-batch-tokens"):
        one, other = (recipe.get(key) for recipe in recipes)
        if one != other:
            found.append(f"recipe.{key} {one} -> {other}")
    return found


def environment(
    config: configs.Config, data: Path, devices: Devices, batch: launch.Batch | None
) -> dict[str, Any]:
    """Return what a person needs, besides config and command, to repeat a run."""
    import torch

    return {
        "started": now(),
        "versions": versions(),
        "git": git_revision(),
        "seed": config.options.get("seed", 1),
        "data": {
            "folder": shown(data),
            "corpus_sha256": sha256(data / "corpus.json"),
            "text_sha256": text_digest(data),
            **{
                key: {path.name: sha256(path) for name in names for path in data.glob(name)}
                for key, names in VOCABULARY_FILES.items()
            },
        },
        "devices": str(devices),
        "gpus": [torch.cuda.get_device_name(i) for i in range(devices.gpus)],
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "batch": str(batch) if batch else None,
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def record(
    run: Path, config: configs.Config, command: Sequence[str], facts: dict[str, Any]
) -> None:
    """Write config.yaml, command.txt (one line a start) and environment.json (the latest start)."""
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    write_text(run / "config.yaml", config.to_yaml())
    history = run / "command.txt"
    earlier = history.read_text(encoding="utf-8") if history.is_file() else ""
    write_text(history, f"{earlier}# {facts['started']}\n{shlex.join(command)}\n")
    write_record(run / ENVIRONMENT, facts)


def refuse_changes(
    run: Path, config: configs.Config, data: Path, resume: bool, is_first: bool = True
) -> None:
    """Raise ValueError where a run that has been trained has other settings or data than these.

    With `resume` other settings are only reported. A complete run whose checkpoints were removed
    may be trained again with other settings.
    """
    is_trained, was_complete = any(run.glob("checkpoints/*.pt")), ended.is_complete(run)
    if not (run / "config.yaml").is_file() or not (is_trained or was_complete):
        return
    before = configs.recorded_config(run)
    changed = differences(before, config)
    if changed and is_trained:
        start = config.options.get("restore-file", LAST)
        if start not in (LAST, before.options.get("restore-file")):
            raise ValueError(
                f"--restore-file {start}: {shown(run)} has checkpoints of its own; set RUN=FOLDER"
                " to start another run from that file"
            )
        if not resume:
            raise ValueError(
                f"{shown(run)} was trained with other settings ({'; '.join(changed)}): set"
                " RUN=FOLDER to train beside it, or RESUME=1 to resume with the new settings"
            )
        say(f"resuming with new settings: {'; '.join(changed)}")
    if is_trained:
        _refuse_other_text(run, data)
    if changed and was_complete and is_first:
        ended.clear(run)


def text_digest(data: Path) -> str | None:
    """Return a digest of the binarised text that a data folder trains and validates on.

    It is that of the digests in corpus.json, so that a copy of the folder has the same one. None
    for a folder without them.
    """
    manifest = data / "corpus.json"
    digests = read_record(manifest).get("files") if manifest.is_file() else None
    if not isinstance(digests, dict):
        return None
    names = [n for n in sorted(digests) if Path(n).name.startswith(("train", "valid"))]
    text = json.dumps([[name, digests[name]] for name in names])
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_other_text(run: Path, data: Path) -> None:
    file = run / ENVIRONMENT
    recorded = read_record(file).get("data") if file.is_file() else None
    before = recorded.get("text_sha256") if isinstance(recorded, dict) else None
    if before is not None and before != text_digest(data):
        raise ValueError(
            f"the training or validation text in {shown(data)} has changed since {shown(run)} was"
            " trained on it: make that folder again as it was, or set RUN=FOLDER to train another"
            " run on the new text"
        )


def resume_point(run: Path, is_kept_up: bool = True) -> tuple[int, bool]:
    """Return the updates in the checkpoint to resume from, repaired where it is damaged, and True
    if a signal ended the run before fairseq had validated at the last of them.

    `is_kept_up`: fairseq saves checkpoint_last.pt with each checkpoint.
    """
    folder = run / "checkpoints"
    source = repair_last(folder, is_kept_up=is_kept_up)
    if source is not None:
        say(f"checkpoint_last.pt {REPAIRED} {source.name}")
    last = folder / LAST
    state = load_checkpoint(last) if last.is_file() else {}
    return num_updates(state), OWED in state.get("extra_state", {})
