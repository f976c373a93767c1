"""`deepnet quickstart`: train a DeepNorm and a Post-LN model of equal depth on the sample corpus.

The command runs the sweep configs/sweeps/quickstart.yaml, and prints scores, losses and some
translations.
"""

import argparse
import time
from pathlib import Path
from typing import Final

from tqdm import tqdm

from fairseq_deepnet.errors import positive
from fairseq_deepnet.experiments import grid, results, sweep
from fairseq_deepnet.experiments.results import Run, Status
from fairseq_deepnet.files import ROOT, say, shown, write_text
from fairseq_deepnet.tools import tables
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.devices import all_cores, visible_gpus

MODELS: Final = ("DeepNorm", "Post-LN")
_EXAMPLES: Final = 4
WHERE_NEXT: Final = """
Loss curves: {}

Where to go next:
  DEPTH=6 bash scripts/quickstart.sh              the same comparison with shallower models
  bash scripts/train_multi30k.sh                  real text: Multi30k German-English
  bash scripts/sweep.sh compare_methods           every residual scheme, side by side
  SRC=.. TGT=.. TRAIN=.. VALID=.. bash scripts/preprocess.sh      your own text
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `deepnet quickstart`."""
    add = parser.add_argument
    add("--depth", type=positive, default=18, help="layers per side (18)")
    add("--seed", type=int, default=1, help="seed of initialisation and batches (1)")
    add("--data", type=Path, default=ROOT / "data/sample.de-en", help="corpus (data/sample.de-en)")
    out = "folder for the results (runs/quickstart, with another depth or seed appended)"
    add("--out", type=Path, help=out)
    add("--gpus", default="all", help="number of GPUs, one per model; 0 uses the CPU (all visible)")
    add("--dry-run", action="store_true", help="only print the plan")


def run(args: argparse.Namespace) -> int:
    """Build the corpus, train and score both models, draw their losses and print a summary."""
    from fairseq_deepnet.tools.corpora import preprocess  # loads sentencepiece
    from fairseq_deepnet.tools.plotting import plot

    words = [f"encoder-layers={args.depth}", f"decoder-layers={args.depth}"]
    name = f"quickstart_{args.depth}l" if args.depth != 18 else "quickstart"
    name += f"_seed{args.seed}" if args.seed != 1 else ""
    folder = args.out or ROOT / "runs" / name
    definition = grid.load_sweep("quickstart")
    changed = grid.override(definition, words, {"recipe.data": shown(args.data)})
    cells = grid.expand(changed, [args.seed])
    sweep.refuse_changes(folder, cells)
    if args.dry_run:
        print(sweep.plan_text(f"{definition.title}: {shown(folder)}", cells, folder), end="")
        return 0
    say(f"building the sample corpus in {shown(args.data)}")
    status = sweep.call(preprocess, ["sample", "--out", str(args.data)])
    if status:
        return status
    visible, gpus = visible_gpus(), args.gpus
    if gpus == "all":
        gpus = str(min(2, len(visible)))
    shares = sweep.divide(gpus, 1 if gpus == "1" else 2, visible, all_cores())
    depth = f"{args.depth}L-{args.depth}L"
    say(f"training {depth} models, DeepNorm and Post-LN, for several minutes")
    places = [folder / cell.name for cell in cells]
    length = int(str(cells[0].resolve().options["max-update"]))
    with tqdm(total=length, unit="update", disable=None) as bar:

        def watch() -> None:
            if not bar.disable and time.time() - bar.last_print_t > 2:
                bar.update(results.read_run(places[0]).updates - bar.n)

        sweep.train(definition, cells, folder, shares, watch)
    deep, twin = map(results.read_run, places)
    for name, model in zip(MODELS, (deep, twin), strict=True):
        if model.status not in (Status.DONE, Status.DIVERGED):
            log = shown(model.folder / sweep.CONSOLE)
            raise ValueError(f"the {name} model failed: {model.reason}; see {log}")
    image = folder / "curves.png"
    title = f"Sample corpus, German-English, {depth}: DeepNorm and its Post-LN twin"
    sweep.call(plot, [*map(str, places), "--out", str(image), "--title", title])
    texts = [list(read_lines(args.data / f"text/test.{name}")) for name in ("de", "en")]
    page = summary(deep, twin, depth, (texts[0], texts[1])) + WHERE_NEXT.format(image)
    write_text(folder / "summary.txt", page)
    print(page, end="")
    return 0


def summary(deep: Run, twin: Run, depth: str, texts: tuple[list[str], list[str]]) -> str:
    """Return scores, losses and some translations as text.

    Args:
        depth: numbers of encoder and decoder layers, such as 18L-18L
        texts: source and reference lines of the test set
    """
    rows = [["", "BLEU", "chrF", "train nll", "valid nll", "updates"]]
    translations = []
    for name, run in zip(MODELS, (deep, twin), strict=True):
        values = run.score.values if run.score else {}
        scores = [f"{values[key]:.1f}" if key in values else "-" for key in ("bleu", "chrf")]
        curves = (run.train_nll, run.valid_nll)
        losses = [f"{points[-1][1]:.2f}" if points else "-" for points in curves]
        rows.append([name, *scores, *losses, f"{run.updates:,}"])
        file = (run.folder / run.score.file).with_suffix(".txt") if run.score else None
        translations.append(list(read_lines(file)) if file else [])
    sources, references = texts
    score = deep.score or twin.score
    signature = score.signatures["bleu"] if score else ""
    lines = [
        f"\n{depth}, sample corpus, German to English, {len(sources):,} held-out test sentences\n",
        tables.text(rows),
        f"(nll: negative log-likelihood, bits per token; BLEU: {signature})\n",
        "Some translations:",
    ]
    for index in range(0, len(sources), max(1, len(sources) // _EXAMPLES))[:_EXAMPLES]:
        lines.append(f"\n  source     {sources[index]}")
        for name, hypotheses in zip(MODELS, translations, strict=True):
            lines.append(f"  {name:10} {hypotheses[index] if hypotheses else '(no model)'}")
        lines.append(f"  reference  {references[index]}")
    return "\n".join(lines) + "\n"
