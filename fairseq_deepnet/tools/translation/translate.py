"""Translate raw text with a run, a checkpoint or an exported model.

The command reads files or standard input, one sentence per line, and writes the translations in the
same order. Empty lines stay empty. Bytes that are not UTF-8 become U+FFFD. The file that --out
names is created only when all lines are translated.
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from tqdm import tqdm

from fairseq_deepnet.errors import positive, real
from fairseq_deepnet.files import say, shown, whole
from fairseq_deepnet.tools import devices
from fairseq_deepnet.tools.corpora.folder import SPM_HELP, Direction
from fairseq_deepnet.tools.corpora.text import decode, raw_lines
from fairseq_deepnet.tools.export import MODEL
from fairseq_deepnet.tools.translation import engines

STANDARD_INPUT: Final = Path("-")


def open_engine(args: argparse.Namespace) -> tuple[engines.Engine, Direction, str]:
    """Load the model; return the engine, the direction, and a description.

    CTranslate2 runs models exported by `deepnet export --to ctranslate2`; fairseq runs those in run
    folders and checkpoints.

    Raises:
        FileNotFoundError: if there is no such model.
        ValueError: if the options do not fit the model.
    """
    batch, nbest = args.batch_sentences, args.nbest or 1
    if nbest > args.beam:
        raise ValueError(f"--nbest {nbest} must not exceed --beam {args.beam}")
    half = [f"--{name}" for name in ("bf16", "fp16") if getattr(args, name)]
    if (args.model / MODEL).is_file():
        if args.data is not None or args.spm or args.average or half:
            names = "--data, --spm, --average, --bf16 and --fp16"
            raise ValueError(f"{shown(args.model)} is exported: {names} need a run")
        exported = engines.CTranslate2Model(
            *(args.model, args.beam, args.lenpen, batch, nbest, args.threads),
            at_once=args.window == 1,
            cpu=args.gpus == "0",
        )
        record = exported.record
        only = None if exported.tokens else Direction(record["source"], record["target"])
        direction = choose_direction(only, record["languages"], args.src, args.tgt)
        return exported, direction, f"{shown(args.model)}, ctranslate2 {record['quantization']}"
    import torch

    from fairseq_deepnet.tools.trained_model import choose_model, find_data

    model = choose_model(args.model, args.average)
    data = find_data(model, args.data, args.spm)
    if data.is_monolingual or data.is_moses:
        raise ValueError(f"{shown(data.path)} contains no language pairs in sentencepiece subwords")
    model.make()
    only = None if data.is_multilingual else Direction(*data.languages)
    direction = choose_direction(only, data.languages, args.src, args.tgt)
    torch.set_num_threads(args.threads)
    options = ["--beam", str(args.beam), "--lenpen", f"{args.lenpen:g}", *half]
    options += ["--batch-size", str(batch or engines.BATCH), "--nbest", str(nbest)]
    translator = engines.Translator(model.path, data, options, cpu=args.gpus == "0")
    return translator, direction, f"{shown(model.path)}, fairseq"


def choose_direction(
    only: Direction | None, languages: Sequence[str], src: str | None, tgt: str | None
) -> Direction:
    """Return the direction from `src` to `tgt`, or by default the model's only direction.

    Raises ValueError if the model does not translate in this direction.
    """
    if only is not None:
        if (src or only.source, tgt or only.target) != only:
            raise ValueError(f"--src {src}, --tgt {tgt}: the model translates {only}")
        return only
    if src not in languages or tgt not in languages:
        raise ValueError(f"--src {src}, --tgt {tgt}: choose two of {', '.join(languages)}")
    return Direction.parse(f"{src}-{tgt}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet translate`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("model", type=Path, help="run folder, checkpoint, or folder written by `deepnet export`")
    files = "files of raw text, plain or .gz; - is standard input (-)"
    add("files", nargs="*", type=Path, help=files)
    add("--out", type=Path, help="file for the translations (standard output)")
    add("--src", help="source language of a multilingual model")
    add("--tgt", help="target language")
    add("--beam", type=positive, default=5, help="beam size (5)")
    add("--lenpen", type=real, default=1.0, help="length penalty (1)")
    batch = f"sentences per batch ({engines.BATCH}; ctranslate2 on a CPU: {engines.CPU_BATCH})"
    add("--batch-sentences", type=positive, help=batch)
    nbest = "number of translations per line, printed with line number and score"
    add("--nbest", type=positive, metavar="N", help=nbest)
    add("--threads", type=positive, help="number of CPU threads (OMP_NUM_THREADS, or all cores)")
    precision = parser.add_mutually_exclusive_group()
    for name in ("bf16", "fp16"):
        precision.add_argument(f"--{name}", action="store_true", help=f"fairseq: {name} (fp32)")
    window = f"lines to read before translating ({engines.WINDOW} per thread; 1 in a terminal)"
    add("--window", type=positive, help=window)
    add("--data", type=Path, help="data folder (the run's)")
    add("--average", type=int, default=0, metavar="N", help="average the last N checkpoints (0)")
    add("--gpus", choices=("all", "0"), default="all", help="0 translates on the CPU (all)")
    add("--spm", metavar="FILE", help=SPM_HELP)


def run(args: argparse.Namespace) -> int:
    """Translate all lines of the files, or of standard input."""
    files = args.files or [STANDARD_INPUT]
    for path in files:
        if path != STANDARD_INPUT and (path.is_dir() or not path.exists()):
            raise FileNotFoundError(f"there is no text file {path}")
    is_typed = files == [STANDARD_INPUT] and sys.stdin.isatty()
    args.threads = args.threads or devices.threads_of(1, devices.all_cores())
    args.window = args.window or (1 if is_typed else engines.WINDOW * args.threads)
    lines = (
        decode(raw, path, number, "replace")
        for path in files
        # /dev/stdin would start again from the beginning of a redirected file
        for number, raw in enumerate(
            sys.stdin.buffer if path == STANDARD_INPUT else raw_lines(path), start=1
        )
    )
    with output(args.out) as stream:
        engine, direction, description = open_engine(args)
        say(f"{direction}: {description}, threads: {args.threads}")
        number = replaced = 0
        with tqdm(unit=" lines", mininterval=2, delay=2, disable=is_typed) as bar:
            for window in iter(lambda: list(itertools.islice(lines, args.window)), []):
                for results in engine.nbest(window, direction, args.nbest or 1):
                    number += 1
                    for text, score in results:
                        scored = f"{number}\t{score:.4f}\t" if args.nbest else ""
                        stream.write(f"{scored}{text}\n".encode())
                stream.flush()
                replaced += sum("\ufffd" in line for line in window)
                bar.update(len(window))
    if replaced:
        say(f"lines with U+FFFD, the replacement for invalid UTF-8: {replaced:,}")
    if engine.cut:
        say(f"truncated {engine.cut:,} lines that were too long for the model")
    return 0


@contextlib.contextmanager
def output(path: Path | None) -> Iterator[BinaryIO]:
    """Yield standard output, or a temporary file that replaces `path` when it is complete."""
    if path is None:
        yield sys.stdout.buffer
        return
    with whole(path) as part, part.open("wb") as stream:
        yield stream
