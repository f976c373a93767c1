"""From what a user names (a run, a checkpoint, an exported folder) to an engine that is ready.

An exported folder needs neither torch nor fairseq, which take seconds to import: only the functions
that do need them import them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fairseq_deepnet.files import say, shown
from fairseq_deepnet.provenance import fingerprint
from fairseq_deepnet.tools import processor
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.export.layout import MODEL, is_exported
from fairseq_deepnet.tools.translation.ctranslate2_engine import CTranslate2Model
from fairseq_deepnet.tools.translation.engine import BATCH, Engine, Search

if TYPE_CHECKING:
    from fairseq_deepnet.tools.checkpoints.choice import Model

QUANTIZATION: Final = "int8"
"""Of a model that is exported on the way: the fastest. BLEU changes by less than 0.1, and one
sentence in ten is worded otherwise (measured in docs/serving.md)."""


@dataclass
class Opened:
    """An engine, the direction it is to work in, and what it is.

    Arguments:
        request: all that decides its translations, besides text and search
    """

    engine: Engine
    direction: Direction
    what: str
    request: dict[str, Any]


@dataclass(frozen=True)
class EngineOptions:
    """What was asked for on the command line; None leaves it to the model."""

    engine: str | None = None
    source: str | None = None
    target: str | None = None
    data: Path | None = None
    average: int = 0
    quantization: str | None = None
    threads: int = 1
    at_once: bool = False
    cpu: bool = False
    generate_options: tuple[str, ...] = ()
    """Of fairseq-generate."""


def open_engine(target: Path, search: Search, options: EngineOptions) -> Opened:
    """Load a model.

    A folder of `deepnet export --to ctranslate2` runs on CTranslate2; a run or a checkpoint on
    fairseq, or where CTranslate2 is asked for it is exported first, once.

    Raises FileNotFoundError for what is not there, ValueError for what does not fit together.
    """
    if is_exported(target):
        if options.engine == "fairseq":
            raise ValueError(f"{shown(target)} is a CTranslate2 model; name the run for fairseq")
        for name, value in (("--data", options.data), ("--average", options.average)):
            if value:
                raise ValueError(f"{name}: {shown(target)} is exported already; name the run")
        return _on_ctranslate2(target, search, options, options.quantization)

    from fairseq_deepnet.tools.checkpoints.choice import choose_model
    from fairseq_deepnet.tools.export.command import export_for_ctranslate2

    model = choose_model(target, options.average)
    if options.engine == "ctranslate2":
        folder = export_for_ctranslate2(model, options.data, options.quantization or QUANTIZATION)
        return _on_ctranslate2(folder, search, options, None)
    if options.quantization:
        raise ValueError("--quantization is CTranslate2's: add --engine ctranslate2")
    return _on_fairseq(model, search, options)


def _on_ctranslate2(
    folder: Path, search: Search, options: EngineOptions, compute_type: str | None
) -> Opened:
    if options.generate_options:
        raise ValueError(
            f"{' '.join(options.generate_options)}: options of fairseq-generate, and the engine is"
            " ctranslate2, which computes as --quantization (QUANTIZATION= of scripts) says"
        )
    engine = CTranslate2Model(
        folder,
        search,
        threads=options.threads,
        at_once=options.at_once,
        compute_type=compute_type,
        cpu=options.cpu,
    )
    languages = engine.record["languages"]
    only = None if engine.tokens else Direction(engine.record["source"], engine.record["target"])
    what = f"{shown(folder)}, ctranslate2 {compute_type or engine.record['quantization']}"
    request: dict[str, Any] = {"engine": "ctranslate2", "compute_type": compute_type}
    request |= {"model": fingerprint(folder / MODEL)}
    return Opened(engine, choose_direction(only, languages, options), what, request)


def _on_fairseq(model: Model, search: Search, options: EngineOptions) -> Opened:
    import torch

    from fairseq_deepnet.tools.checkpoints.choice import find_data
    from fairseq_deepnet.tools.export.record import data_digests
    from fairseq_deepnet.tools.translation.fairseq_engine import Translator

    data = find_data(model, options.data)
    if data.is_monolingual:
        raise ValueError(f"{shown(data.path)} holds text of one language: nothing to translate")
    if data.is_moses:
        raise ValueError(
            f"{shown(data.path)} holds Moses tokens, and raw text is only translated with "
            "sentencepiece; scripts/eval_bleu.sh scores such models"
        )
    model.make()
    only = None if data.is_multilingual else Direction(*data.languages)
    direction = choose_direction(only, data.languages, options)
    torch.set_num_threads(options.threads)
    words = ["--beam", str(search.beam), "--lenpen", f"{search.lenpen:g}"]
    words += [
        "--batch-size",
        str(search.batch or BATCH),
        "--nbest",
        str(search.nbest),
        *options.generate_options,
    ]
    on_cpu = options.cpu or not torch.cuda.is_available()
    if on_cpu and "--bf16" in options.generate_options and (remark := processor.bf16_remark()):
        say(remark)
    engine = Translator(model.path, data, words, cpu=options.cpu)
    sources = [fingerprint(path) for path in model.sources]
    request = {
        "engine": "fairseq",
        "model": sources,
        "data": data_digests(data),
        "options": list(options.generate_options),
    }
    return Opened(engine, direction, f"{shown(model.path)}, fairseq", request)


def choose_direction(
    only: Direction | None, languages: Sequence[str], options: EngineOptions
) -> Direction:
    """The direction that was asked for, or the model's only one.

    Raises ValueError for one that the model does not have, or where it has many and none is named.
    """
    if only is not None:
        for name, given, has in zip(
            ("src", "tgt"), (options.source, options.target), only, strict=True
        ):
            if given not in (None, has):
                raise ValueError(f"--{name} {given}: the model translates {only}")
        return only
    if options.source is None or options.target is None:
        raise ValueError(
            f"the model has many directions: name --src and --tgt ({', '.join(languages)})"
        )
    for name in (options.source, options.target):
        if name not in languages:
            raise ValueError(f"the model knows no {name}; it knows {', '.join(languages)}")
    return Direction.parse(f"{options.source}-{options.target}")
