"""Errors of half precision against fp32, beside those of stock fairseq."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gc
import statistics
from typing import Any

import torch
from side_by_side import tables
from side_by_side.systems import Shape, System

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FP32_DISTANCE = 1e-4  # sums are made in another order
ALLOWED = 1.5
DRAWS = 4
"""Number of seeds to average. DeepNorm's gradient error is 1.30 times Post-LN's, with a standard
deviation of 0.14 between draws (bf16, 64 wide, 24 draws): one draw in ten exceeds ALLOWED."""
PADDING = 1
LOSS_SCALE = 128.0  # fairseq's first for --fp16
STREAM_LAYERS = (6, 18, 100)
STREAM_LIMIT = 0.01
"""Largest gradient error with --residual-dtype float32, from 18 layers on."""
HEAD = ["model", "precision", "of", "against", "loss", "logits", "gradients", "worst", ""]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Results for one batch: loss per token, logits without padding, and gradients."""

    loss: float
    logits: torch.Tensor
    gradients: dict[str, torch.Tensor]


def numbers(model: Any, criterion: Any, sample: dict[str, Any], dtype: torch.dtype) -> Numbers:
    """Return the results of a copy of the model in `dtype`, on the host in fp32."""
    model = copy.deepcopy(model).to(dtype).train()
    scale = LOSS_SCALE if dtype is torch.float16 else 1.0
    loss, size, _ = criterion(model, sample)
    (loss * scale).backward()
    with torch.no_grad():
        words = sample["target"].ne(PADDING)
        logits = model(**sample["net_input"])[0][words].float().cpu()
    gradients = {
        name: p.grad.float().cpu() / scale / float(size) for name, p in model.named_parameters()
    }
    return Numbers(float(loss.detach()) / float(size), logits, gradients)


def distance(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Return |result - reference| / |reference|."""
    return float((result - reference).norm() / reference.norm().clamp_min(1e-30))


def distances(result: Numbers, reference: Numbers) -> dict[str, float]:
    """Return errors of the loss, the logits, all gradients as one vector, and the worst parameter.

    The biases of keys are excluded: they add the same to all keys of a query, so their gradient is
    zero except for rounding.
    """
    names = [name for name in reference.gradients if not name.endswith("k_proj.bias")]
    whole = [
        torch.cat([n.gradients[name].flatten() for name in names]) for n in (result, reference)
    ]
    return {
        "loss": abs(result.loss / reference.loss - 1),
        "logits": distance(result.logits, reference.logits),
        "gradients": distance(*whole),
        "worst": max(distance(result.gradients[n], reference.gradients[n]) for n in names),
    }


def padded_batch(trainer: Any) -> dict[str, Any]:
    """Return the batch whose sources have the most padding, on the device."""
    from side_by_side.worker import batches

    several = batches(trainer)
    chosen = max(
        (next(several)[0] for _ in range(20)),
        key=lambda sample: int(sample["net_input"]["src_tokens"].eq(PADDING).sum()),
    )
    return dict(trainer._prepare_sample(chosen)[0])


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each precision of ours and stock fairseq, with shared and with own weights.

    Errors are means over DRAWS. `right` is None in rows that only serve as comparison.
    """
    shape = Shape(min(6, *options.layers), options.width, options.vocabulary, 1024)
    shape = dataclasses.replace(shape, tokens=min(1024, options.tokens))
    draws = [measure_draw(seed, shape, options) for seed in range(1, DRAWS + 1)]
    lines, yardstick = [], {}
    for precision, name in draws[0]:
        errors = [draw[precision, name] for draw in draws]
        off = {key: statistics.fmean(error[key] for error in errors) for key in errors[0]}
        right = None
        if precision == "fp32":
            right = max(off["loss"], off["logits"], off["gradients"]) < FP32_DISTANCE
        elif name == "stock":
            yardstick[precision] = off
        else:
            limit = yardstick[precision]
            right = all(off[k] <= ALLOWED * limit[k] for k in ("logits", "gradients"))
        against = "stock, fp32" if precision == "fp32" else "itself, fp32"
        lines.append({"model": shape.name, "precision": precision, "of": name})
        lines[-1] |= {"against": against, **off, "right": right}
    return lines


def measure_streams(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per depth, precision and --residual-dtype, for DeepNorm at width 64.

    Weights are rounded before either model computes, so that only activations differ.
    """
    from side_by_side.worker import build, load

    lines = []
    load(System("ours", "ours"))
    for layers in STREAM_LAYERS:
        if layers > max(6, *options.layers):
            continue
        shape = Shape(layers, 64, options.vocabulary, min(1024, options.tokens))
        for residual_dtype in ("model", "float32"):
            system = System("ours", "ours", ("--dropout=0", f"--residual-dtype={residual_dtype}"))
            torch.manual_seed(1)
            trainer = build(system, shape, options.device)
            sample, criterion = padded_batch(trainer), trainer.get_criterion()
            for precision in options.precisions:
                model = copy.deepcopy(trainer.get_model()).to(TYPES[precision]).float()
                exact = numbers(model, criterion, sample, torch.float32)
                off = distances(numbers(model, criterion, sample, TYPES[precision]), exact)
                right = None
                if residual_dtype == "float32" and layers > STREAM_LAYERS[0]:
                    right = off["gradients"] <= STREAM_LIMIT
                lines.append({"model": shape.name, "precision": precision, **off, "right": right})
                lines[-1] |= {"of": f"stream: {residual_dtype}", "against": "itself, fp32"}
    return lines


def measure_draw(
    seed: int, shape: Shape, options: argparse.Namespace
) -> dict[tuple[str, str], dict[str, float]]:
    """Return errors by precision and model, for weights drawn from this seed."""
    from side_by_side.worker import build, load

    plain = ("--dropout=0",)
    stock, ours = System("stock", "stock", plain), System("ours", "ours", plain)
    post_ln = dataclasses.replace(ours, options=("--dropout=0", "--residual-scheme=post-ln"))
    load(ours)
    torch.manual_seed(seed)
    trainers = {
        name: build(system, shape, options.device)
        for name, system in {
            "stock": stock,
            "ours, post-ln": post_ln,
            "ours, deepnorm": ours,
        }.items()
    }
    sample = padded_batch(trainers["stock"])
    models = {name: trainer.get_model() for name, trainer in trainers.items()}
    models["ours, post-ln"].load_state_dict(models["stock"].state_dict())
    exact: dict[str, Numbers] = {}
    off = {}
    for precision in ("fp32", *options.precisions):
        for name, model in models.items():
            criterion = trainers[name].get_criterion()
            result = numbers(model, criterion, sample, TYPES[precision])
            if precision == "fp32":
                exact[name] = result
            if precision == "fp32" and name != "ours, post-ln":
                continue
            reference = exact["stock" if precision == "fp32" else name]
            off[precision, name] = distances(result, reference)
    del trainers, models, model
    gc.collect()
    torch.cuda.empty_cache()  # nothing without a GPU
    return off


def row(line: dict[str, Any]) -> str:
    cells = [line[key] for key in ("model", "precision", "of", "against")]
    cells += [f"{line[key]:.1e}" for key in ("loss", "logits", "gradients", "worst")]
    return tables.line([*cells, {None: "", True: "ok", False: "**off**"}[line["right"]]])
