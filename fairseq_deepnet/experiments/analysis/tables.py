"""Panels as text: a Markdown table of ours beside the paper's, and a CSV with every number."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.analysis.figures import Line, Panel

MISSING: Final = "-"
HEADINGS: Final = ("panel", "line", "x", "ours", "seeds", "lowest", "highest", "paper")


def number(value: float | None) -> str:
    """Three significant digits, without an exponent down to 0.001."""
    if value is None:
        return MISSING
    if value and abs(value) < 1e-3:
        return f"{value:.2g}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def to_markdown(panels: Sequence[Panel], setting: str) -> str:
    """One table a panel: a row a line for ours, and one below it for the paper's, marked ≈."""
    parts = []
    for panel in panels:
        columns = panel.columns
        lines = [
            f"{panel.name}: {panel.title}",
            "",
            "| | | " + " | ".join(f"{x:g}" for x in columns) + " |",
            "|---|---|" + "---:|" * len(columns),
        ]
        for line in panel.lines:
            ours = " | ".join(number(line.mean(x)) for x in columns)
            lines.append(f"| {line.name} | ours | {ours} |")
            if line.published:
                theirs = " | ".join(_published(line, x) for x in columns)
                lines.append(f"| | paper | {theirs} |")
        parts.append("\n".join([*lines, ""]))
    notes = [f"ours: {setting}", *(_source(panel.name) for panel in panels)]
    notes = [note for note in notes if note]
    return "\n".join([*parts, *notes, ""])


def _source(name: str) -> str:
    """What the paper's numbers of a panel are; empty for a panel of ours alone."""
    table = paper.tables().get(name)
    if table is None:
        return ""
    return f"paper {name}: {table.certainty} (≈), {table.source}: {table.metric}"


def _published(line: Line, x: float) -> str:
    value = line.published.get(x)
    return MISSING if value is None else f"≈{number(value)}"


def to_csv(panels: Sequence[Panel]) -> str:
    """A line for every x of every line, with the mean over seeds and their range."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADINGS)
    for panel in panels:
        for line in panel.lines:
            for x in sorted(line.ours.keys() | line.published.keys()):
                values = line.ours.get(x, [])
                ours = [line.mean(x), len(values), min(values), max(values)] if values else [""] * 4
                row = [_plain(value) for value in (x, *ours, line.published.get(x, ""))]
                writer.writerow([panel.name, line.key, *row])
    return text.getvalue()


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
