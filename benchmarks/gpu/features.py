"""Losses of short runs with one feature, against the same runs without it."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from side_by_side import tables
from side_by_side.race import WorkerError, start
from side_by_side.systems import Shape, System

from gpu.correctness import PADDING, distance, padded_batch

UPDATES = 10
PLAIN = ("--dropout=0", "--lr=1e-3")
LIMITS = {"fp32": 1e-4, "bf16": 2**-7, "fp16": 2**-9}
"""Largest relative difference of a loss: rounding in another order, within UPDATES updates."""
FEATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "chunked loss": ((), ("--criterion=label_smoothed_cross_entropy",)),
    "fused Adam": ((), ("--optimizer=adam",)),
    "checkpointed activations": (("--checkpoint-activations-every=2",), ()),
    "varlen_attn": (("--varlen-attention",), ()),
    "compiled": (("--compile",), ()),
    "sharded": (("--ddp-backend=fully_sharded",), ()),
    "sharded, compiled": (("--ddp-backend=fully_sharded", "--compile"), ()),
    "sharded, offloaded": (
        ("--ddp-backend=fully_sharded", "--cpu-offload", "--optimizer=adam"),
        ("--optimizer=adam",),
    ),
    "one flat fp16 copy": (("--optimizer=adam",), ("--optimizer=adam", "--fp16-no-flatten-grads")),
}
"""Name -> options of ours with the feature, and without it."""
HEAD = ["feature", "model", "precision", "difference", "limit", ""]


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per feature and precision."""
    layers, tokens = min(6, *options.layers), min(1024, options.tokens)
    shape = Shape(layers, options.width, options.vocabulary, tokens)
    lines, runs = [], {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for precision in ("fp32", *options.precisions):
            own = dataclasses.replace(shape, precision=precision)
            for name, pair in FEATURES.items():
                skipped = name == "one flat fp16 copy" and precision != "fp16"
                skipped |= name == "varlen_attn" and options.device == "cpu"
                skipped |= name == "varlen_attn" and precision == "fp32"
                if skipped or (not options.compile and "--compile" in pair[0]):
                    continue
                for words in pair:
                    if (precision, words) not in runs:
                        runs[precision, words] = pool.submit(train, own, words, options)
                lines.append({"feature": name, "model": shape.name, "precision": precision})
    for line in lines:
        ours, reference = (runs[line["precision"], words] for words in FEATURES[line["feature"]])
        try:
            losses = zip(ours.result(), reference.result(), strict=True)
            line["off"] = max(abs(a / b - 1) for a, b in losses)
        except WorkerError as error:
            line["error"] = str(error)
        line["right"] = line.get("off", math.inf) <= LIMITS[line["precision"]]
    return [*lines, decode(shape, options)]


def train(shape: Shape, words: tuple[str, ...], options: argparse.Namespace) -> list[float]:
    """Return the losses of UPDATES updates."""
    system = System("ours", "ours", (*PLAIN, *words))
    process = start(system, shape, options.threads, 0, options.device)
    try:
        return [process.ask("step")["loss"] for _ in range(UPDATES)]
    finally:
        process.end()


@torch.no_grad()
def decode(shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of incremental decoding: its logits against those of whole sentences."""
    from side_by_side.worker import build, load

    system = System("ours", "ours", PLAIN)
    load(system)
    torch.manual_seed(1)
    trainer = build(system, shape, options.device)
    model, sample = trainer.get_model().eval(), padded_batch(trainer)
    words = sample["net_input"]["prev_output_tokens"]
    real = words.ne(PADDING)
    whole = model(**sample["net_input"])[0][real]
    sample["net_input"].pop("prev_output_tokens")
    source = model.encoder(**sample["net_input"])
    state: dict[str, Any] = {}
    steps = [
        model.decoder(words[:, : step + 1], source, incremental_state=state)[0]
        for step in range(words.size(1))
    ]
    off = distance(torch.cat(steps, dim=1)[real], whole)
    line = {"feature": "incremental decoding", "model": shape.name, "precision": "fp32"}
    return {**line, "off": off, "right": off <= LIMITS["fp32"]}


def row(line: dict[str, Any], names: Sequence[str] = ("feature", "model", "precision")) -> str:
    """Return the row of the table."""
    cells = [line[name] for name in names]
    if "off" in line:
        cells += [f"{line['off']:.1e}", f"{LIMITS[line['precision']]:.1e}"]
    else:
        cells += [line.get("error", ""), ""]
    return tables.line([*cells, "ok" if line["right"] else "**off**"])
