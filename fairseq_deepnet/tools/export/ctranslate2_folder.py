"""A CTranslate2 model with all that takes raw text to raw text: its folder stands alone."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import get_lang_tok

from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments
from fairseq_deepnet.dictionaries import RECORD as DICTIONARY_RECORD
from fairseq_deepnet.dictionaries import refuse_others
from fairseq_deepnet.models.options import ENCODER_DECODER
from fairseq_deepnet.records import write_record
from fairseq_deepnet.tools import fairseq_options
from fairseq_deepnet.tools.checkpoints import Model, task_arguments
from fairseq_deepnet.tools.corpora.builder import folder_digests
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export import record
from fairseq_deepnet.tools.export.ctranslate2_spec import StockConverter, Vocabularies
from fairseq_deepnet.tools.export.layout import RECORD
from fairseq_deepnet.tools.export.stock import fold_model, kind_of, model_name, required_arguments


@dataclasses.dataclass(frozen=True)
class LanguageTokens:
    """The tokens that name the languages to a model of many directions.

    Args:
        source: whose language the token before a source sentence names: `src`, `tgt`, or None for
            no such token.
        target: whether a translation begins with its language's token.
        tokens: of each language.
    """

    source: str | None
    target: bool
    tokens: dict[str, str]


def request_of(model: Model, data: DataFolder, quantization: str) -> dict[str, Any]:
    """All that decides the folder."""
    digests = record.data_digests(data)
    return record.make_request(model, "ctranslate2", quantization=quantization, data=digests)


def write_folder(
    model: Model, data: DataFolder, state: dict[str, Any], request: dict[str, Any], output: Path
) -> None:
    """Write the folder so that it is there whole or not at all.

    Raises:
        ValueError: for a model that cannot be folded or that CTranslate2 cannot compute.
    """
    args = required_arguments(state)
    if kind_of(args) is not ENCODER_DECODER:
        raise ValueError(
            f"a {model_name(args)} translates nothing, and is not exported to CTranslate2;"
            " use --to fairseq"
        )
    folded, stock = fold_model(state)
    vocabularies, tokens = read_vocabularies(model.path, data)
    converter = StockConverter(folded.weights, stock, vocabularies)
    part = record.part_of(output)
    try:
        converter.convert(str(part), quantization=request["quantization"])
        subwords = record.subword_files(data)
        for name in sorted(set(subwords.values())):
            shutil.copy(data.path / name, part / name)
        facts = record.describe(model, state, request) | {
            "quantization": request["quantization"],
            "source": None if tokens else data.languages[0],
            "target": None if tokens else data.languages[1],
            "languages": data.languages,
            "language_tokens": dataclasses.asdict(tokens) if tokens else None,
            "subwords": {
                "kind": "moses" if data.is_moses else "sentencepiece",
                "models": subwords,
            },
            "lowercase": data.is_lowercase,
            "max_positions": [stock.max_source_positions, stock.max_target_positions],
        }
        write_record(part / RECORD, facts | {"files": folder_digests(part)})
        record.put_in_place(part, output)
    finally:
        record.remove(part)


def read_vocabularies(
    checkpoint: Path, folder: DataFolder
) -> tuple[Vocabularies, LanguageTokens | None]:
    """The dictionaries of a model's task, and its language tokens if it has many directions.

    Raises ValueError for a model and a folder that do not belong together.
    """
    words = task_arguments(checkpoint, folder)
    if not folder.is_multilingual:
        paths = (folder.path / f"dict.{language}.txt" for language in folder.languages)
        source, target = (Dictionary.load(str(path)).symbols for path in paths)
        _refuse_others(checkpoint, source, target)
        return Vocabularies(source, target), None
    first = folder.directions("train")[0]
    words += ["--source-lang", first.source, "--target-lang", first.target]
    words += ["--path", str(checkpoint.resolve())]
    with fairseq_options.quiet():
        config = fairseq_options.parse_generation([str(folder.path.resolve()), *words])
        task = tasks.setup_task(config.task)
    _refuse_others(checkpoint, task.source_dictionary.symbols, task.target_dictionary.symbols)
    vocabularies = Vocabularies(task.source_dictionary.symbols, task.target_dictionary.symbols)
    return vocabularies, _language_tokens(task, folder)


def _refuse_others(checkpoint: Path, source: list[str], target: list[str]) -> None:
    args = model_arguments(load_checkpoint(checkpoint))
    refuse_others(getattr(args, DICTIONARY_RECORD, None), {"source": source, "target": target})


def _language_tokens(task: Any, folder: DataFolder) -> LanguageTokens:
    if task.args.lang_tok_replacing_bos_eos:
        raise ValueError(
            "--lang-tok-replacing-bos-eos has no counterpart in CTranslate2; use --to fairseq"
        )
    source, target = task.args.langtoks["main"]
    style = task.args.lang_tok_style
    tokens = {language: get_lang_tok(language, style) for language in folder.languages}
    return LanguageTokens(source or None, bool(target), tokens)
