"""A run folder: what it holds to be repeated, and whether it may go on as asked."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.checkpoints import (
    LAST,
    load_checkpoint,
    num_updates,
    periodic_checkpoints,
    recorded_options,
)
from fairseq_deepnet.files import inside_project, say, shown, write_text
from fairseq_deepnet.preemption import OWED
from fairseq_deepnet.provenance import git_revision, now, sha256, versions
from fairseq_deepnet.records import read_record, write_record
from fairseq_deepnet.save_dir import mend_last, why_mended
from fairseq_deepnet.stock_names import HARMLESS, in_stock_names
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.devices import Devices
from fairseq_deepnet.tools.trained_model import ENVIRONMENT, VOCABULARY_FILES
from fairseq_deepnet.tools.training import launch

_MAY_DIFFER: Final = HARMLESS | {
    *("monitor_interval", "monitor", "on_divergence", "fallbacks", "good_interval"),
    "data",
}
"""What may differ when a run goes on (data folders are compared apart)."""


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


def refuse_other_text(run: Path, data: Path) -> None:
    """Raise ValueError where the text of a data folder is not that which the run was trained on."""
    file = run / ENVIRONMENT
    recorded = read_record(file).get("data") if file.is_file() else None
    before = recorded.get("text_sha256") if isinstance(recorded, dict) else None
    if before is not None and before != text_digest(data):
        raise ValueError(
            f"the training or validation text in {shown(data)} has changed since {shown(run)} was"
            " trained on it: make that folder again as it was, or set RUN=FOLDER to train another"
            " run on the new text"
        )


def refuse_changes(run: Path, config: configs.Config, resume: bool) -> None:
    """Raise ValueError where a run that has been trained has other settings than these; with
    `resume` it is only said.

    A run whose checkpoints were removed may be trained again with any settings.
    """
    if is_complete(run) and not any(run.glob("checkpoints/*.pt")):
        if differences(configs.recorded_config(run), config):
            (run / "done").unlink()
        return
    if not (run / "config.yaml").is_file() or not any(run.glob("checkpoints/*.pt")):
        return
    changed = differences(configs.recorded_config(run), config)
    if not changed:
        return
    if not resume:
        raise ValueError(
            f"{shown(run)} was trained with other settings ({'; '.join(changed)}): set RUN=FOLDER "
            "to train beside it, or RESUME=1 to go on with the new settings"
        )
    say(f"going on with new settings: {'; '.join(changed)}")
    (run / "done").unlink(missing_ok=True)


def began_with(run: Path, checkpoint: str) -> bool:
    """Return True if what a run has trained began with a checkpoint from elsewhere."""
    if checkpoint == LAST:
        return False
    folder = run / "checkpoints"
    for made in (folder / LAST, *periodic_checkpoints(folder)):
        try:
            begun = recorded_options(made, "checkpoint")
        except (FileNotFoundError, ValueError):
            continue  # missing or damaged: going on mends it
        return checkpoint in (begun.get("restore_file"), begun.get("continue_once"))
    return False


def is_complete(run: Path, config: configs.Config | None = None) -> bool:
    """Return True if a run, of this config if one is given, has been trained to its end."""
    if not all((run / name).is_file() for name in ("done", "config.yaml")):
        return False
    return config is None or not differences(configs.recorded_config(run), config)


def resume_point(run: Path, is_kept_up: bool = True) -> tuple[int, bool]:
    """Return the updates in the checkpoint to resume from, mended where it is damaged, and whether
    a signal ended the run before fairseq had validated at the last of them.

    `is_kept_up`: fairseq saves checkpoint_last.pt with each checkpoint.
    """
    folder = run / "checkpoints"
    mended = mend_last(folder, is_kept_up=is_kept_up)
    if mended is not None:
        say(f"checkpoint_last.pt {why_mended(mended, is_kept_up)}")
    last = folder / LAST
    state = load_checkpoint(last, split=True) if last.is_file() else {}
    return num_updates(state), OWED in state.get("extra_state", {})
