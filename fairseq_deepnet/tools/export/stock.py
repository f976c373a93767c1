"""Conversion of our checkpoints to fairseq's own Transformer, without --user-dir."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from fairseq.models import MODEL_REGISTRY

from fairseq_deepnet.checkpoints import model_arguments
from fairseq_deepnet.models.options import KIND_OF, ModelKind, model_name
from fairseq_deepnet.models.scheme_options import scheme_of
from fairseq_deepnet.stock_names import STOCK_NAMES, in_stock_names
from fairseq_deepnet.tools.export.folding import Folded, fold

_RECORDS: Final = ("residual_record", "dictionary_record")
"""Keys that a model records in addition to its options."""


def required_arguments(state: Mapping[str, Any]) -> Namespace:
    """Return the model arguments of a checkpoint; raise ValueError if it has none."""
    args = model_arguments(state)
    if args is None:
        raise ValueError("the checkpoint contains no model options (neither cfg nor args)")
    return args


def kind_of(args: Namespace) -> ModelKind:
    """Return the kind of a model, ours or its stock counterpart; raise ValueError for others."""
    arch = getattr(args, "arch", None)
    name = model_name(args) if isinstance(arch, str) else None
    if name not in KIND_OF:
        names = ", ".join(sorted(KIND_OF))
        raise ValueError(f"a model of arch {arch} cannot be exported, only models of {names}")
    return KIND_OF[name]


def fold_model(state: Mapping[str, Any]) -> tuple[Folded, Namespace]:
    """Return the stock weights of a checkpoint's model and its stock arguments.

    Raises:
        ValueError: if no stock layer can compute the model.
    """
    args = required_arguments(state)
    kind = kind_of(args)
    if model_name(args) == kind.stock:
        return Folded(dict(state["model"])), args
    folded = fold(state["model"], args, scheme_of(args, kind.sides))
    return folded, stock_arguments(args, kind, folded.options)


def stock_arguments(args: Namespace, kind: ModelKind, options: Mapping[str, Any]) -> Namespace:
    """Return `args` for the stock arch of the same structure, without our options."""
    ours = _options(kind.arch) - _options(kind.stock) | set(_RECORDS)
    shared = {name: value for name, value in vars(args).items() if name not in ours}
    names = {"arch": kind.stock, "_name": kind.stock, "user_dir": None}
    return Namespace(**in_stock_names(shared) | dict(options) | names)


def _options(model: str) -> set[str]:
    """Return the option names of a registered model."""
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY[model].add_args(parser)
    return {action.dest for action in parser._actions}


def stock_checkpoint(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint of a stock model that computes the same function as the model in `state`.

    It has no optimiser state and no meters: it can translate and be fine-tuned, but not resumed.
    Arguments are plain mappings, which torch loads with weights_only=True.

    Raises:
        ValueError: if no stock layer can compute the model.
    """
    folded, args = fold_model(state)
    config: dict[str, Any] = {
        part: dict(vars(values)) if isinstance(values, Namespace) else values
        for part, values in (state.get("cfg") or {}).items()
    }
    for name in ("criterion", "optimizer"):
        if isinstance(config.get(name), dict):
            ours = config[name].get("_name")
            config[name] = config[name] | {"_name": STOCK_NAMES.get(ours, ours)}
    if isinstance(config.get("common"), dict):
        config["common"] = config["common"] | {"user_dir": None}
    extra = {key: value for key, value in state.get("extra_state", {}).items() if key != "metrics"}
    return dict(state) | {
        "args": None if config else args,
        "cfg": config | {"model": vars(args)} if config else None,
        "model": folded.weights,
        "extra_state": extra,
        "last_optimizer_state": None,
    }
