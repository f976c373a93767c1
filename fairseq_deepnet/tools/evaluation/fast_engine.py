"""Scoring with CTranslate2: what `deepnet evaluate --engine ctranslate2` does otherwise.

The run is exported first, once for each checkpoint and type of weights. Scores of both engines lie
side by side: the name of one by CTranslate2 ends in the engine and the type.
"""

from __future__ import annotations

import argparse
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.files import say, shown
from fairseq_deepnet.tools.checkpoints.choice import Model
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.export.command import export_for_ctranslate2
from fairseq_deepnet.tools.training.progress import Counter
from fairseq_deepnet.tools.translation.ctranslate2_engine import CTranslate2Model
from fairseq_deepnet.tools.translation.engine import WINDOW, Search, cut_message
from fairseq_deepnet.tools.translation.opening import QUANTIZATION
from fairseq_deepnet.tools.translation.stream import full_windows, translated

FEW_TOKENS: Final = 256
"""Of a batch: fewer are likely meant as sentences, which this engine counted once."""


def settle(args: argparse.Namespace) -> None:
    """Fill in the type of weights. ValueError for options that are the other engine's."""
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"THREADS={args.threads}; at least 1 is needed")
    if args.engine == "ctranslate2":
        args.quantization = args.quantization or QUANTIZATION
        if args.extra:
            raise ValueError(
                f"{' '.join(args.extra)}: options of fairseq-generate; leave them out, or set "
                "ENGINE=fairseq"
            )
        if args.batch is not None and args.batch < FEW_TOKENS:
            say(f"BATCH={args.batch} are source tokens, with ctranslate2 too (they were sentences)")
    elif args.quantization:
        raise ValueError(f"QUANTIZATION={args.quantization} needs ENGINE=ctranslate2")


def request(args: argparse.Namespace) -> dict[str, Any]:
    """What of the engine decides the scores; nothing for fairseq, whose scores were here first."""
    if args.engine == "fairseq":
        return {}
    return {"engine": args.engine, "quantization": args.quantization}


def suffix(args: argparse.Namespace) -> str:
    """The end of a score's name."""
    return "" if args.engine == "fairseq" else f".{args.engine}-{args.quantization}"


def described(args: argparse.Namespace) -> str:
    """The same in words."""
    return "" if args.engine == "fairseq" else f", {args.engine} {args.quantization}"


def version(args: argparse.Namespace) -> dict[str, str]:
    """Of the engine, beside those of all scores."""
    return {} if args.engine == "fairseq" else {args.engine: metadata.version(args.engine)}


def folder_of(args: argparse.Namespace, model: Model, data: DataFolder) -> Path | None:
    """The exported model, made now if need be; None for fairseq.

    Raises ValueError for models that take no raw text.
    """
    if args.engine == "fairseq":
        return None
    if data.is_moses:
        raise ValueError(
            f"{shown(data.path)} holds Moses tokens, and ctranslate2 is given raw text here; set "
            "ENGINE=fairseq"
        )
    return export_for_ctranslate2(model, data.path, args.quantization)


def search_of(args: argparse.Namespace) -> Search:
    """How CTranslate2 searches."""
    return Search(args.beam, args.lenpen, batch_tokens=args.batch)


def translate(args: argparse.Namespace, model: Model, data: DataFolder, threads: int) -> list[str]:
    """A translation of each line of the split's source."""
    folder = folder_of(args, model, data)
    assert folder is not None
    direction, search = Direction(*data.languages), search_of(args)
    lines = list(read_lines(data.text(args.split, direction, direction.source)))
    engine = CTranslate2Model(folder, search, threads=threads, cpu=args.gpus == "0")
    counter = Counter(len(lines), "sentences translated", sys.stderr)
    found = []
    for window in translated(engine, full_windows(lines, WINDOW * threads), direction):
        for hypotheses in window:
            found.append(hypotheses[0].text)
            counter.add()
    counter.close()
    if engine.cut:
        print(cut_message(engine.cut), file=sys.stderr)
    return found
