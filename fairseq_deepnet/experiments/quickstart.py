"""`deepnet quickstart`: DeepNorm and its Post-LN twin on the sample corpus, trained side by side.

It is the sweep configs/sweeps/quickstart.yaml, whose two cells are scored and compared. Every
sentence of the last page follows from the numbers of both runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fairseq_deepnet.experiments import grid, results, sweep
from fairseq_deepnet.experiments.cell import call
from fairseq_deepnet.experiments.results import Run, Status
from fairseq_deepnet.files import ROOT, say, shown, write_text
from fairseq_deepnet.tools import tables
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.devices import all_cores, visible_gpus

MODELS: Final = ("DeepNorm", "Post-LN")
_EXAMPLES: Final = 4
_CLOSE: Final = 2.0
"""BLEU: less is no difference worth a word."""
_NOTHING: Final = 10.0
"""BLEU: less is no translation."""
_HALF: Final = 0.5
"""Of the other's BLEU: less is a failure to learn."""
WHERE_NEXT: Final = """
Loss curves: {}

Where to go next:
  DEPTH=6 bash scripts/quickstart.sh              the same comparison, less deep
  bash scripts/train_multi30k.sh                  real text: Multi30k German-English
  bash scripts/sweep.sh compare_methods           every residual scheme, side by side
  SRC=.. TGT=.. TRAIN=.. VALID=.. bash scripts/preprocess.sh      your own text"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet quickstart`."""
    add = parser.add_argument
    add("--depth", type=int, default=18, help="layers of the encoder and of the decoder (18)")
    add("--seed", type=int, default=1, help="of initialisation and batches (1)")
    add("--updates", type=int, help="training length (configs/sample.yaml)")
    add("--data", type=Path, default=ROOT / "data/sample.de-en", help="data (data/sample.de-en)")
    out = "folder of the results (runs/quickstart; other depths, seeds and lengths are added)"
    add("--out", type=Path, help=out)
    add("--gpus", default="all", help="0: the CPU; else one GPU per model (all visible)")
    add("--threads", type=int, help="CPU threads of each training (half of the cores)")
    add("--dry-run", action="store_true", help="print the plan and end")


def run(args: argparse.Namespace) -> int:
    """Make the corpus, train and score both models, draw their curves, print the page."""
    for name in ("depth", "seed", "updates"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)}: at least 1 is needed")
    words = [f"encoder-layers={args.depth}", f"decoder-layers={args.depth}"]
    words += [] if args.updates is None else [f"max-update={args.updates}"]
    folder = args.out or ROOT / "runs" / _folder_name(args)
    definition = grid.load_sweep("quickstart")
    data = {"recipe.data": shown(args.data)}
    cells = grid.expand(grid.override(definition, words, forced=data), [args.seed])
    sweep.refuse_changes(folder, cells)
    plan = sweep.plan_text(f"{definition.title}: {shown(folder)}", cells, folder)
    if args.dry_run:
        print(plan, end="")
        return 0
    began = time.monotonic()
    from fairseq_deepnet.tools.corpora import preprocess  # loads sentencepiece
    from fairseq_deepnet.tools.plotting import plot

    say(f"1/4 the sample corpus, {shown(args.data)}")
    status = call(preprocess, ["sample", "--out", str(args.data)])
    if status:
        return status
    visible, gpus = visible_gpus(), args.gpus
    if gpus == "all":
        gpus = "2" if len(visible) > 1 else "0" if not visible else "1"
    parallel = 1 if gpus == "1" else 2
    shares = sweep.divide(gpus, parallel, visible, all_cores(), args.threads)
    say(f"2/4 training {args.depth}L-{args.depth}L, DeepNorm and Post-LN, for some minutes")
    places = [folder / cell.name for cell in cells]
    sweep.train(definition, cells, folder, shares, retry="failed", watch=_Progress(places))
    deep, twin = map(read_result, places, MODELS)
    if not deep.run.status.is_result or deep.run.status is Status.FAILED:
        log = shown(places[0] / sweep.CONSOLE)
        raise ValueError(f"the DeepNorm model failed: {deep.run.reason}; see {log}")
    say("3/4 both are scored; 4/4 drawing the loss curves")
    depth, image = f"{args.depth}L-{args.depth}L", folder / "curves.png"
    title = f"Sample corpus, German-English, {depth}: DeepNorm and its Post-LN twin"
    call(plot, [*map(str, places), "--out", str(image), "--title", title])
    texts = [list(read_lines(args.data / f"text/test.{name}")) for name in ("de", "en")]
    page = summary(deep, twin, depth, (texts[0], texts[1])) + "\n" + WHERE_NEXT.format(image) + "\n"
    write_text(folder / "summary.txt", page)
    print(page, end="")
    seconds = time.monotonic() - began
    say(f"took {seconds // 60:.0f} min {seconds % 60:.0f} s")
    return 0


def _folder_name(args: argparse.Namespace) -> str:
    name = "quickstart" + (f"_{args.depth}l" if args.depth != 18 else "")
    name += f"_seed{args.seed}" if args.seed != 1 else ""
    return name + (f"_{args.updates}updates" if args.updates is not None else "")


class _Progress:
    """Prints the last update and loss of both runs, from time to time."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders, self.shown = folders, time.monotonic()

    def __call__(self) -> None:
        is_terminal = sys.stderr.isatty()
        if time.monotonic() - self.shown < (2 if is_terminal else 20):
            return
        self.shown = time.monotonic()
        parts = []
        for folder in self.folders:
            losses = results.read_run(folder).train_nll
            at = f"update {losses[-1][0]:4}, nll {losses[-1][1]:6.3f}" if losses else "starting"
            parts.append(f"{folder.name}: {at}")
        start, end = ("\r", "") if is_terminal else ("", "\n")
        print(f"{start}{'   '.join(parts)}", end=end, file=sys.stderr, flush=True)


class Result(NamedTuple):
    """A run with its name for people, its score, and its translations."""

    name: str
    run: Run
    bleu: float | None = None
    chrf: float | None = None
    hypotheses: tuple[str, ...] = ()


def read_result(folder: Path, name: str) -> Result:
    """Read a run folder with its score and hypotheses."""
    run = results.read_run(folder)
    if run.score is None:
        return Result(name, run)
    hypotheses = tuple(read_lines((folder / run.score.file).with_suffix(".txt")))
    return Result(name, run, run.score.values["bleu"], run.score.values["chrf"], hypotheses)


def verdict(deep: Result, twin: Result) -> str:
    """Return one paragraph that the numbers of both allow, and no more."""
    for one in (deep, twin):
        if one.bleu is None:
            return f"{one.name} ended early and left no model to score: {one.run.reason}"
    assert deep.bleu is not None  # for the type checker
    assert twin.bleu is not None
    if max(deep.bleu, twin.bleu) < _NOTHING:
        return (
            f"Neither model learnt to translate in {deep.run.updates:,} updates: both are below"
            f" {_NOTHING:g} BLEU. A lower lr (configs/sample.yaml), another SEED or DEPTH may help."
        )
    gap = deep.bleu - twin.bleu
    if abs(gap) < _CLOSE:
        return (
            "Both models trained at this depth: they are within "
            f"{_CLOSE:g} BLEU of each other. A larger DEPTH may tell them apart."
        )
    ahead, behind = (deep, twin) if gap > 0 else (twin, deep)
    if min(deep.bleu, twin.bleu) < _HALF * max(deep.bleu, twin.bleu):
        return (
            f"With the same seed, data and options, {ahead.name} learnt to translate in"
            f" {ahead.run.updates:,} updates and {behind.name} did not."
        )
    return (
        f"Both models trained at this depth; with the same seed, data and options {ahead.name} is"
        f" {abs(gap):.1f} BLEU ahead after {ahead.run.updates:,} updates."
    )


def summary(deep: Result, twin: Result, depth: str, texts: tuple[list[str], list[str]]) -> str:
    """Return the page.

    Args:
        depth: for instance 18L-18L
        texts: source and reference lines of the test set
    """

    def cell(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    rows = [["", "BLEU", "chrF", "train nll", "valid nll", "updates"]]
    for one in (deep, twin):
        curves = (one.run.train_nll, one.run.valid_nll)
        losses = [cell(points[-1][1] if points else None, 2) for points in curves]
        rows.append([one.name, cell(one.bleu), cell(one.chrf), *losses, f"{one.run.updates:,}"])
    sources, references = texts
    score = deep.run.score or twin.run.score
    signature = score.signatures["bleu"] if score else ""
    lines = [
        "",
        f"{depth}, sample corpus, German to English, {len(sources):,} held-out test sentences",
        "",
        tables.text(rows),
        f"(nll: negative log-likelihood, bits per token; BLEU: {signature})",
        "",
        verdict(deep, twin),
        "",
        "Some translations:",
    ]
    step = max(1, len(sources) // _EXAMPLES)
    for index in range(0, min(len(sources), step * _EXAMPLES), step):
        lines += ["", f"  source     {sources[index]}"]
        for result in (deep, twin):
            text = result.hypotheses[index] if result.hypotheses else "(no model)"
            lines.append(f"  {result.name:10} {text}")
        lines.append(f"  reference  {references[index]}")
    return "\n".join(lines)
