"""`deepnet translate`: raw text in, text out, by a run, a checkpoint or an exported model.

Reads files or standard input, a sentence a line, and writes a line for each, in the same order. A
sentence that is typed is translated at once; files go through in windows of bounded size. Empty
lines stay empty. What is not UTF-8 in a line is replaced by U+FFFD, and counted at the end. With
--out the file appears when it is complete; an interrupted translation lies in FILE.part.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tqdm import tqdm

from fairseq_deepnet.files import say, shown
from fairseq_deepnet.tools import devices
from fairseq_deepnet.tools.corpora.folder import SPM_HELP, Direction
from fairseq_deepnet.tools.corpora.text import decode
from fairseq_deepnet.tools.export import is_exported
from fairseq_deepnet.tools.translation import stream
from fairseq_deepnet.tools.translation.ctranslate2_engine import CTranslate2Model
from fairseq_deepnet.tools.translation.engine import (
    BATCH,
    CPU_BATCH,
    ENGINES,
    QUANTIZATION,
    WINDOW,
    Engine,
    Hypothesis,
    Search,
    cut_message,
)
from fairseq_deepnet.tools.translation.stream import STANDARD_INPUT, translated, windows_of

if TYPE_CHECKING:
    from fairseq_deepnet.tools.trained_model import TrainedModel

# An exported folder needs neither torch nor fairseq, which take seconds to import: only the
# functions that do need them import them.

HALF: Final = ("--bf16", "--fp16")
"""fairseq-generate's, which this plugin's models both follow."""


@dataclass
class Opened:
    """An engine, the direction it is to work in, and what it is."""

    engine: Engine
    direction: Direction
    what: str


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
    gpus: str = "all"
    spm: str | None = None
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

    from fairseq_deepnet.tools.export.export import export_for_ctranslate2
    from fairseq_deepnet.tools.trained_model import choose_model

    model = choose_model(target, options.average)
    if options.engine == "ctranslate2":
        quantization = options.quantization or QUANTIZATION
        folder = export_for_ctranslate2(model, options.data, quantization, options.spm)
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
        cpu=options.gpus == "0",
    )
    record = engine.record
    only = None if engine.tokens else Direction(record["source"], record["target"])
    return Opened(
        engine,
        choose_direction(only, record["languages"], options),
        f"{shown(folder)}, ctranslate2 {compute_type or record['quantization']}",
    )


def _on_fairseq(model: TrainedModel, search: Search, options: EngineOptions) -> Opened:
    import torch

    from fairseq_deepnet.tools.trained_model import find_data
    from fairseq_deepnet.tools.translation.fairseq_engine import Translator

    data = find_data(model, options.data, options.spm)
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
    words += ["--batch-size", str(search.batch or BATCH), "--nbest", str(search.nbest)]
    words += options.generate_options
    on_cpu = options.gpus == "0" or not torch.cuda.is_available()
    if on_cpu and "--bf16" in options.generate_options and (remark := devices.bf16_remark()):
        say(remark)
    return Opened(
        Translator(model.path, data, words, cpu=options.gpus == "0"),
        direction,
        f"{shown(model.path)}, fairseq",
    )


def choose_direction(
    only: Direction | None, languages: Sequence[str], options: EngineOptions
) -> Direction:
    """Return the direction that was asked for, or the model's only one.

    Raises ValueError for one that the model does not have, or where it has many and none is named.
    """
    asked = {"src": options.source, "tgt": options.target}
    if only is not None:
        for (name, given), has in zip(asked.items(), only, strict=True):
            if given not in (None, has):
                raise ValueError(f"--{name} {given}: the model translates {only}")
        return only
    if None in asked.values():
        raise ValueError(
            f"the model has many directions: name --src and --tgt ({', '.join(languages)})"
        )
    for given in asked.values():
        if given not in languages:
            raise ValueError(f"the model knows no {given}; it knows {', '.join(languages)}")
    return Direction.parse(f"{options.source}-{options.target}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet translate`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", type=Path, help="run, checkpoint, or folder of deepnet export")
    parser.add_argument(
        "files", nargs="*", type=Path, help="raw text, plain or .gz (- or none: standard input)"
    )
    parser.add_argument("--out", type=Path, help="file of translations (standard output)")
    parser.add_argument(
        "--engine", choices=ENGINES, help="fairseq for a run; ctranslate2 exports it first, once"
    )
    parser.add_argument(
        "--src",
        dest="source",
        metavar="SRC",
        help="of a model of many directions: from which language",
    )
    parser.add_argument("--tgt", dest="target", metavar="TGT", help="and into which")
    parser.add_argument("--beam", type=int, default=Search.beam, help="beam size (%(default)s)")
    parser.add_argument(
        "--lenpen", type=float, default=Search.lenpen, help="length penalty (%(default)g)"
    )
    parser.add_argument(
        "--batch-sentences",
        type=int,
        help=f"sentences per batch ({BATCH}; of ctranslate2 on a CPU {CPU_BATCH})",
    )
    parser.add_argument(
        "--nbest", type=int, default=Search.nbest, help="translations a line (%(default)s)"
    )
    parser.add_argument("--scores", action="store_true", help="score and tab before each line")
    parser.add_argument("--threads", type=int, help="cores to use (all, or OMP_NUM_THREADS)")
    parser.add_argument(
        "--quantization",
        metavar="TYPE",
        help=f"ctranslate2: int8, float32 ... of a run's export ({QUANTIZATION}); of a folder: to"
        " compute in",
    )
    precision = parser.add_mutually_exclusive_group()
    for name in HALF:
        precision.add_argument(
            name, action="store_true", help=f"fairseq: compute in {name.strip('-')} (fp32)"
        )
    parser.add_argument("--window", type=int, help=f"lines held at once ({WINDOW} a thread)")
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument(
        "--strict", action="store_true", help="stop at a line that is not UTF-8 (default: U+FFFD)"
    )
    parser.add_argument("--gpus", choices=("all", "0"), default="all", help="0 is the CPU (all)")
    parser.add_argument("--spm", metavar="FILE", help=SPM_HELP)


def run(args: argparse.Namespace) -> int:
    """Translate all lines."""
    search = Search(args.beam, args.lenpen, args.batch_sentences, args.nbest)
    files = args.files or [STANDARD_INPUT]
    _refuse_bad(args, files)
    typed = files == [STANDARD_INPUT] and sys.stdin.isatty()
    threads = args.threads or devices.threads_of(1, devices.all_cores())
    names = EngineOptions.__annotations__
    given = {name: value for name, value in vars(args).items() if name in names}
    given |= {"threads": threads, "at_once": typed}
    half = tuple(name for name in HALF if getattr(args, name.strip("-")))
    options = EngineOptions(**given, generate_options=half)
    opened = open_engine(args.model, search, options)
    output = stream.Output(args.out)
    say(f"{opened.direction}: {opened.what}, {threads} thread{'s' * (threads > 1)}")
    if typed:
        say("a sentence a line; Ctrl-D ends")
    decoder = stream.Utf8ReplacingDecoder()
    text = decode if args.strict else decoder
    windows = windows_of(files, args.window or WINDOW * threads, text=text)
    pause = 1 if sys.stderr.isatty() else 10
    bar = tqdm(unit=" lines", mininterval=pause, delay=pause, disable=typed)
    try:
        for found in translated(opened.engine, windows, opened.direction, args.nbest):
            output.write(formatted(found, output.done + 1, args.nbest, args.scores), len(found))
            bar.update(len(found))
    finally:  # also at a line that cannot be read
        bar.close()
        if opened.engine.cut:
            say(cut_message(opened.engine.cut))
        if decoder.count:
            say(decoder.message())
    output.finish()
    return 0


def formatted(found: Sequence[list[Hypothesis]], first: int, nbest: int, scores: bool) -> list[str]:
    """Return lines: TEXT, SCORE tab TEXT, or of several translations NUMBER tab SCORE tab TEXT;
    `first` is the number of the first line in the input, from 1.
    """
    if nbest > 1:
        return [
            f"{number}\t{one.score:.4f}\t{one.text}"
            for number, hypotheses in enumerate(found, first)
            for one in hypotheses
        ]
    best = [hypotheses[0] for hypotheses in found]
    return [f"{one.score:.4f}\t{one.text}" if scores else one.text for one in best]


def _refuse_bad(args: argparse.Namespace, files: Sequence[Path]) -> None:
    """Refuse what would only be found after the model is loaded."""
    if args.files == [] and args.model.is_file() and args.model.suffix not in (".pt", ""):
        raise ValueError(
            f"{args.model} is no checkpoint (.pt): name the model first, as in"
            f" deepnet translate RUN {args.model}"
        )
    for path in files:
        if path.is_dir():
            raise ValueError(f"{path} is a folder: name the files in it that hold text")
        if path != STANDARD_INPUT and not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
    for name in ("threads", "window"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)}; at least 1 is needed")
    if args.out is not None and args.out.resolve() in {path.resolve() for path in files}:
        raise ValueError(f"--out {args.out} is the input; choose another file")
