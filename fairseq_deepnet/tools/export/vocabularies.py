"""Vocabularies and language tokens of a model for other engines.

An exported folder is self-contained: it includes these and the subword models.
"""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import get_lang_tok
from torch import Tensor

from fairseq_deepnet.dictionaries import RECORD as DICTIONARY_RECORD
from fairseq_deepnet.dictionaries import refuse_others
from fairseq_deepnet.files import shown
from fairseq_deepnet.records import sha256
from fairseq_deepnet.tools import fairseq_options
from fairseq_deepnet.tools.corpora.folder import BareFolder, DataFolder
from fairseq_deepnet.tools.export.stock import fold_translator, required_arguments
from fairseq_deepnet.tools.trained_model import TrainedModel, task_arguments


@dataclasses.dataclass(frozen=True)
class LanguageTokens:
    """Language tokens of a model for many directions.

    Args:
        source: language named by the token before a source sentence: `src`, `tgt`, or None for no
            token.
        target: a translation starts with the token of its language.
        tokens: language -> token.
    """

    source: str | None
    target: bool
    tokens: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Vocabularies:
    """Symbols of both dictionaries, in the order of the embedding rows."""

    source: list[str]
    target: list[str]
    tokens: LanguageTokens | None = None


def subword_files(data: DataFolder) -> dict[str, Path]:
    """Return the sentencepiece model of each language (for Moses data, the BPE codes).

    Raises FileNotFoundError if one is missing.
    """
    paths = {language: data.subword_model(language) for language in data.languages}
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(
                f"{shown(path)} is missing, without which raw text cannot be read; --data FOLDER"
                " names another data folder"
            )
    return paths


def subword_kind(data: DataFolder) -> str:
    """Return the kind of a folder's subwords, as export.json records it."""
    if data.is_moses:
        return "Moses"
    is_tokens = isinstance(data, BareFolder) and data.spm is None
    return "other" if is_tokens else "sentencepiece"


def data_digests(data: DataFolder) -> dict[str, str | None]:
    """Return digests of all files that determine how raw text is encoded and decoded."""
    paths = {*subword_files(data).values(), *data.path.glob("dict*.txt")}
    paths |= {data.path / "languages.txt"} if data.is_multilingual else set()
    return {path.name: sha256(path) for path in sorted(paths)}


def read_vocabularies(
    checkpoint: Path, folder: DataFolder, args: Namespace, engine: str
) -> Vocabularies:
    """Read the dictionaries of a model's task, and the language tokens of a multilingual model.

    Raises:
        ValueError: if model and folder do not belong together, or `engine` does not support the
            language tokens.
    """
    words = task_arguments(checkpoint, folder)
    if folder.is_multilingual:
        first = folder.directions("train")[0]
        words += ["--source-lang", first.source, "--target-lang", first.target]
        words += ["--path", str(checkpoint.resolve())]
        with fairseq_options.quiet():
            config = fairseq_options.parse_generation([str(folder.path.resolve()), *words])
            task = tasks.setup_task(config.task)
        if task.args.lang_tok_replacing_bos_eos:
            raise ValueError(no_counterpart("--lang-tok-replacing-bos-eos", engine))
        (source, target), style = task.args.langtoks["main"], task.args.lang_tok_style
        names = {language: get_lang_tok(language, style) for language in folder.languages}
        tokens = LanguageTokens(source or None, bool(target), names)
        dictionaries = task.source_dictionary, task.target_dictionary
    else:
        paths = [folder.path / f"dict.{language}.txt" for language in folder.languages]
        tokens, dictionaries = None, tuple(Dictionary.load(str(path)) for path in paths)
    source_words, target_words = (dictionary.symbols for dictionary in dictionaries)
    recorded = getattr(args, DICTIONARY_RECORD, None)
    refuse_others(recorded, {"source": source_words, "target": target_words})
    return Vocabularies(source_words, target_words, tokens)


def stock_translator(
    model: TrainedModel,
    data: DataFolder,
    state: Mapping[str, Any],
    engine: str,
    activations: Mapping[str, object],
) -> tuple[dict[str, Tensor], Namespace, Vocabularies]:
    """Return weights, arguments and dictionaries of the equivalent stock encoder-decoder.

    Raises ValueError if the model cannot be folded or `engine` cannot compute it.
    """
    folded, args = fold_translator(state, model.path, engine)
    vocabularies = read_vocabularies(model.path, data, required_arguments(state), engine)
    check_supported(folded.weights, args, vocabularies, engine, activations)
    return folded.weights, args, vocabularies


def no_counterpart(option: str, engine: str) -> str:
    """Return the message for an option that an engine does not support."""
    return f"{option} has no counterpart in {engine}; use --to fairseq"


def check_supported(
    weights: Mapping[str, Tensor],
    args: Namespace,
    vocabularies: Vocabularies,
    engine: str,
    activations: Mapping[str, object],
) -> None:
    """Raise ValueError, naming the option, if the engine cannot compute a stock model."""
    activation = args.activation_fn
    if activation not in activations:
        raise ValueError(
            f"--activation-fn {activation} is unknown to {engine}, which has"
            f" {', '.join(activations)}; use --to fairseq"
        )
    unsupported = (
        *("merge_src_tgt_embed", "adaptive_softmax_cutoff", "adaptive_input"),
        *("cross_self_attention", "no_cross_attention"),
        *("scale_attn", "scale_fc", "scale_heads", "scale_resids"),
    )
    for name in unsupported:
        if getattr(args, name, None):
            raise ValueError(no_counterpart(f"--{name.replace('_', '-')}", engine))
    for side, symbols in (("encoder", vocabularies.source), ("decoder", vocabularies.target)):
        rows = weights[f"{side}.embed_tokens.weight"].size(0)
        if rows != len(symbols):
            raise ValueError(
                f"the model's {side} has {rows:,} words, and the dictionary {len(symbols):,}:"
                " not the data folder that it was trained on; give --data FOLDER"
            )
