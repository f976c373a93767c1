"""Paired significance tests of BLEU differences between systems.

sacreBLEU's paired bootstrap resampling (Koehn, 2004) and paired approximate randomisation (Riezler
and Maxwell, 2005) test whether a difference would hold for other sentences. Runs that differ only
in their seed are one system, whose score is their mean corpus BLEU. When a test draws or swaps a
sentence, it does so for all seeds at once, because their translations are not independent.
"""

import json
import logging
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.results import RESULT, Status, fallbacks_of, find_runs, read_json
from fairseq_deepnet.files import ROOT, shown
from fairseq_deepnet.stock_names import MAY_DIFFER, in_stock_names
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.scores import decoding, read_score

DEFAULT: Final = "scores/test.checkpoint_best.beam5.lenpen1"
TESTS: Final = {"bootstrap": "bs", "randomisation": "ar"}
"""Name of a test -> sacreBLEU's name."""
NOTES: Final = (
    "bleu: mean over seeds, with the sample standard deviation",
    "p tells whether the difference would hold for other sentences translated by the same models, "
    "not for models trained with other seeds; it is not corrected for several systems",
)


class ScoredRun(NamedTuple):
    """A run's translations of a test set.

    Args:
        settings: the recipe and the options that affect the results, without the seed.
        hypotheses: detokenised translations, in corpus order.
        record: content of the score's JSON file.
    """

    folder: Path
    seed: str
    settings: str
    hypotheses: list[str]
    references: list[str]
    record: dict[str, Any]


class MeanOfSeeds:
    """Mean BLEU over seeds, as a metric for sacreBLEU's PairedTest.

    Each hypothesis is a tuple with one translation per seed.
    """

    def __init__(self, bleu: Any) -> None:
        self.bleu = bleu

    def get_signature(self) -> Any:
        return self.bleu.get_signature()

    def _extract_corpus_statistics(self, hypotheses: Any, references: Any) -> Any:
        seeds = zip(*hypotheses, strict=True)
        parts = [self.bleu._extract_corpus_statistics(list(seed), references) for seed in seeds]
        return np.concatenate([np.array(part, dtype=np.int64) for part in parts], axis=1)

    def _aggregate_and_compute(self, stats: Any) -> Any:
        return self._compute_score_from_stats(np.asarray(stats).sum(0))

    def _compute_score_from_stats(self, stats: Any) -> Any:
        from sacrebleu.metrics.base import Score

        # BLEU's statistics are two lengths, and the matches and the n-grams of each order
        parts = np.split(stats, len(stats) // (2 + 2 * self.bleu.max_ngram_order))
        scores = (self.bleu._compute_score_from_stats(part.tolist()).score for part in parts)
        return Score("BLEU", statistics.fmean(scores))


def compare(folders: Sequence[Path], score: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Compare each system with the first, on seeds that all share; return a table and its notes.

    Args:
        folders: run folders, or folders that contain run folders.
        score: name of the score in each run; by default, the score of a sweep's cell, or DEFAULT.

    Raises:
        ValueError: if fewer than two systems are scored, or the scores are not comparable.
    """
    from sacrebleu.significance import PairedTest

    notes, runs = list(NOTES), []
    for path in (path for folder in folders for path in find_runs(folder)):
        scored = read_scored_run(path, score)
        if scored is None:
            notes.append(f"{shown(path)} has no such score")
        else:
            runs.append(scored)
            notes += outdated(scored)
            result = read_json(path / RESULT)
            diverged = f" {result['reason']}" if result.get("status") == Status.DIVERGED else ""
            if note := diverged + fallbacks_of(path):
                notes.append(f"{shown(path)}{note}")
    for run in runs[1:]:
        if run.references != runs[0].references:
            raise ValueError(f"{run.folder} and {runs[0].folder} have different test sets")
        if run.record["bleu_signature"] != runs[0].record["bleu_signature"]:
            raise ValueError(f"{run.folder} and {runs[0].folder} have different BLEU signatures")
    systems: dict[str, dict[str, ScoredRun]] = {}
    if len({decoding(run.record) for run in runs}) > 1:
        notes += [f"{shown(run.folder)} was decoded with {decoding(run.record)}" for run in runs]
    for run in runs:
        if systems.setdefault(run.settings, {}).setdefault(run.seed, run) is not run:
            other = systems[run.settings][run.seed].folder
            raise ValueError(f"{run.folder} and {other} have the same settings and seed")
    if len(systems) < 2:
        need = "--significance needs two scored systems that differ in more than seeds"
        raise ValueError("; ".join([need, *notes[len(NOTES) :]]))
    seeds = sorted(set.intersection(*map(set, systems.values())))
    if not seeds:
        raise ValueError("--significance: the systems have no seed in common")
    signature = dict(part.split(":", 1) for part in runs[0].record["bleu_signature"].split("|"))
    bleu = scoring.load_bleu(signature.get("tok", "13a"), signature.get("case") == "lc")
    paths = [next(iter(runs.values())).folder for runs in systems.values()]
    is_unique = len({path.name for path in paths}) == len(paths)
    names = [path.name if is_unique else shown(path) for path in paths]
    texts: list[Any] = []
    scores = []
    for name, by_seed in zip(names, systems.values(), strict=True):
        hypotheses = [by_seed[seed].hypotheses for seed in seeds]
        texts.append((name, list(zip(*hypotheses, strict=True))))
        scores.append([bleu.corpus_score(text, [runs[0].references]).score for text in hypotheses])
        for seed, value in zip(seeds, scores[-1], strict=True):
            if abs(value - by_seed[seed].record["bleu"]) >= 0.01:
                raise ValueError(f"{by_seed[seed].folder}: texts changed since they were scored")
    frame = pd.DataFrame({"system": names, "bleu": list(map(statistics.fmean, scores))})
    frame["deviation"] = [statistics.stdev(s) if len(s) > 1 else None for s in scores]
    frame["difference"] = [None, *(frame["bleu"][1:] - frame["bleu"][0])]
    notes.append(f"seeds: {', '.join(seeds)}")
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # it logs every step
    for test, kind in TESTS.items():
        metric: Any = {"BLEU": MeanOfSeeds(bleu)}
        signatures, tested = PairedTest(texts, metric, [runs[0].references], kind, 0)()
        results: list[Any] = tested["BLEU"]
        # sacreBLEU counts resamples that exceed the difference. Equal systems have none, and
        # would get a p near 0.
        p = [r.p_value if s != scores[0] else 1.0 for s, r in zip(scores, results, strict=True)]
        frame[f"p ({test})"] = [None, *p[1:]]
        notes.append(f"{test}: {signatures['BLEU']}")
    return frame, notes


def outdated(run: ScoredRun) -> list[str]:
    """Return a note if training has replaced the checkpoint since it was scored."""
    from fairseq_deepnet.checkpoints import load_checkpoint, num_updates  # loads torch

    checkpoint = run.folder / "checkpoints" / Path(run.record.get("model", "")).name
    if not checkpoint.is_file() or "updates" not in run.record:
        return []
    scored, updates = run.record["updates"], num_updates(load_checkpoint(checkpoint))
    what = f"was scored at update {scored:,}, but {checkpoint.name} is of update {updates:,}"
    return [f"{shown(run.folder)} {what}"] if scored != updates else []


def read_scored_run(folder: Path, name: str | None) -> ScoredRun | None:
    """Read a run's score for one language pair, with its texts; return None if there is none.

    Raises:
        ValueError: if there are more or fewer hypotheses than references.
    """
    name = name and f"scores/{name.removeprefix('scores/')}"
    path = name or read_json(folder / RESULT).get("score") or DEFAULT
    score = read_score(folder, path)
    if score is None or "reference" not in score.facts:
        return None
    file = (folder / score.file).with_suffix(".txt")
    hypotheses = list(read_lines(file))
    references = list(read_lines(ROOT / score.facts["reference"]))
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{shown(file)} and its reference have different numbers of lines; score the run again"
        )
    config = configs.recorded_config(folder / "config.yaml")
    options = in_stock_names(config.options)
    seed = str(options.pop("seed", 1))
    options = {k: paper.key(v) for k, v in options.items() if k.replace("-", "_") not in MAY_DIFFER}
    settings = json.dumps([options, config.recipe], sort_keys=True)
    return ScoredRun(folder, seed, settings, hypotheses, references, score.facts)
