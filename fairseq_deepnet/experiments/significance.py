"""Whether one system's BLEU is better than another's beyond chance: sacreBLEU's paired tests.

Paired bootstrap resampling (Koehn, 2004) and paired approximate randomisation (Riezler and Maxwell,
2005) ask whether a difference would hold for other sentences, translated by these very models.
Neither knows how much another training would differ: for that several seeds are trained. Then the
statistic is the mean of the seeds' corpus BLEU, and a sentence is drawn or swapped with all its
translations at once: translations of one sentence are not independent, and counting them as more
sentences would make p too small.
"""

from __future__ import annotations

import logging
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from fairseq_deepnet.experiments.systems import Scored, System
from fairseq_deepnet.files import shown
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.tables import Section, comma_separated, six_digits

TESTS: Final = {"bootstrap": ("bs", 1000), "randomisation": ("ar", 10000)}
"""Name of a test -> sacreBLEU's, and its resamples or trials by default."""
_SEEDS_ARE: Final = (
    "several seeds: BLEU is the mean ±sample standard deviation over seeds; p is of the difference "
    "of the means over the seeds that both systems have, a sentence being drawn or swapped with "
    "the translations of all seeds at once; below it each pair of seeds by itself"
)
Pair = tuple[Scored, Scored]
Translations = list[tuple[str, ...]]
"""For each sentence its translation by each seed."""


@dataclass(frozen=True)
class Compared:
    """A system, or one of its seeds, against the baseline.

    Args:
        pairs: a run of the baseline, and one of the system, for each seed
        interval: half of the 95 % interval around `centre`, the mean over resamples
        p: name of the test -> p; empty for the baseline
    """

    name: str
    pairs: Sequence[Pair]
    centre: float
    interval: float
    p: dict[str, float]

    @property
    def seeds(self) -> list[int | None]:
        """Those of the system."""
        return [run.seed for _, run in self.pairs]

    @property
    def scores(self) -> list[float]:
        """The system's BLEU of each seed."""
        return [run.bleu for _, run in self.pairs]

    @property
    def bleu(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over seeds; None for one."""
        return statistics.stdev(self.scores) if len(self.pairs) > 1 else None

    @property
    def difference(self) -> float:
        """To the baseline; exactly 0 where every seed's score is the same."""
        baseline = [run.bleu for run, _ in self.pairs]
        return 0.0 if self.scores == baseline else self.bleu - statistics.fmean(baseline)

    def written(self, tests: Sequence[str]) -> list[str]:
        """Return the cells after its name; a star marks a p below 0.05, as sacreBLEU's."""
        spread = "" if self.deviation is None else f" ±{self.deviation:.2f}"
        cells = [str(len(self.seeds)), f"{self.bleu:.2f}{spread}"]
        cells += [f"{self.centre:.2f} ±{self.interval:.2f}"]
        if not self.p:
            return [*cells, "baseline", *("" for _ in tests)]
        p_values = (f"{self.p[test]:.4f}{'*' * (self.p[test] < 0.05)}" for test in tests)
        return [*cells, f"{self.difference:+.2f}", *p_values]


@dataclass(frozen=True)
class Comparison:
    """The baseline and the systems against it.

    Args:
        parts: for each row one for each seed that both have; empty for a single one
        signatures: by test
        notes: seeds that stand alone, runs that are not scored
    """

    rows: list[Compared]
    parts: list[list[Compared]]
    signatures: dict[str, str]
    sentences: int
    notes: list[str]

    def section(self) -> Section:
        """Return the table: the baseline, then the systems, single seeds below theirs."""
        tests = list(self.signatures)
        heading = ["system", "seeds", "BLEU", "95% interval", "difference"]
        rows = [heading + [f"p ({test})" for test in tests]]
        for row, parts in zip(self.rows, self.parts, strict=True):
            rows.append([row.name, *row.written(tests)])
            rows += [[f"- {part.name}", *part.written(tests)] for part in parts]
        notes = [
            f"{self.sentences:,} sentences; 95% interval: mean over bootstrap resamples ±half of "
            "its width; *: p < 0.05",
            "p says whether the difference would hold for other sentences translated by these very "
            "models, not for models trained anew: that needs several seeds",
        ]
        notes += [_SEEDS_ARE] if any(self.parts) else []
        if (others := len(self.rows) - 1) > 1:
            corrected = "p is not corrected for their number"
            notes.append(f"{others} systems against one baseline: {corrected}")
        notes += [f"{test}: {signature}" for test, signature in self.signatures.items()]
        return Section("Paired significance tests", {"": rows}, notes + self.notes)

    def csv(self) -> str:
        """Return a line a system and test, then its single seeds; numbers unrounded."""
        names = ("system", "of", "seeds", "bleu", "deviation", "interval_centre", "interval_half")
        heading = (*names, "difference", "test", "p", "sentences", "signature")
        lines: list[Sequence[object]] = [heading]
        both = zip(self.rows, self.parts, strict=True)
        for one, of in ((one, row) for row, parts in both for one in (row, *parts)):
            role = "baseline" if not one.p else "" if one is of else of.name
            seeds = " ".join("?" if seed is None else str(seed) for seed in one.seeds)
            numbers = map(six_digits, (one.bleu, one.deviation, one.centre, one.interval))
            first = [one.name, role, seeds, *numbers, six_digits(one.difference) if one.p else ""]
            for test, signature in self.signatures.items():
                p = six_digits(one.p.get(test))
                lines.append([*first, test, p, self.sentences, signature])
        return comma_separated(lines)


class _MeanOfSeeds:
    """What sacreBLEU's PairedTest asks of a metric, for sentences with several translations each.

    For one seed it is sacreBLEU's BLEU, number for number.
    """

    def __init__(self, bleu: Any) -> None:
        self.bleu = bleu

    def get_signature(self) -> Any:
        return self.bleu.get_signature()

    def _extract_corpus_statistics(self, hypotheses: Translations, references: Any) -> Any:
        seeds = zip(*hypotheses, strict=True)
        found = [self.bleu._extract_corpus_statistics(list(seed), references) for seed in seeds]
        return np.concatenate([np.array(one, dtype=np.int64) for one in found], axis=1)

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
    missing: Sequence[str] = (),
) -> Comparison:
    """Test every system against the first, by seeds together and by each seed.

    Seeds are paired by their number, and only those that both systems have are compared; where they
    have none in common, in the order of their numbers. Raises ValueError for scores that
    cannot be found again from the stored hypotheses.
    """
    from sacrebleu.metrics.bleu import BLEU

    if os.environ.get("SACREBLEU_SEED") == "0":
        raise ValueError("SACREBLEU_SEED=0 means no seed to sacreBLEU's tests; choose another")
    first = systems[0].runs[0]
    tokenizer = scoring.check_tokenizer(first.signature.get("tok", "13a"))
    bleu = BLEU(tokenize=tokenizer, lowercase=first.signature.get("case") == "lc")
    references = list(read_lines(first.reference))
    baseline, *others = (
        system._replace(runs=tuple(_scored_again(run, bleu, references) for run in system.runs))
        for system in systems
    )
    tester = _Tester(bleu, references, tests, samples)
    rows = [tester.alone(baseline)]
    parts: list[list[Compared]] = [[]]
    left_out = []
    for system in others:
        pairs = paired(baseline.runs, system.runs)
        for mine, other, side in ((system, baseline, 1), (baseline, system, 0)):
            alone = [run.seed for run in mine.runs if run not in [pair[side] for pair in pairs]]
            against = f"against {other.name} seed"
            left_out += [f"{against} {seed} of {mine.name} has no part in it" for seed in alone]
        rows.append(tester.against(system.name, pairs))
        singles = []
        for one, two in pairs if len(pairs) > 1 else []:
            name = f"seed {two.seed}" + f" against {one.seed}" * (one.seed != two.seed)
            singles.append(tester.against(name, [(one, two)]))
        parts.append(singles)
    return Comparison(rows, parts, tester.signatures, len(references), [*left_out, *missing])


def paired(baseline: Sequence[Scored], others: Sequence[Scored]) -> list[Pair]:
    """Return runs of the same seed; where there is none, the first with the first and so on."""
    by_seed = {run.seed: run for run in baseline}
    same = [(by_seed[run.seed], run) for run in others if run.seed in by_seed]
    return same or list(zip(baseline, others, strict=False))


def _scored_again(run: Scored, bleu: Any, references: Sequence[str]) -> Scored:
    """Return a run with its BLEU unrounded; ValueError where that is not what was scored."""
    if len(run.hypotheses) != len(references):
        raise ValueError(
            f"{shown(run.file.with_suffix('.txt'))} has {len(run.hypotheses)} lines for "
            f"{len(references)} references; score it anew"
        )
    again = float(bleu.corpus_score(run.hypotheses, [references]).score)
    if abs(again - run.bleu) > 0.01:
        raise ValueError(
            f"{shown(run.file)} says BLEU {run.bleu:.2f}, and its hypotheses have {again:.2f}; "
            "score it anew"
        )
    return replace(run, bleu=again)


@dataclass
class _Tester:
    """sacreBLEU's tests on this reference."""

    bleu: Any
    references: list[str]
    tests: Sequence[str]
    samples: int | None
    signatures: dict[str, str] = field(default_factory=dict)

    def alone(self, system: System) -> Compared:
        """Return the baseline: its score and interval come from a test against itself."""
        return replace(self.against(system.name, [(run, run) for run in system.runs]), p={})

    def against(self, name: str, pairs: Sequence[Pair]) -> Compared:
        """Test the second of each pair against the first, all pairs together."""
        texts = ([run.hypotheses for run in side] for side in zip(*pairs, strict=True))
        sides = [list(zip(*side, strict=True)) for side in texts]
        results = {test: self._run(test, sides) for test in self.tests}
        # resamples give the interval, and the bootstrap test has them anyway
        shown_by = results.get("bootstrap") or next(iter(results.values()))
        p = {test: float(result.p_value) for test, result in results.items()}
        compared = Compared(name, pairs, float(shown_by.mean), float(shown_by.ci), p)
        if compared.difference == 0:
            # sacreBLEU counts what is beyond the difference, not what reaches it: 0 of all
            # resamples of two equal systems, so it would call them surely different
            compared.p.update(dict.fromkeys(compared.p, 1.0))
        return compared

    def _run(self, test: str, sides: Sequence[Translations]) -> Any:
        from sacrebleu.significance import PairedTest

        kind, usual = TESTS[test]
        is_alone = test == "randomisation" and list(self.tests) == [test]
        # it sets up logging and reports every step
        logging.getLogger("sacrebleu").setLevel(logging.WARNING)
        paired_test = PairedTest(
            [("baseline", sides[0]), ("system", sides[1])],  # type: ignore[list-item]
            {"BLEU": _MeanOfSeeds(self.bleu)},  # type: ignore[dict-item]
            [self.references],
            test_type=kind,
            n_samples=self.samples or usual,
            # its default of none would leave a table of randomisation alone without intervals; of
            # the bootstrap test it would stand in the signature as the number of its own resamples
            n_ar_confidence=TESTS["bootstrap"][1] if is_alone else -1,
        )
        signatures, scores = paired_test()
        self.signatures[test] = str(signatures["BLEU"])
        return scores["BLEU"][1]
