"""A checkpoint of ours as one of fairseq's own Transformer, which needs no --user-dir."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from fairseq.models import MODEL_REGISTRY

from fairseq_deepnet.checkpoints import model_arguments
from fairseq_deepnet.models.options import ENCODER_DECODER, KIND_OF, ModelKind, model_name
from fairseq_deepnet.models.scheme_options import scheme_of
from fairseq_deepnet.stock_names import STOCK_NAMES, in_stock_names
from fairseq_deepnet.tools.export.folding import Folded, fold

# What a model records besides its options, now and formerly.
_RECORDS: Final = ("residual_record", "residual_depths", "residual_alphas", "dictionary_record")


def required_arguments(state: Mapping[str, Any]) -> Namespace:
    """Return the model's arguments in a checkpoint; ValueError where there are none."""
    args = model_arguments(state)
    if args is None:
        raise ValueError("the checkpoint does not say how its model is built (no cfg, no args)")
    return args


def kind_of(args: Namespace) -> ModelKind:
    """Return which of our kinds a model is of, or its stock counterpart; ValueError for others."""
    name = model_name(args)
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
    """Return a model's residual scheme; `stock` for fairseq's own."""
    return str(getattr(args, "residual_scheme", "stock"))


def fold_model(state: Mapping[str, Any]) -> tuple[Folded, Namespace]:
    """Return the stock weights of a checkpoint's model, and the stock arguments that go with them.

    Raises:
        ValueError: for a model that no stock layer can compute, with the reason.
    """
    args = required_arguments(state)
    kind = kind_of(args)
    if model_name(args) == kind.stock:
        return Folded(dict(state["model"])), args
    folded = fold(state["model"], args, scheme_of(args, kind.sides))
    return folded, stock_arguments(args, kind, folded.options)


def fold_translator(state: Mapping[str, Any], engine: str) -> tuple[Folded, Namespace]:
    """Fold an encoder-decoder for another engine; ValueError for another kind of model."""
    args = required_arguments(state)
    if kind_of(args) is not ENCODER_DECODER:
        raise ValueError(
            f"a {model_name(args)} translates nothing, and is not exported to {engine};"
            " use --to fairseq"
        )
    return fold_model(state)


def stock_arguments(args: Namespace, kind: ModelKind, options: Mapping[str, Any]) -> Namespace:
    """Return `args` without what is ours, for the stock arch of the same structure."""
    ours = _options(kind.arch) - _options(kind.stock) | set(_RECORDS)
    kept = {name: value for name, value in vars(args).items() if name not in ours}
    names = {"arch": kind.stock, "_name": kind.stock, "user_dir": None}
    return Namespace(**in_stock_names(kept) | dict(options) | names)


def _options(model: str) -> set[str]:
    """Return names of the options of a registered model."""
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY[model].add_args(parser)
    return {action.dest for action in parser._actions}


def stock_checkpoint(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint of a stock model that computes what the model in `state` does.

    It carries the configuration and the count of updates but neither optimiser state nor meters: it
    can be translated with and fine-tuned from, not resumed. Arguments are plain mappings, so that
    torch's weights-only default loads it without this plugin, which has to allow Namespaces.

    Raises:
        ValueError: for a model that no stock layer can compute, with the reason.
    """
    folded, args = fold_model(state)
    config: dict[str, Any] = {
        part: dict(vars(values)) if isinstance(values, Namespace) else values
        for part, values in (state.get("cfg") or {}).items()
    }
    for name in ("criterion", "optimizer"):
        if isinstance(config.get(name), dict):
            found = config[name].get("_name")
            config[name] = config[name] | {"_name": STOCK_NAMES.get(found, found)}
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
