"""What a model's words are, and how it is told its languages: as its fairseq task has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import get_lang_tok

from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments
from fairseq_deepnet.dictionaries import RECORD, refuse_others
from fairseq_deepnet.tools import fairseq_options
from fairseq_deepnet.tools.checkpoints.choice import task_arguments
from fairseq_deepnet.tools.corpora.folder import DataFolder
from fairseq_deepnet.tools.export.ctranslate2_spec import Vocabularies
from fairseq_deepnet.tools.fairseq_options import quiet


@dataclass(frozen=True)
class LanguageTokens:
    """How a model of many directions is told them.

    Args:
        source: whose language the token before a source sentence names: `src`, `tgt`, or None for
            no such token.
        target: whether a translation begins with its language's token.
        tokens: of each language.
    """

    source: str | None
    target: bool
    tokens: dict[str, str]


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
    with quiet():
        config = fairseq_options.parse_generation([str(folder.path.resolve()), *words])
        task = tasks.setup_task(config.task)
    _refuse_others(checkpoint, task.source_dictionary.symbols, task.target_dictionary.symbols)
    vocabularies = Vocabularies(task.source_dictionary.symbols, task.target_dictionary.symbols)
    return vocabularies, _language_tokens(task, folder)


def _refuse_others(checkpoint: Path, source: list[str], target: list[str]) -> None:
    args = model_arguments(load_checkpoint(checkpoint))
    refuse_others(getattr(args, RECORD, None), {"source": source, "target": target})


def _language_tokens(task: Any, folder: DataFolder) -> LanguageTokens:
    if task.args.lang_tok_replacing_bos_eos:
        raise ValueError(
            "--lang-tok-replacing-bos-eos has no counterpart in CTranslate2; use --to fairseq"
        )
    source, target = task.args.langtoks["main"]
    style = task.args.lang_tok_style
    tokens = {language: get_lang_tok(language, style) for language in folder.languages}
    return LanguageTokens(source or None, bool(target), tokens)
