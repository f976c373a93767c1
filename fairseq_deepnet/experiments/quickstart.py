"""`deepnet quickstart`: train DeepNorm and its Post-LN twin on the sample corpus side by side.

This is the sweep configs/sweeps/quickstart.yaml. Its two cells are scored and compared, and every
sentence of the summary follows from their numbers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.experiments import grid, results, sweep
from fairseq_deepnet.experiments.cell import call
from fairseq_deepnet.experiments.results import Run, Status
from fairseq_deepnet.files import ROOT, say, shown, write_text
from fairseq_deepnet.tools import tables
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.devices import all_cores, visible_gpus

MODELS: Final = ("DeepNorm", "Post-LN")
_EXAMPLES: Final = 4
_NOTHING: Final = 10.0
"""BLEU below which a model does not translate."""
_HALF: Final = 0.5
"""Fraction of the other model's BLEU below which a model did not learn."""
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
    """Build the corpus, train and score both models, draw their curves, print the summary."""
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
    sweep.train(definition, cells, folder, shares, watch=_Progress(places))
    deep, twin = map(results.read_run, places)
    if deep.status not in (Status.DONE, Status.DIVERGED):
        log = shown(places[0] / sweep.CONSOLE)
        raise ValueError(f"the DeepNorm model failed: {deep.reason}; see {log}")
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
    """Prints the last update and loss of both runs periodically."""

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


def verdict(deep: Run, twin: Run) -> str:
    """Return a paragraph that the numbers of both runs support."""
    scores = []
    for name, run in zip(MODELS, (deep, twin), strict=True):
        if run.score is None:
            return f"{name} ended early and left no model to score: {run.reason}"
        scores.append(run.score.values["bleu"])
    updates = f"{deep.updates:,} updates"
    if max(scores) < _NOTHING:
        return (
            f"Neither model learnt to translate in {updates}: both are below {_NOTHING:g} BLEU."
            " A lower lr (configs/sample.yaml), another SEED or DEPTH may help."
        )
    ahead, behind = MODELS if scores[0] > scores[1] else MODELS[::-1]
    if min(scores) < _HALF * max(scores):
        return (
            f"With the same seed, data and options, {ahead} learnt to translate in {updates}"
            f" and {behind} did not."
        )
    return (
        f"Both models trained at this depth; with the same seed, data and options {ahead} is"
        f" {abs(scores[0] - scores[1]):.1f} BLEU ahead after {updates}."
    )


def hypotheses(run: Run) -> list[str]:
    """Return the translations of a run's test set; an empty list if it is not scored."""
    return list(read_lines((run.folder / run.score.file).with_suffix(".txt"))) if run.score else []


def summary(deep: Run, twin: Run, depth: str, texts: tuple[list[str], list[str]]) -> str:
    """Return the summary.

    Args:
        depth: for example 18L-18L
        texts: source and reference lines of the test set
    """

    def cell(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    rows = [["", "BLEU", "chrF", "train nll", "valid nll", "updates"]]
    for name, run in zip(MODELS, (deep, twin), strict=True):
        curves = (run.train_nll, run.valid_nll)
        losses = [cell(points[-1][1] if points else None, 2) for points in curves]
        values = run.score.values if run.score else {}
        scores = [cell(values.get(metric)) for metric in ("bleu", "chrf")]
        rows.append([name, *scores, *losses, f"{run.updates:,}"])
    sources, references = texts
    score = deep.score or twin.score
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
    translations = (hypotheses(deep), hypotheses(twin))
    step = max(1, len(sources) // _EXAMPLES)
    for index in range(0, min(len(sources), step * _EXAMPLES), step):
        lines += ["", f"  source     {sources[index]}"]
        for name, lines_of in zip(MODELS, translations, strict=True):
            lines.append(f"  {name:10} {lines_of[index] if lines_of else '(no model)'}")
        lines.append(f"  reference  {references[index]}")
    return "\n".join(lines)
