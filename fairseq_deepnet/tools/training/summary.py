"""A plan of training in five lines, for people."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_deepnet.files import shown
from fairseq_deepnet.tools import configs, fairseq_options
from fairseq_deepnet.tools.training import launch, launchers
from fairseq_deepnet.tools.training.settings import check_data


def summarise(
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
    corpus = check_data(data, config.recipe) if there else {}
    lines = _training_lines(corpus)
    what = "lines" if "language" in corpus else "pairs"
    amount = f", {lines:,} training {what}" if lines else "" if there else ", not there yet"
    updates = f", {parsed.max_update:,} updates" if parsed.max_update else ""
    if not updates and parsed.max_epoch:
        updates = f", {parsed.max_epoch} epochs"
    started = "" if launcher.name == "fairseq" else f", {launcher}"
    return "\n".join(
        [
            f"model    {parsed.arch}, {_depth(parsed)}{size} (config {config.name})",
            f"data     {shown(data)}{amount}",
            f"devices  {launcher.devices}, {precision[0][2:] if precision else 'fp32'}{started}",
            f"batch    {batch or 'as the config says'}",
            f"run      {shown(run)}{updates}",
        ]
    )


def _training_lines(corpus: dict[str, Any]) -> int | None:
    """Lines or pairs to train on; of many pairs each counts once, though it serves two ways."""
    lines = corpus.get("lines", {}).get("train")
    return sum(lines.values()) if isinstance(lines, dict) else lines


def _depth(parsed: argparse.Namespace) -> str:
    scheme = getattr(parsed, "residual_scheme", None)
    depths = (getattr(parsed, f"{side}_layers", None) for side in ("encoder", "decoder"))
    layers = "-".join(f"{depth}L" for depth in depths if depth is not None) or "?L"
    return f"{layers}, {scheme}" if scheme else layers
