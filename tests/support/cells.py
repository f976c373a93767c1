"""Folders of finished cells, written without any training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def write_log(
    run: Path, losses: Mapping[int, float], train: Mapping[int, float] | None = None
) -> None:
    """Write a train.log with losses by update; the validation nll is 1.5 below the loss."""
    run.mkdir(parents=True, exist_ok=True)
    start = "2026-01-02 03:04:05 | INFO |"
    lines = [f"{start} x | num. shared model params: 1,234,567 (num. trained: 1)"]
    for update, loss in (train or {}).items():
        values = {"epoch": 1, "loss": f"{loss + 1}", "nll_loss": f"{loss}", "ups": "4"}
        lines.append(f"{start} train_inner | {json.dumps(values | {'num_updates': str(update)})}")
    for update, loss in losses.items():
        values = {"valid_loss": f"{loss}", "valid_nll_loss": str(round(loss - 1.5, 6))}
        values |= {"epoch": 1, "valid_num_updates": str(update)}
        lines.append(f"{start} valid | {json.dumps(values)}")
    (run / "train.log").write_text("\n".join([*lines, ""]), encoding="utf-8")


def write_score(run: Path, bleu: float, **more: Any) -> str:
    """Write a test score; return its path in the run."""
    name = "scores/test.checkpoint_best.beam5.lenpen1.json"
    (run / "scores").mkdir(parents=True, exist_ok=True)
    content = {"bleu": bleu, "bleu_signature": SIGNATURE, "chrf": 50.0, "chrf_signature": "chrf"}
    content |= {"lines": 1000, "split": "test", "beam": 5, "lenpen": 1.0, "updates": 100000}
    (run / name).write_text(json.dumps(content | more), encoding="utf-8")
    return name


def write_config(run: Path, data: Path | str = "data/none", **options: Any) -> None:
    """Write a run's config; the options' names have underscores."""
    run.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {key.replace("_", "-"): value for key, value in options.items()}
    content["recipe"] = {"data": str(data)}
    (run / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def write_cell(
    folder: Path,
    name: str,
    sweep: str,
    values: Mapping[str, str],
    status: str = "done",
    *,
    panel: str = "main",
    places: list[dict[str, Any]] | None = None,
    bleu: float | None = None,
    score: str | None = None,
    losses: Mapping[int, float] | None = None,
    train: Mapping[int, float] | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 1,
    reason: str = "",
) -> Path:
    """Write a cell's folder with records, config, log and score."""
    run = folder / name
    write_config(run, seed=seed, **(options or {}))
    write_log(run, losses or {100000: 4.0}, train=train)
    place = {"panel": panel, "values": dict(values), "seed": seed}
    cell = {"sweep": sweep, "title": "A comparison", "places": places or [place]}
    (run / "cell.json").write_text(json.dumps(cell), encoding="utf-8")
    result = {"status": status, "reason": reason, "score": score}
    if bleu is not None:
        result["score"] = write_score(run, bleu)
    if status != "unfinished":
        (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return run
