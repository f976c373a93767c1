"""Paired tests as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from fairseq_deepnet.experiments.report.render import Rows, markdown_grid, text_grid
from fairseq_deepnet.experiments.report.significance import Compared, Comparison

TITLE: Final = "Paired significance tests"
_SEEDS_ARE: Final = (
    "several seeds: BLEU is the mean ±sample standard deviation over seeds; p is of the difference "
    "of the means over the seeds that both systems have, a sentence being drawn or swapped with "
    "the translations of all seeds at once; below it each pair of seeds by itself"
)


def rows_of(comparison: Comparison) -> Rows:
    """Heading, the baseline, the systems; single seeds below their system."""
    tests = list(comparison.signatures)
    heading = ["system", "seeds", "BLEU", "95% interval", "difference"]
    rows = [heading + [f"p ({test})" for test in tests]]
    for number, (row, parts) in enumerate(zip(comparison.rows, comparison.parts, strict=True)):
        rows.append(_row(row, tests, number == 0))
        rows += [["- " + cells[0], *cells[1:]] for cells in (_row(p, tests, False) for p in parts)]
    return rows


def _row(row: Compared, tests: Sequence[str], is_baseline: bool) -> list[str]:
    bleu = f"{row.bleu:.2f}" + (f" ±{row.deviation:.2f}" if row.deviation is not None else "")
    cells = [row.name, str(len(row.seeds)), bleu, f"{row.centre:.2f} ±{row.interval:.2f}"]
    if is_baseline:
        return [*cells, "baseline", *("" for _ in tests)]
    return [*cells, f"{row.difference:+.2f}", *(_p(row.p[test]) for test in tests)]


def _p(value: float) -> str:
    """p, and a star where it is below 0.05, as sacreBLEU marks it."""
    return f"{value:.4f}" + ("*" if value < 0.05 else "")


def notes_of(comparison: Comparison) -> list[str]:
    """What was tested, and what it does not say."""
    lines = [
        f"{comparison.sentences:,} sentences; 95% interval: mean over bootstrap resamples ±half of "
        "its width; *: p < 0.05",
        "p says whether the difference would hold for other sentences translated by these very "
        "models, not for models trained anew: that needs several seeds",
    ]
    if any(comparison.parts):
        lines.append(_SEEDS_ARE)
    others = len(comparison.rows) - 1
    if others > 1:
        lines.append(f"{others} systems against one baseline: p is not corrected for their number")
    lines += [f"{test}: {signature}" for test, signature in comparison.signatures.items()]
    return lines + comparison.notes


def to_text(comparison: Comparison) -> str:
    """For a terminal."""
    notes = "".join(f"{line}\n" for line in notes_of(comparison))
    return f"{TITLE}\n\n{text_grid(rows_of(comparison))}\n\n{notes}"


def to_markdown(comparison: Comparison) -> str:
    """A section with the table and its notes."""
    notes = "".join(f"- {line}\n" for line in notes_of(comparison))
    return f"### {TITLE}\n\n{markdown_grid(rows_of(comparison))}\n\n{notes}"


def to_csv(comparison: Comparison) -> str:
    """A line a system and test, then its single seeds; numbers unrounded."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = ("system", "of", "seeds", "bleu", "deviation", "interval_centre", "interval_half")
    writer.writerow([*names, "difference", "test", "p", "sentences", "signature"])
    for number, (row, parts) in enumerate(zip(comparison.rows, comparison.parts, strict=True)):
        for one in (row, *parts):
            for test, signature in comparison.signatures.items():
                deviation = "" if one.deviation is None else f"{one.deviation:.6g}"
                p = "" if number == 0 else f"{one.p[test]:.6g}"
                seeds = " ".join("?" if seed is None else str(seed) for seed in one.seeds)
                numbers = [f"{one.bleu:.6g}", deviation, f"{one.centre:.6g}", f"{one.interval:.6g}"]
                difference = "" if number == 0 else f"{one.difference:.6g}"
                of = "baseline" if number == 0 else "" if one is row else row.name
                tested = [difference, test, p, comparison.sentences, signature]
                writer.writerow([one.name, of, seeds, *numbers, *tested])
    return stream.getvalue()
