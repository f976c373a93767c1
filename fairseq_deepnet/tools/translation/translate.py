"""`deepnet translate`: translate raw text with a run, a checkpoint or an exported model.

Reads files or standard input, one sentence per line, and writes one line for each, in order. Empty
lines stay empty. Bytes that are not UTF-8 become U+FFFD. With --out, the file appears when it is
complete.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from tqdm import tqdm

from fairseq_deepnet.files import say, shown, whole
from fairseq_deepnet.tools import devices
from fairseq_deepnet.tools.corpora.folder import SPM_HELP, Direction
from fairseq_deepnet.tools.corpora.text import decode, raw_lines
from fairseq_deepnet.tools.export import is_exported
from fairseq_deepnet.tools.translation import engines

STANDARD_INPUT: Final = Path("/dev/stdin")


def open_engine(args: argparse.Namespace) -> tuple[engines.Engine, Direction, str]:
    """Load the model; return the engine, the direction, and a description.

    A folder of `deepnet export --to ctranslate2` runs on CTranslate2; a run or a checkpoint on
    fairseq.

    Raises FileNotFoundError for a missing model, ValueError for options that contradict it.
    """
    batch, nbest = args.batch_sentences, args.nbest or 1
    if not 1 <= nbest <= args.beam:
        raise ValueError(f"--nbest {nbest} of a beam of {args.beam}: 1 to --beam")
    half = [f"--{name}" for name in ("bf16", "fp16") if getattr(args, name)]
    if is_exported(args.model):
        if args.data is not None or args.average or half:
            raise ValueError(
                f"{shown(args.model)} is exported: --data, --average, --bf16 and --fp16 need a run"
            )
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
        raise ValueError(f"{shown(data.path)} is not of language pairs and sentencepiece")
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
    """Return the direction from `src` into `tgt`, or the only one; ValueError for others."""
    if only is not None:
        if (src or only.source, tgt or only.target) != only:
            raise ValueError(f"--src {src}, --tgt {tgt}: the model translates {only}")
        return only
    if src not in languages or tgt not in languages:
        raise ValueError(f"--src {src}, --tgt {tgt}: name two of {', '.join(languages)}")
    return Direction.parse(f"{src}-{tgt}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet translate`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", type=Path, help="run, checkpoint, or folder of deepnet export")
    files = "raw text, plain or .gz (- or none: standard input)"
    parser.add_argument("files", nargs="*", type=Path, help=files)
    parser.add_argument("--out", type=Path, help="file of translations (standard output)")
    parser.add_argument("--src", help="source language of a model of many directions")
    parser.add_argument("--tgt", help="target language")
    parser.add_argument("--beam", type=int, default=5, help="beam size (5)")
    parser.add_argument("--lenpen", type=float, default=1.0, help="length penalty (1)")
    batch = f"sentences per batch ({engines.BATCH}; of ctranslate2 on a CPU {engines.CPU_BATCH})"
    parser.add_argument("--batch-sentences", type=int, help=batch)
    nbest = "translations per line, each with its number and score (one without these)"
    parser.add_argument("--nbest", type=int, metavar="N", help=nbest)
    parser.add_argument("--threads", type=int, help="cores to use (all, or OMP_NUM_THREADS)")
    precision = parser.add_mutually_exclusive_group()
    for name in ("bf16", "fp16"):
        precision.add_argument(f"--{name}", action="store_true", help=f"fairseq: {name} (fp32)")
    window = f"lines to read before translating ({engines.WINDOW} per thread; 1 if typed)"
    parser.add_argument("--window", type=int, help=window)
    parser.add_argument("--data", type=Path, help="data folder (as the run recorded it)")
    parser.add_argument("--average", type=int, default=0, help="average the last N checkpoints (0)")
    parser.add_argument("--gpus", choices=("all", "0"), default="all", help="0 is the CPU (all)")
    parser.add_argument("--spm", metavar="FILE", help=SPM_HELP)


def run(args: argparse.Namespace) -> int:
    """Translate all lines."""
    files = [STANDARD_INPUT if str(path) == "-" else path for path in args.files or ["-"]]
    is_typed = files == [STANDARD_INPUT] and sys.stdin.isatty()
    args.threads = args.threads or devices.threads_of(1, devices.all_cores())
    args.window = args.window or (1 if is_typed else engines.WINDOW * args.threads)
    engine, direction, description = open_engine(args)
    say(f"{direction}: {description}, threads: {args.threads}")
    lines = (
        decode(raw, path, number, "replace")
        for path in files
        for number, raw in enumerate(raw_lines(path), start=1)
    )
    done, bar = 0, tqdm(unit=" lines", mininterval=2, delay=2, disable=is_typed)
    with output(args.out) as stream, bar:
        for window in iter(lambda: list(itertools.islice(lines, args.window)), []):
            for results in engine.nbest(window, direction, args.nbest or 1):
                done += 1
                for text, score in results:
                    scored = f"{done}\t{score:.4f}\t" if args.nbest else ""
                    stream.write(f"{scored}{text}\n".encode())
            stream.flush()
            bar.update(len(window))
    if engine.cut:
        say(f"{engine.cut:,} lines were too long for the model, and cut")
    return 0


@contextlib.contextmanager
def output(path: Path | None) -> Iterator[BinaryIO]:
    """Yield standard output, or a file that appears under its name when it is complete."""
    if path is None:
        yield sys.stdout.buffer
        return
    with whole(path) as part, part.open("wb") as stream:
        yield stream
