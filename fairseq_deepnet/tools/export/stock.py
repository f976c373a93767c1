"""Conversion of our models to fairseq's own Transformers, which other engines can also run."""

import argparse
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import get_lang_tok
from fairseq.models import MODEL_REGISTRY
from torch import Tensor

from fairseq_deepnet.checkpoints import model_arguments
from fairseq_deepnet.dictionaries import RECORD as DICTIONARY_RECORD
from fairseq_deepnet.dictionaries import refuse_others
from fairseq_deepnet.models.options import ENCODER_DECODER, KIND_OF, ModelKind, model_name
from fairseq_deepnet.models.scheme_options import scheme_of
from fairseq_deepnet.stock_names import STOCK_NAMES, in_stock_names
from fairseq_deepnet.tools import fairseq_options
from fairseq_deepnet.tools.corpora.folder import BareFolder, DataFolder
from fairseq_deepnet.tools.export.folding import Folded, fold
from fairseq_deepnet.tools.trained_model import TrainedModel, task_arguments

OUTPUT: Final = "decoder.output_projection.weight"
_UNSUPPORTED: Final = (
    *("merge_src_tgt_embed", "adaptive_softmax_cutoff", "adaptive_input"),
    *("cross_self_attention", "no_cross_attention"),
    *("scale_attn", "scale_fc", "scale_heads", "scale_resids"),
)
"""Options of stock models that only fairseq supports."""


class Vocabularies(NamedTuple):
    """Dictionaries and language tokens of a model.

    Args:
        source, target: symbols in the order of the embedding rows.
        tokens: None for a model of one pair. Otherwise, "tokens" maps languages to tokens, "source"
            names the language whose token precedes a source sentence ("src", "tgt" or None), and
            "target" is True if translations begin with their language's token.
    """

    source: list[str]
    target: list[str]
    tokens: dict[str, Any] | None


def required_arguments(state: Mapping[str, Any]) -> Namespace:
    """Return the model arguments of a checkpoint, or raise ValueError if there are none."""
    args = model_arguments(state)
    if args is None:
        raise ValueError("the checkpoint contains no model options (neither cfg nor args)")
    return args


def kind_of(args: Namespace) -> ModelKind:
    """Return the kind of a model, which must be one of ours or the stock counterpart of one.

    Raises ValueError for other models.
    """
    arch = getattr(args, "arch", None)
    name = model_name(args) if isinstance(arch, str) else None
    if name not in KIND_OF:
        names = ", ".join(sorted(KIND_OF))
        raise ValueError(f"a model of arch {arch} cannot be exported, only models of {names}")
    return KIND_OF[name]


def fold_model(state: Mapping[str, Any]) -> tuple[Folded, Namespace]:
    """Return the stock weights and stock arguments that are equivalent to a checkpoint's model.

    Raises ValueError if stock layers cannot compute the model.
    """
    args = required_arguments(state)
    kind = kind_of(args)
    if model_name(args) == kind.stock:
        return Folded(dict(state["model"])), args
    folded = fold(state["model"], args, scheme_of(args, kind.sides))
    records = {"residual_record", DICTIONARY_RECORD}  # not options
    ours = _options(kind.arch) - _options(kind.stock) | records
    shared = {name: value for name, value in vars(args).items() if name not in ours}
    names = {"arch": kind.stock, "_name": kind.stock, "user_dir": None}
    return folded, Namespace(**in_stock_names(shared) | folded.options | names)


def _options(model: str) -> set[str]:
    """Return the option names of a registered model."""
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY[model].add_args(parser)
    return {action.dest for action in parser._actions}


def stock_checkpoint(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint of the equivalent stock model.

    The checkpoint can be used to translate and to fine-tune, but not to resume training, because it
    contains no optimiser state and no meters. Its arguments are plain mappings, so that torch can
    load it with weights_only=True.

    Raises ValueError if stock layers cannot compute the model.
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


def read_vocabularies(checkpoint: Path, folder: DataFolder, engine: str) -> Vocabularies:
    """Read the dictionaries of a model's task, and the language tokens of a multilingual model.

    Raises ValueError if the data folder does not fit the model, or `engine` does not support the
    language tokens.
    """
    words = task_arguments(checkpoint, folder)
    if not folder.is_multilingual:
        paths = [str(folder.path / f"dict.{language}.txt") for language in folder.languages]
        source, target = (Dictionary.load(path).symbols for path in paths)
        return Vocabularies(source, target, None)
    words += ["--path", str(checkpoint.resolve())]
    with fairseq_options.quiet():
        config = fairseq_options.parse_generation([str(folder.path.resolve()), *words])
        task = tasks.setup_task(config.task)
    if task.args.lang_tok_replacing_bos_eos:
        raise ValueError(no_counterpart("--lang-tok-replacing-bos-eos", engine))
    (before_source, before_target), style = task.args.langtoks["main"], task.args.lang_tok_style
    names = {language: get_lang_tok(language, style) for language in folder.languages}
    tokens = {"source": before_source or None, "target": bool(before_target), "tokens": names}
    return Vocabularies(task.source_dictionary.symbols, task.target_dictionary.symbols, tokens)


def no_counterpart(option: str, engine: str) -> str:
    """Return the error message for an option that an engine does not support."""
    return f"{option} has no counterpart in {engine}; use --to fairseq"


def stock_translator(
    model: TrainedModel,
    data: DataFolder,
    state: Mapping[str, Any],
    engine: str,
    activations: Mapping[str, object],
) -> tuple[dict[str, Tensor], Namespace, Vocabularies]:
    """Return weights, arguments and dictionaries of the equivalent stock encoder-decoder.

    Args:
        engine: name of the engine for which the model is converted.
        activations: activation functions that the engine supports.

    Raises ValueError if stock layers or the engine cannot compute the model, or the data folder has
    another dictionary.
    """
    if data.is_moses or (isinstance(data, BareFolder) and data.spm is None):
        raise ValueError(no_counterpart(f"text without sentencepiece ({data.path})", engine))
    own = required_arguments(state)
    if kind_of(own) is not ENCODER_DECODER:
        raise ValueError(f"{engine} cannot translate with {model_name(own)}; use --to fairseq")
    folded, args = fold_model(state)
    vocabularies = read_vocabularies(model.path, data, engine)
    words = {"source": vocabularies.source, "target": vocabularies.target}
    refuse_others(getattr(own, DICTIONARY_RECORD, None), words)
    if args.activation_fn not in activations:
        raise ValueError(no_counterpart(f"--activation-fn {args.activation_fn}", engine))
    for name in _UNSUPPORTED:
        if getattr(args, name, None):
            raise ValueError(no_counterpart(f"--{name.replace('_', '-')}", engine))
    for side, symbols in (("encoder", vocabularies.source), ("decoder", vocabularies.target)):
        rows = folded.weights[f"{side}.embed_tokens.weight"].size(0)
        if rows != len(symbols):
            raise ValueError(
                f"the {side} has {rows:,} words and its dictionary {len(symbols):,}; select the"
                " training data with --data FOLDER"
            )
    # old fairseq checkpoints contain a tied table under only one of its names
    folded.weights.setdefault(OUTPUT, folded.weights["decoder.embed_tokens.weight"])
    return folded.weights, args, vocabularies
