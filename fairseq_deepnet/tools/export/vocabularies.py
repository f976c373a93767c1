"""Vocabularies and language tokens of a model for other engines."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import get_lang_tok
from torch import Tensor

from fairseq_deepnet.dictionaries import RECORD as DICTIONARY_RECORD
from fairseq_deepnet.dictionaries import refuse_others
from fairseq_deepnet.models.options import ENCODER_DECODER, model_name
from fairseq_deepnet.tools import fairseq_options
from fairseq_deepnet.tools.corpora.folder import BareFolder, DataFolder
from fairseq_deepnet.tools.export.stock import fold_model, kind_of, required_arguments
from fairseq_deepnet.tools.trained_model import TrainedModel, task_arguments


class Vocabularies(NamedTuple):
    """Dictionaries and language tokens of a model.

    Args:
        source, target: symbols, in the order of the embedding rows
        tokens: None for a model of one direction; else "tokens", language -> token; "source", the
            language that is named before a source sentence: "src", "tgt" or None; "target", True if
            a translation starts with the token of its language
    """

    source: list[str]
    target: list[str]
    tokens: dict[str, Any] | None


def read_vocabularies(checkpoint: Path, folder: DataFolder, engine: str) -> Vocabularies:
    """Read the dictionaries of a model's task, and the language tokens of a multilingual model.

    Raises:
        ValueError: if model and folder do not belong together, or `engine` does not support the
            language tokens.
    """
    words = task_arguments(checkpoint, folder)
    if not folder.is_multilingual:
        paths = [str(folder.path / f"dict.{language}.txt") for language in folder.languages]
        source, target = (Dictionary.load(path).symbols for path in paths)
        return Vocabularies(source, target, None)
    first = folder.directions("train")[0]
    words += ["--source-lang", first.source, "--target-lang", first.target]
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
    """Return the message for an option that an engine does not support."""
    return f"{option} has no counterpart in {engine}; use --to fairseq"


def stock_translator(
    model: TrainedModel,
    data: DataFolder,
    state: Mapping[str, Any],
    engine: str,
    activations: Mapping[str, object],
) -> tuple[dict[str, Tensor], Namespace, Vocabularies]:
    """Return weights, arguments and dictionaries of the equivalent stock encoder-decoder.

    Raises:
        ValueError: if the model cannot be folded or has another dictionary, or `engine` cannot
            compute it; the message names the option.
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
    unsupported = (
        *("merge_src_tgt_embed", "adaptive_softmax_cutoff", "adaptive_input"),
        *("cross_self_attention", "no_cross_attention"),
        *("scale_attn", "scale_fc", "scale_heads", "scale_resids"),
    )
    for name in unsupported:
        if getattr(args, name, None):
            raise ValueError(no_counterpart(f"--{name.replace('_', '-')}", engine))
    for side, symbols in (("encoder", vocabularies.source), ("decoder", vocabularies.target)):
        rows = folded.weights[f"{side}.embed_tokens.weight"].size(0)
        if rows != len(symbols):
            raise ValueError(
                f"the {side} has {rows:,} words and its dictionary {len(symbols):,}; give the data"
                " folder of the training, --data FOLDER"
            )
    return folded.weights, args, vocabularies
