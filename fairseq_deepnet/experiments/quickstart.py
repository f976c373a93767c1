"""The last page of scripts/quickstart.sh: what was measured of two trained models, side by side.

Every sentence follows from the numbers of both runs; nothing is taken for granted about who wins.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from fairseq_deepnet.tools import tables
from fairseq_deepnet.tools.configs import recorded_config
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation.run_scores import read_score
from fairseq_deepnet.tools.plotting.curves import Curves, read_curves

MODELS = {"deepnorm": "DeepNorm", "post-ln": "Post-LN"}
_EXAMPLES = 4
_CLOSE = 2.0  # BLEU: less is no difference worth a word
_NOTHING = 10.0  # BLEU: less is no translation
_HALF = 0.5  # of the other's BLEU: less is a failure to learn
SCORE = "scores/test.checkpoint_best.beam5.lenpen1.max-len-a2.max-len-b10"
"""Score that scripts/quickstart.sh asks for."""
WHERE_NEXT = """
Loss curves: {}

Where to go next:
  DEPTH=6 bash scripts/quickstart.sh              the same comparison, less deep
  bash scripts/train_multi30k.sh                  real text: Multi30k German-English
  bash scripts/train_sample.sh --lr 5e-4          your own options, on this corpus
  SCHEME=pre-ln bash scripts/train_sample.sh      another residual scheme
  SRC=.. TGT=.. TRAIN=.. VALID=.. bash scripts/preprocess.sh      your own text"""


class Result(NamedTuple):
    """What one run gave; bleu, chrf and hypotheses are missing where it left no model."""

    name: str
    curves: Curves
    diverged: bool
    bleu: float | None = None
    chrf: float | None = None
    signature: str = ""
    hypotheses: tuple[str, ...] = ()

    @property
    def updates(self) -> int:
        """The last update in its log."""
        return max((update for update, _ in self.curves.train + self.curves.valid), default=0)


def read_result(run: Path, name: str) -> Result:
    """Read the log, the score and the hypotheses of a run folder."""
    try:
        curves = read_curves(run, "nll_loss")
    except (FileNotFoundError, ValueError):
        curves = Curves(name)  # it ended before its first line
    diverged = (run / "diverged").is_file()
    score = read_score(run, SCORE)
    if score is None:
        return Result(name, curves, diverged)
    hypotheses = tuple(read_lines(run / "scores" / score.facts["hypotheses"]))
    bleu, chrf = score.values["bleu"], score.values["chrf"]
    return Result(name, curves, diverged, bleu, chrf, score.signatures["bleu"], hypotheses)


def verdict(deep: Result, twin: Result) -> str:
    """Return one paragraph that the numbers of both allow, and no more."""
    if twin.diverged:
        return (
            f"{twin.name} diverged at about update {twin.updates:,}: its gradients were no longer"
            f" finite. {deep.name}, with the same seed, data and options, trained to the end."
        )
    if deep.bleu is None or twin.bleu is None:
        return f"{twin.name} ended early and left no model to score; its log says why."
    if max(deep.bleu, twin.bleu) < _NOTHING:
        return (
            f"Neither model learnt to translate in {deep.updates:,} updates: both are below"
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
            f" {ahead.updates:,} updates and {behind.name} did not."
        )
    return (
        f"Both models trained at this depth; with the same seed, data and options {ahead.name} is"
        f" {abs(gap):.1f} BLEU ahead after {ahead.updates:,} updates."
    )


def summary(deep: Result, twin: Result, depth: str, texts: tuple[list[str], list[str]]) -> str:
    """Return the whole page but its end.

    Args:
        depth: for instance 18L-18L.
        texts: source and reference lines of the test set.
    """

    def cell(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    rows = [["", "BLEU", "chrF", "train nll", "valid nll", "updates"]]
    for one in (deep, twin):
        losses = (
            points[-1][1] if points else None for points in (one.curves.train, one.curves.valid)
        )
        scores = (cell(one.bleu), cell(one.chrf), *(cell(loss, 2) for loss in losses))
        rows.append([one.name, *scores, f"{one.updates:,}"])
    sources, references = texts
    lines = [
        "",
        f"{depth}, sample corpus, German to English, {len(sources):,} held-out test sentences",
        "",
        tables.text(rows),
    ]
    signature = deep.signature or twin.signature
    lines += [f"(nll: negative log-likelihood, bits per token; BLEU: {signature})", ""]
    lines += [verdict(deep, twin), "", "Some translations:"]
    step = max(1, len(sources) // _EXAMPLES)
    for index in range(0, min(len(sources), step * _EXAMPLES), step):
        lines += ["", f"  source     {sources[index]}"]
        for result in (deep, twin):
            text = result.hypotheses[index] if result.hypotheses else "(no model)"
            lines.append(f"  {result.name:10} {text}")
        lines.append(f"  reference  {references[index]}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the page of a quickstart folder; `arguments` are FOLDER and DATA."""
    folder, data = Path(arguments[0]), Path(arguments[1])
    deep, twin = (read_result(folder / run, name) for run, name in MODELS.items())
    options = recorded_config(folder / "deepnorm").options
    depth = f"{options['encoder-layers']}L-{options['decoder-layers']}L"
    sources, references = (list(read_lines(data / f"text/test.{name}")) for name in ("de", "en"))
    print(summary(deep, twin, depth, (sources, references)))
    print(WHERE_NEXT.format(folder / "curves.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
