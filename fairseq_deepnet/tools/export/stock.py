"""Conversion of our checkpoints to fairseq's own Transformer, without --user-dir."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from fairseq.models import MODEL_REGISTRY, build_model
from torch import Tensor

from fairseq_deepnet.checkpoints import model_arguments
from fairseq_deepnet.files import shown
from fairseq_deepnet.models.options import ENCODER_DECODER, KIND_OF, ModelKind, model_name
from fairseq_deepnet.models.scheme_options import scheme_of
from fairseq_deepnet.stock_names import STOCK_NAMES, in_stock_names
from fairseq_deepnet.tools.export.folding import Folded, fold
from fairseq_deepnet.tools.fairseq_options import quiet
from fairseq_deepnet.tools.standalone import VocabularyTask

_RECORDS: Final = ("residual_record", "dictionary_record")
"""Keys that a model records in addition to its options."""
_TABLE: Final = "embed_tokens.weight"
_SIZES: Final = ("max_source_positions", "max_target_positions", "attention_heads")
"""Options that the writers read and that fairseq can be built without."""


def required_arguments(state: Mapping[str, Any]) -> Namespace:
    """Return the model arguments of a checkpoint; raise ValueError if it has none."""
    args = model_arguments(state)
    if args is None:
        raise ValueError("the checkpoint does not say how its model is built (no cfg, no args)")
    return args


def kind_of(args: Namespace) -> ModelKind:
    """Return the kind of a model, ours or its stock counterpart; raise ValueError for others."""
    name = model_name(args) if isinstance(getattr(args, "arch", None), str) else None
    if name is None:
        raise ValueError(f"arch {getattr(args, 'arch', None)} is known neither to fairseq nor here")
    if name not in KIND_OF:
        stock = dict.fromkeys(kind.stock for kind in KIND_OF.values())
        raise ValueError(
            f"a model of arch {args.arch} is not exported; of fairseq's own that is"
            f" {', '.join(stock)}"
        )
    return KIND_OF[name]


def scheme_name(args: Namespace) -> str:
    """Return the name of a model's residual scheme; `stock` for fairseq's own models."""
    return str(getattr(args, "residual_scheme", "stock"))


def fold_model(state: Mapping[str, Any], path: Path) -> tuple[Folded, Namespace]:
    """Return the stock weights of a checkpoint's model and its stock arguments.

    Raises:
        ValueError: if no stock layer can compute the model, or the weights of the checkpoint
            (`path`) are not those of its model.
    """
    args = required_arguments(state)
    kind = kind_of(args)
    refuse_other_weights(state["model"], args, path)
    if model_name(args) == kind.stock:
        return Folded(dict(state["model"])), args
    folded = fold(state["model"], args, scheme_of(args, kind.sides))
    return folded, stock_arguments(args, kind, folded.options)


def refuse_other_weights(weights: Mapping[str, Tensor], args: Namespace, path: Path) -> None:
    """Raise ValueError for weights that are not finite, missing or of the wrong shape.

    The model that `args` describe is built on the meta device to compare shapes.
    """
    tables = {name: len(weight) for name, weight in weights.items() if name.endswith(_TABLE)}
    if not tables:
        raise ValueError(f"{shown(path)} is incomplete: it has no {_TABLE}")
    sizes = [*tables.values()]
    task: Any = VocabularyTask(sizes[0])
    task.target_dictionary = VocabularyTask(sizes[-1]).source_dictionary
    task.dictionary = task.source_dictionary
    task.max_positions = lambda: args.tokens_per_sample
    no_files = {"encoder_embed_path": None, "decoder_embed_path": None}
    # fairseq's roberta copies its initial weights through the host
    device = "cpu" if kind_of(args).stock == "roberta" else "meta"
    try:
        with quiet(), torch.device(device):
            model: Any = build_model(Namespace(**vars(args) | no_files), task)
            tensors = {**weights}
            model.upgrade_state_dict(tensors)  # an old checkpoint names a tied table once
    except Exception as error:  # fairseq's own also raises plain Exceptions
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"{shown(path)} describes no model that can be built: {reason}") from error
    for name, value in vars(args).items():
        is_size = name.removeprefix("encoder_").removeprefix("decoder_") in _SIZES
        if is_size and not isinstance(value, int):
            raise ValueError(f"{shown(path)}: its option {name} is {value!r}, not a number")
    for name, expected in model.state_dict().items():
        if name not in tensors:
            raise ValueError(f"{shown(path)} is incomplete: it has no {name}")
        if tensors[name].shape != expected.shape:
            raise ValueError(
                f"{shown(path)}: {name} is of shape {[*tensors[name].shape]}, and its options say"
                f" {[*expected.shape]}"
            )
    for name, weight in weights.items():
        if not bool(torch.isfinite(weight).all()):
            raise ValueError(
                f"{shown(path)}: {name} has values that are not finite, so the model computes"
                " nothing; export an earlier checkpoint"
            )


def fold_translator(state: Mapping[str, Any], path: Path, engine: str) -> tuple[Folded, Namespace]:
    """Fold an encoder-decoder for another engine; raise ValueError for other models."""
    args = required_arguments(state)
    if kind_of(args) is not ENCODER_DECODER:
        raise ValueError(
            f"a {model_name(args)} translates nothing, and is not exported to {engine};"
            " use --to fairseq"
        )
    return fold_model(state, path)


def stock_arguments(args: Namespace, kind: ModelKind, options: Mapping[str, Any]) -> Namespace:
    """Return `args` for the stock arch of the same structure, without our options."""
    ours = _options(kind.arch) - _options(kind.stock) | set(_RECORDS)
    kept = {name: value for name, value in vars(args).items() if name not in ours}
    names = {"arch": kind.stock, "_name": kind.stock, "user_dir": None}
    return Namespace(**in_stock_names(kept) | dict(options) | names)


def _options(model: str) -> set[str]:
    """Return the option names of a registered model."""
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY[model].add_args(parser)
    return {action.dest for action in parser._actions}


def stock_checkpoint(state: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a checkpoint of a stock model that computes the same function as the model in `state`.

    It contains the configuration and the number of updates, but no optimiser state and no meters:
    it can translate and be fine-tuned, but not resumed. Arguments are plain mappings, so that torch
    loads it with weights_only=True without this plugin's allow-list for Namespaces.

    Raises:
        ValueError: if no stock layer can compute the model.
    """
    folded, args = fold_model(state, path)
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
