"""Paired significance tests: is a BLEU difference between systems larger than chance?

sacreBLEU's paired bootstrap resampling (Koehn, 2004) and paired approximate randomisation (Riezler
and Maxwell, 2005) test whether a difference would hold for other sentences translated by the same
models. Variation between runs needs several seeds. Then the statistic is the mean of the seeds'
corpus BLEU, and a sentence is drawn or swapped with all its translations at once: they are not
independent, and counting them as separate sentences would make p too small.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from fairseq_deepnet.experiments.results import find_runs, read_run
from fairseq_deepnet.experiments.tables import Table
from fairseq_deepnet.files import inside_project, shown
from fairseq_deepnet.stock_names import in_stock_names
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.scores import decoding

TESTS: Final = {"bootstrap": "bs", "randomisation": "ar"}
"""Name of a test -> sacreBLEU's name; their order is that of the columns."""
NOTES: Final = (
    "bleu: mean over seeds, with their sample standard deviation",
    "centre, interval: mean over bootstrap resamples, and half of the width of the 95% interval",
    "p says whether the difference would hold for other sentences translated by "
    "these very models, not for models trained again; it is not corrected for several systems",
)


class ScoredRun(NamedTuple):
    """Translations of a test set by one run.

    Args:
        file: JSON file of the score
        seed: seed of the run; "?" without a config
        settings: everything that defines the system except the seed
        hypotheses: detokenised translations, in corpus order
        record: content of the file
    """

    file: Path
    name: str
    seed: str
    settings: str
    hypotheses: list[str]
    references: list[str]
    record: dict[str, Any]


Systems = dict[str, list[ScoredRun]]
"""Name of a system -> its runs, which differ only in their seed; the baseline is first."""


class MeanOfSeeds:
    """Metric for sacreBLEU's PairedTest on sentences with one translation per seed.

    For one seed it equals sacreBLEU's BLEU.
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

        # BLEU counts lengths, and matches and n-grams of each order
        parts = np.split(stats, len(stats) // (2 + 2 * self.bleu.max_ngram_order))
        scores = (self.bleu._compute_score_from_stats(part.tolist()).score for part in parts)
        return Score("BLEU", statistics.fmean(scores))


def compare(systems: Systems, notes: Sequence[str] = (), samples: int | None = None) -> Table:
    """Test every system against the first, with all seeds together.

    Args:
        notes: notes about the systems
        samples: number of resamples and trials; sacreBLEU's defaults (1,000 and 10,000) for None

    Raises ValueError if a recorded score is not that of the stored hypotheses.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    first = next(iter(systems.values()))[0]
    signature = dict(part.split(":", 1) for part in first.record["bleu_signature"].split("|"))
    tokenizer = scoring.check_tokenizer(signature.get("tok", "13a"))
    bleu = BLEU(tokenize=tokenizer, lowercase=signature.get("case") == "lc")
    scores = [[_recompute_bleu(run, bleu) for run in runs] for runs in systems.values()]
    texts: list[Any] = [
        (name, list(zip(*(run.hypotheses for run in runs), strict=True)))
        for name, runs in systems.items()
    ]
    frame = pd.DataFrame({"system": list(systems)})
    frame["seeds"] = [" ".join(run.seed for run in runs) for runs in systems.values()]
    frame["bleu"] = list(map(statistics.fmean, scores))
    frame["deviation"] = [statistics.stdev(s) if len(s) > 1 else None for s in scores]
    frame["difference"] = [None, *(frame["bleu"][1:] - frame["bleu"][0])]
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # it reports every step
    signed = []
    for test, kind in TESTS.items():
        metric: Any = {"BLEU": MeanOfSeeds(bleu)}
        paired = PairedTest(texts, metric, [first.references], kind, samples or 0)
        signatures, tested = paired()
        results: list[Any] = tested["BLEU"]
        if kind == "bs":
            frame["centre"] = [float(result.mean) for result in results]
            frame["interval"] = [float(result.ci) for result in results]
        # sacreBLEU counts resamples beyond the difference: none of two equal systems, so it would
        # call them surely different
        values = [
            r.p_value if s != scores[0] else 1.0 for s, r in zip(scores, results, strict=True)
        ]
        frame[f"p ({test})"] = [None, *values[1:]]
        signed.append(f"{test}: {signatures['BLEU']}")
    form = {"floatfmt": ["", "", *([".2f"] * 5), ".4f", ".4f"]}
    return Table("Paired significance tests", frame, [*NOTES, *signed, *notes], frame, form=form)


def _recompute_bleu(run: ScoredRun, bleu: Any) -> float:
    """Return the exact BLEU of a run; raise ValueError if the recorded score differs."""
    recorded, score = float(run.record["bleu"]), math.nan
    if len(run.hypotheses) == len(run.references):
        score = float(bleu.corpus_score(run.hypotheses, [run.references]).score)
    if not abs(score - recorded) < 0.01:
        raise ValueError(
            f"{shown(run.file)} contains BLEU {recorded:.2f}, but its {len(run.hypotheses)} "
            f"hypotheses have {score:.2f} against the current reference; score it again"
        )
    return score


# From run folders and score files to systems.


def find_systems(targets: Sequence[Path]) -> tuple[Systems, list[str]]:
    """Read systems from run folders, folders of runs, or score files.

    Returns the systems with the seeds that all of them have (without common seeds, with as many as
    each has), and notes about runs that were left out or decoded differently. Raises ValueError for
    fewer than two systems, and for scores that are not comparable.
    """
    notes: list[str] = []
    files: dict[Path, Path] = {}
    for target in targets:
        for path in [target] if target.is_file() else find_runs(target):
            score = None if path.is_file() else read_run(path).score
            if path.is_file() or score:
                file = path / score.file if score else path
                files[file.resolve()] = file
            else:
                notes.append(f"{shown(path)} is not scored")
    scored = list(map(read_scored_run, files.values()))
    for run in scored[1:]:
        pair = f"{shown(scored[0].file)} and {shown(run.file)}"
        if run.references != scored[0].references:
            raise ValueError(f"{pair} are scores of different test sets")
        if run.record["bleu_signature"] != scored[0].record["bleu_signature"]:
            raise ValueError(f"{pair} have different signatures; score one again")
    groups: dict[str, list[ScoredRun]] = {}
    for run in scored:
        groups.setdefault(run.settings, []).append(run)
    if len(groups) < 2:
        raise ValueError("; ".join(["a test needs two scored systems: name more runs", *notes]))
    names = [runs[0].name for runs in groups.values()]
    seeds = [[run.seed for run in runs] for runs in groups.values()]
    common, fewest = set.intersection(*map(set, seeds)), min(map(len, seeds))
    systems = {}
    for runs in groups.values():
        runs.sort(key=lambda run: run.seed)
        # a path if two systems have the same name
        name = runs[0].name if names.count(runs[0].name) == 1 else shown(runs[0].file)
        if len({run.seed for run in runs}) < len(runs):
            raise ValueError(f"{name}: the same system with the same seed more than once")
        systems[name] = [run for run in runs if run.seed in common] if common else runs[:fewest]
        left_out = [run.seed for run in runs if run not in systems[name]]
        if left_out:
            notes.append(f"{name}: seed {', '.join(left_out)} is left out, as others lack it")
    kinds = {
        name: ", ".join(sorted({decoding(r.record) for r in runs}))
        for name, runs in systems.items()
    }
    if len(set(kinds.values())) > 1:
        notes += [f"decoded differently: {name}: {kind}" for name, kind in kinds.items()]
    return systems, notes


def read_scored_run(file: Path) -> ScoredRun:
    """Read a score with its hypotheses and references."""
    try:
        record = json.loads(file.read_bytes())
        reference, _ = inside_project(record["reference"]), record["bleu_signature"]
    except (IsADirectoryError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{shown(file)} is no score of one direction ({error})") from error
    folders = file.resolve().parents
    run = next((folder for folder in folders[1:4] if (folder / "config.yaml").is_file()), None)
    settings, seed = str(file.resolve()), "?"
    if run is not None:
        config = configs.recorded_config(run)
        options = in_stock_names(config.options)
        seed = str(options.pop("seed", "?"))
        settings = json.dumps([options, config.recipe, file.name], sort_keys=True, default=str)
    hypotheses, references = (list(read_lines(p)) for p in (file.with_suffix(".txt"), reference))
    name = (run or folders[1]).name
    return ScoredRun(file, name, seed, settings, hypotheses, references, record)
