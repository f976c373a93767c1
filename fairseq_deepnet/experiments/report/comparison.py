"""Runs of no particular sweep, side by side: one line a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from fairseq_deepnet.experiments.report import notes
from fairseq_deepnet.experiments.report.render import Rows, markdown_grid, text_grid
from fairseq_deepnet.experiments.report.results import Result
from fairseq_deepnet.experiments.report.table import MISSING
from fairseq_deepnet.experiments.sweeps.state import Status

TITLE = "Runs side by side"
_LEFT = 2
_HEADING = ("run", "model", "parameters", "updates", "valid loss", "valid nll", "BLEU", "chrF")


def model_of(options: dict[str, Any]) -> str:
    """What tells models apart: depth, width, scheme or architecture."""
    depth = f"{options.get('encoder-layers', '?')}L-{options.get('decoder-layers', '?')}L"
    scheme = options.get("residual-scheme", options.get("arch", ""))
    width = options.get("encoder-embed-dim")
    return f"{depth} {scheme}" + (f", {width} wide" if width else "")


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def rows_of(results: Sequence[Result]) -> Rows:
    """Heading and one row a run; losses are the best validation losses."""
    rows = [list(_HEADING)]
    for run in results:
        loss = min((value for _, value in run.valid_loss), default=None)
        nll = min((value for _, value in run.valid_nll), default=None)
        scores = run.score.values if run.score else {}
        bleu = _number(run.score.headline if run.score else None, 2)
        if run.status == Status.DIVERGED:
            bleu = "diverged" if bleu == MISSING else f"diverged ({bleu})"
        row = [run.name, model_of(run.config.options), _number(run.parameters, 0)]
        row += [f"{run.updates:,}", _number(loss, 3), _number(nll, 3), bleu]
        rows.append([*row, _number(scores.get("chrf"), 2)])
    return rows


def notes_of(results: Sequence[Result]) -> list[str]:
    """What the numbers are."""
    lines = ["validation losses: the lowest of the run, bits a token; nll is without smoothing"]
    scored = [run for run in results if run.score]
    lines += notes.grouped("BLEU", [(run, notes.score_facts(run)) for run in scored])
    chrf = {run.score.signatures.get("chrf") for run in scored if run.score}
    lines += [f"chrF: {signature}" for signature in sorted(filter(None, chrf))]
    return lines + notes.endings(results)


def to_text(results: Sequence[Result]) -> str:
    """For a terminal."""
    return f"{TITLE}\n\n{text_grid(rows_of(results), _LEFT)}\n\n" + _joined(notes_of(results), "")


def to_markdown(results: Sequence[Result]) -> str:
    """A section with the table and its notes."""
    table = markdown_grid(rows_of(results), _LEFT)
    return f"### {TITLE}\n\n{table}\n\n" + _joined(notes_of(results), "- ")


def _joined(lines: Sequence[str], mark: str) -> str:
    return "".join(f"{mark}{line}\n" for line in lines)


def to_csv(results: Sequence[Result]) -> str:
    """A line a run, with the columns of the table and the score's signature."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heading, *rows = rows_of(results)
    writer.writerow([*heading, "status", "signature"])
    for run, row in zip(results, rows, strict=True):
        plain = ["" if text == MISSING else text.replace(",", "") for text in row[2:]]
        signature = run.score.signatures.get("bleu", "") if run.score else ""
        writer.writerow([*row[:2], *plain, run.status, signature])
    return stream.getvalue()
