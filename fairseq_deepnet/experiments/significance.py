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
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from fairseq_deepnet.experiments.results import find_runs, read_run
from fairseq_deepnet.files import inside_project, shown
from fairseq_deepnet.stock_names import in_stock_names
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.scores import decoding
from fairseq_deepnet.tools.tables import Section, six_digits

TESTS: Final = {"bootstrap": ("bs", 1000), "randomisation": ("ar", 10000)}
"""Name of a test -> sacreBLEU's name, and its default number of resamples or trials."""
_CSV: Final = (
    *("system", "seeds", "bleu", "deviation", "interval_centre", "interval_half"),
    *("difference", "test", "p", "sentences", "signature"),
)
_NOTES: Final = [
    "95% interval: mean over bootstrap resamples ±half of its width; *: p < 0.05",
    "p says whether the difference would hold for other sentences translated by these very models, "
    "not for models trained again: that needs several seeds",
]
_SEEDS_ARE: Final = (
    "several seeds: BLEU is the mean ±sample standard deviation over seeds; p is of the difference "
    "of the means over the seeds that both systems have, a sentence being drawn or swapped with "
    "the translations of all seeds at once"
)
Translations = list[tuple[str, ...]]
"""Translations of each sentence, one per seed."""


@dataclass(frozen=True)
class Scored:
    """Translations of a test set by one run.

    Args:
        file: JSON file of the score
        seed: seed of the run; None without a config
        settings: everything that defines the system except the seed
        hypotheses: detokenised translations, in corpus order
        signature: parts of sacreBLEU's signature: tok, case, ...
        decoding: description of search, engine and averaging
    """

    file: Path
    name: str
    seed: int | None
    settings: str
    hypotheses: list[str]
    references: list[str]
    signature: dict[str, str]
    bleu: float
    decoding: str


class System(NamedTuple):
    """Runs of one system, which differ only in their seed."""

    name: str
    runs: tuple[Scored, ...]


Pair = tuple[Scored, Scored]


@dataclass(frozen=True)
class Compared:
    """A system compared with the baseline.

    Args:
        pairs: a run of the baseline and a run of the system for each seed
        bleu, deviation: mean and sample standard deviation over seeds
        difference: difference to the baseline; exactly 0 if the scores of all seeds are equal
        centre, interval: mean over resamples, and half of the 95 % interval
        p: p by name of the test; empty for the baseline
    """

    name: str
    pairs: Sequence[Pair]
    bleu: float
    deviation: float | None
    difference: float
    centre: float
    interval: float
    p: dict[str, float]

    def cells(self, tests: Sequence[str]) -> list[str]:
        """Return a row of the table; a star marks p < 0.05, as in sacreBLEU."""
        spread = "" if self.deviation is None else f" ±{self.deviation:.2f}"
        cells = [self.name, str(len(self.pairs)), f"{self.bleu:.2f}{spread}"]
        cells.append(f"{self.centre:.2f} ±{self.interval:.2f}")
        if not self.p:
            return [*cells, "baseline", *("" for _ in tests)]
        stars = (f"{self.p[test]:.4f}{'*' if self.p[test] < 0.05 else ''}" for test in tests)
        return [*cells, f"{self.difference:+.2f}", *stars]

    def lines(self, signatures: dict[str, str], sentences: int) -> list[Sequence[object]]:
        """Return a CSV line per test, with numbers not rounded."""
        seeds = " ".join("?" if run.seed is None else str(run.seed) for _, run in self.pairs)
        numbers = (self.bleu, self.deviation, self.centre, self.interval)
        first = [self.name, seeds, *map(six_digits, numbers)]
        first.append(six_digits(self.difference) if self.p else "")
        return [
            [*first, test, six_digits(self.p.get(test)), sentences, signature]
            for test, signature in signatures.items()
        ]


@dataclass(frozen=True)
class Comparison:
    """The baseline and the systems compared with it."""

    rows: list[Compared]
    signatures: dict[str, str]
    sentences: int
    notes: list[str]

    def section(self) -> Section:
        """Return the table."""
        tests = list(self.signatures)
        heading = ["system", "seeds", "BLEU", "95% interval", "difference"]
        rows = [[*heading, *(f"p ({test})" for test in tests)]]
        rows += [row.cells(tests) for row in self.rows]
        notes = [f"{self.sentences:,} sentences; {_NOTES[0]}", *_NOTES[1:]]
        notes += [_SEEDS_ARE] if any(len(row.pairs) > 1 for row in self.rows) else []
        others = len(self.rows) - 1
        if others > 1:
            notes.append(f"{others} systems against one baseline: p is not corrected for that")
        notes += [f"{test}: {signature}" for test, signature in self.signatures.items()]
        return Section("Paired significance tests", {"": rows}, notes + self.notes)

    def lines(self) -> list[Sequence[object]]:
        """Return the CSV lines, starting with the heading."""
        rows = (row.lines(self.signatures, self.sentences) for row in self.rows)
        return [_CSV, *(line for lines in rows for line in lines)]


class _MeanOfSeeds:
    """Metric for sacreBLEU's PairedTest on sentences with one translation per seed.

    For one seed it equals sacreBLEU's BLEU.
    """

    def __init__(self, bleu: Any) -> None:
        self.bleu = bleu

    def get_signature(self) -> Any:
        return self.bleu.get_signature()

    def _extract_corpus_statistics(self, hypotheses: Translations, references: Any) -> Any:
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


def compare(
    systems: Sequence[System],
    tests: Sequence[str],
    samples: int | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Test every system against the first, with all seeds together.

    Seeds that both systems have are paired by number; without common seeds, in order. Raises
    ValueError if a recorded score is not that of the stored hypotheses.
    """
    from sacrebleu.metrics.bleu import BLEU

    if os.environ.get("SACREBLEU_SEED") == "0":
        raise ValueError("SACREBLEU_SEED=0 means no seed to sacreBLEU's tests; choose another")
    first = systems[0].runs[0]
    tokenizer = scoring.check_tokenizer(first.signature.get("tok", "13a"))
    bleu = BLEU(tokenize=tokenizer, lowercase=first.signature.get("case") == "lc")
    baseline, *others = (
        system._replace(runs=tuple(_scored_again(run, bleu) for run in system.runs))
        for system in systems
    )
    signatures: dict[str, str] = {}

    def against(name: str, pairs: Sequence[Pair]) -> Compared:
        texts = ([run.hypotheses for run in side] for side in zip(*pairs, strict=True))
        sides = [list(zip(*side, strict=True)) for side in texts]
        results = {}
        for test in tests:
            alone = list(tests) == [test]
            signatures[test], results[test] = _test(
                bleu, first.references, sides, test, samples, alone
            )
        before, after = ([run.bleu for run in side] for side in zip(*pairs, strict=True))
        # sacreBLEU counts what is beyond the difference, not what reaches it: 0 of all resamples of
        # two equal systems, so it would call them surely different
        p = {test: 1.0 if before == after else float(r.p_value) for test, r in results.items()}
        # resamples give the interval, and the bootstrap test has them anyway
        shown_by = results.get("bootstrap") or next(iter(results.values()))
        mean = statistics.fmean(after)
        return Compared(
            name,
            pairs,
            bleu=mean,
            deviation=statistics.stdev(after) if len(after) > 1 else None,
            difference=0.0 if before == after else mean - statistics.fmean(before),
            centre=float(shown_by.mean),
            interval=float(shown_by.ci),
            p=p,
        )

    rows = [replace(against(baseline.name, [(run, run) for run in baseline.runs]), p={})]
    left_out = []
    for system in others:
        pairs = paired(baseline.runs, system.runs)
        for mine, other, side in ((system, baseline, 1), (baseline, system, 0)):
            alone = [run.seed for run in mine.runs if run not in [pair[side] for pair in pairs]]
            left_out += [f"seed {s} of {mine.name} has no partner in {other.name}" for s in alone]
        rows.append(against(system.name, pairs))
    return Comparison(rows, signatures, len(first.references), [*left_out, *notes])


def paired(baseline: Sequence[Scored], others: Sequence[Scored]) -> list[Pair]:
    """Pair runs of the same seed; without common seeds, pair them in order."""
    by_seed = {run.seed: run for run in baseline}
    same = [(by_seed[run.seed], run) for run in others if run.seed in by_seed]
    return same or list(zip(baseline, others, strict=False))


def _scored_again(run: Scored, bleu: Any) -> Scored:
    """Return a run with its exact BLEU; raise ValueError if the recorded score differs."""
    if len(run.hypotheses) != len(run.references):
        raise ValueError(
            f"{shown(run.file.with_suffix('.txt'))} has {len(run.hypotheses)} lines for "
            f"{len(run.references)} references; score it again"
        )
    again = float(bleu.corpus_score(run.hypotheses, [run.references]).score)
    if abs(again - run.bleu) > 0.01:
        raise ValueError(
            f"{shown(run.file)} contains BLEU {run.bleu:.2f}, but its hypotheses have {again:.2f} "
            "against the reference of today; score it again"
        )
    return replace(run, bleu=again)


def _test(
    bleu: Any,
    references: list[str],
    sides: Sequence[Translations],
    test: str,
    samples: int | None,
    alone: bool,
) -> tuple[str, Any]:
    """Run one of sacreBLEU's tests; return its signature and its result for the second side."""
    from sacrebleu.significance import PairedTest

    kind, usual = TESTS[test]
    # it sets up logging and reports every step
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    signatures, scores = PairedTest(
        [("baseline", sides[0]), ("system", sides[1])],  # type: ignore[list-item]
        {"BLEU": _MeanOfSeeds(bleu)},  # type: ignore[dict-item]
        [references],
        test_type=kind,
        n_samples=samples or usual,
        # its default of none would leave a table of randomisation alone without intervals; of the
        # bootstrap test it would be in the signature as the number of its own resamples
        n_ar_confidence=TESTS["bootstrap"][1] if alone and test == "randomisation" else -1,
    )()
    return str(signatures["BLEU"]), scores["BLEU"][1]


# From run folders and score files to systems.


def find_systems(targets: Sequence[Path], baseline: Path | None) -> tuple[list[System], list[str]]:
    """Read systems from run folders, folders of runs, or score files, the baseline first.

    Returns the systems, and notes about runs without a score and different decoding. Raises
    FileNotFoundError, or ValueError for fewer than two systems and for scores that are not
    comparable.
    """
    notes: list[str] = []
    files = [file for t in (baseline, *targets) if t for file in _score_files(t, notes)]
    scored = [read_scored(path) for path in {path.resolve(): path for path in files}.values()]
    systems = _grouped(scored)
    if len(systems) < 2:
        raise ValueError(
            "a test needs two systems that were scored: name more runs or score files"
            + "".join(f"; {note}" for note in notes)
        )
    first, *others = scored
    named = {path.resolve() for path in (baseline, *targets) if path}
    for run in others:
        pair = f"{shown(first.file)} and {shown(run.file)}"
        if run.references != first.references:
            raise ValueError(f"{pair} are scores of different test sets")
        for key in ("tok", "case"):
            if run.signature.get(key) != first.signature.get(key):
                raise ValueError(f"{pair} have different signatures ({key}); score one again")
        if (
            run.decoding != first.decoding
            and not {first.file.resolve(), run.file.resolve()} <= named
        ):
            raise ValueError(
                f"{shown(first.file)} ({first.decoding}) and {shown(run.file)} ({run.decoding}) "
                "are decoded differently; score one run as the other was, or name both score files"
            )
    if len({run.decoding for run in scored}) > 1:
        kinds = (f"{s.name}: {', '.join(sorted({r.decoding for r in s.runs}))}" for s in systems)
        notes.append(f"decoded differently: {'; '.join(kinds)}")
    return systems, notes


def _score_files(target: Path, notes: list[str]) -> list[Path]:
    """Return the score files of a target; add a note for each run without one."""
    if target.is_file():
        return [target]
    files = []
    for folder in find_runs(target):
        score = read_run(folder).score
        if score is None:
            notes.append(f"{shown(folder)} is not scored")
        elif (folder / score.file).is_dir():
            raise ValueError(
                f"{shown(folder)} is scored in many directions; name the score of one, as in "
                f"{shown(folder / score.file)}/DIRECTION.json"
            )
        else:
            files.append(folder / score.file)
    return files


def read_scored(file: Path) -> Scored:
    """Read a score with its hypotheses and references."""
    try:
        record = json.loads(file.read_bytes())
        signature = dict(part.split(":", 1) for part in record["bleu_signature"].split("|"))
        bleu, reference = float(record["bleu"]), inside_project(record["reference"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{shown(file)} is no score of `deepnet evaluate` ({error})") from error
    if not reference.is_file():
        raise FileNotFoundError(f"the reference of {shown(file)} is gone: {reference}")
    folders = file.resolve().parents
    run = next((folder for folder in folders[1:4] if (folder / "config.yaml").is_file()), None)
    settings, seed = str(file.resolve()), None
    if run is not None:
        config = configs.recorded_config(run)
        options = in_stock_names(config.options)
        seed = options.pop("seed", None)
        settings = json.dumps([options, config.recipe, file.name], sort_keys=True, default=str)
    return Scored(
        file=file,
        name=(run or folders[1]).name,
        seed=None if seed is None else int(seed),
        settings=settings,
        hypotheses=list(read_lines(file.with_suffix(".txt"))),
        references=list(read_lines(reference)),
        signature=signature,
        bleu=bleu,
        decoding=decoding(record),
    )


def _grouped(runs: Sequence[Scored]) -> list[System]:
    """Group runs that differ only in their seed into systems with distinct names."""
    groups: dict[str, list[Scored]] = {}
    for run in runs:
        groups.setdefault(run.settings, []).append(run)
    members = [tuple(sorted(group, key=lambda run: run.seed or 0)) for group in groups.values()]
    for group in members:
        if len({run.seed for run in group}) < len(group):
            files = ", ".join(shown(run.file) for run in group)
            raise ValueError(f"the same system with the same seed more than once: {files}")
    # the shortest of three kinds of names by which all systems differ
    kinds = [(run.name, f"{run.name} {run.file.stem}", shown(run.file)) for run, *_ in members]
    distinct = [names for names in zip(*kinds, strict=True) if len(set(names)) == len(names)]
    return [System(name, group) for name, group in zip(distinct[0], members, strict=True)]
