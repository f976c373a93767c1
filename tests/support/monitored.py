"""Run folders as monitored trainings leave them: plausible curves, made up by formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import QUANTITIES, Level

HEAD = "2024-05-01 12:00:00 | INFO | "
PARTS = {
    "encoder": ("self_attn", "ffn"),
    "decoder": ("self_attn", "encoder_attn", "ffn"),
}
SIDES = ("encoder", "decoder")


def make_run(
    folder: Path,
    updates: Sequence[int] = range(10, 210, 10),
    layers: dict[str, int] | None = None,
    growth: float = 1.0,
    broken_from: int | None = None,
    change: Callable[[records.Record], None] | None = None,
) -> Path:
    """Write train.log and monitor.jsonl.

    Arguments:
        layers: of each side; 6 of both unless given
        growth: of gradients from layer to layer: above 1 those at the top are larger
        broken_from: update from which gradients are nan
        change: what is to be done to each record before it is written
    """
    folder.mkdir(parents=True, exist_ok=True)
    layers = dict.fromkeys(SIDES, 6) if layers is None else layers
    _write_log(folder / "train.log", updates)
    for update in updates:
        broken = broken_from is not None and update >= broken_from
        record = _record(update, layers, growth, broken)
        if change is not None:
            change(record)
        records.append(folder / records.NAME, record)
    return folder


def add_events(folder: Path, *events: dict[str, Any]) -> None:
    """Write what the divergence watch has noticed."""
    for event in events:
        records.append(folder / "divergence.jsonl", event)


def _loss(update: int) -> float:
    return 2.0 + 8.0 * math.exp(-update / 300)


def _write_log(log: Path, updates: Sequence[int]) -> None:
    lines = [f"{HEAD}fairseq_cli.train | {{'_name': None}}\n"]
    for update in updates:
        numbers = {"loss": _loss(update), "nll_loss": _loss(update) - 1, "lr": update * 1e-6}
        told = {key: f"{value:.6g}" for key, value in numbers.items()}
        told |= {"gnorm": "1.5", "num_updates": str(update)}
        lines.append(f"{HEAD}train_inner | {json.dumps(told)}\n")
        if update % 50 == 0:
            told = {"loss": f"{_loss(update) + 0.2:.4g}", "nll_loss": f"{_loss(update):.4g}"}
            told["num_updates"] = str(update)
            valid = {f"valid_{key}": value for key, value in told.items()}
            lines.append(f"{HEAD}valid | {json.dumps(valid)}\n")
    log.write_text("".join(lines), encoding="utf-8")


def _record(update: int, layers: dict[str, int], growth: float, broken: bool) -> records.Record:
    scale = math.nan if broken else 1.0
    time = 1 + update / 100

    def parts(name: str, side: str) -> list[str]:
        if name == "parameter_update_ratio":
            return ["layer"]
        inner = [part for part in PARTS[side] if part != "ffn" or name != "attention_entropy"]
        return ["layer", *inner] if name == "gradient_norm" else inner

    def by_layer(name: str, side: str) -> dict[str, list[float]]:
        count, slope = layers[side], growth if "gradient_norm" in name else 1.0
        size = scale * time**0.3
        return {
            part: [size * (1 + n / 5) * slope ** (layer - count) for layer in range(count)]
            for n, part in enumerate(parts(name, side))
        }

    values: dict[str, Any] = {}
    for name, row in QUANTITIES.items():
        values[name] = {
            Level.MODEL: scale * time if name.startswith("model") else scale / time,
            Level.STACK: dict.fromkeys(layers, scale / time),
            Level.PART: {side: by_layer(name, side) for side in layers},
        }[row.level]
    loss = math.nan if broken else _loss(update)
    return {
        "update": update,
        "loss": loss,
        "nll_loss": loss - 1,
        "lr": update * 1e-6,
        "gnorm": scale * 1.5,
        "values": values,
    }
