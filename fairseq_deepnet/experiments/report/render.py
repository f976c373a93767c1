"""Tables as Markdown, as plain text for a terminal, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from fairseq_deepnet.experiments.report.table import MISSING, Entry, Table
from fairseq_deepnet.experiments.sweeps.layouts import BY_MEASURE

_ENDINGS: Final = {"diverged": "diverged", "failed": "crashed"}
"""Status -> the word for it in a table."""
_COLUMNS: Final = (
    *("table", "part", "row", "column", "ours", "deviation", "seeds", "paper", "certainty"),
    *("delta", "status", "diverged", "measure", "runs"),
)
Rows = list[list[str]]


def _ours(entry: Entry, digits: int) -> str:
    """Our cell: the mean over the seeds that came through, and how many did not; where none did,
    how they ended, and in brackets the mean of what they reached.
    """
    ended = [status for status in _ENDINGS if entry.count(status)]
    if entry.all_bad and len(ended) > 1:
        total = len(entry.seeds)
        alike = [entry.only(status) for status in ended]
        return ", ".join(f"{len(part.seeds)} of {total} {_ours(part, digits)}" for part in alike)
    number = ""
    if entry.ours is not None:
        number = f"{entry.ours:.{digits}f}"
        if entry.deviation is not None:
            number += f" ±{entry.deviation:.{digits}f}"
    if entry.all_bad:
        ending = _ENDINGS[entry.status]
        return f"{ending} ({number})" if number else ending
    for status, ending in _ENDINGS.items():
        if entry.count(status):
            number = f"{number or MISSING} ({entry.count(status)} of {len(entry.seeds)} {ending})"
    return number or MISSING


def _published(entry: Entry, digits: int, digitised: bool) -> str:
    if entry.published is None:
        return MISSING
    if isinstance(entry.published, str):
        return entry.published
    printed = len(str(entry.published).partition(".")[2])  # never fewer digits than the paper
    return f"{'≈' if digitised else ''}{entry.published:.{max(digits, printed)}f}"


def grid(table: Table, columns: Sequence[str]) -> Rows:
    """Heading and rows: for each column ours, the paper's, and the difference; ours alone where the
    paper has nothing.
    """
    published = {
        column
        for column in columns
        if any(table.entries[row, column].published is not None for row in table.rows)
    }
    heading = [table.corner] + (["group"] if table.groups else [])
    for column in columns:
        heading += [table.columns[column]] + ["paper", "Δ"] * (column in published)
    rows = [heading]
    for key, name in table.rows.items():
        row = [name] + ([table.groups[key]] if table.groups else [])
        for column in columns:
            entry = table.entries[key, column]
            digits = table.digits[column]
            row.append(_ours(entry, digits))
            if column in published:
                delta = MISSING if entry.delta is None else f"{entry.delta:+.{digits}f}"
                row += [_published(entry, digits, table.digitised), delta]
        rows.append(row)
    return rows


def _widths(rows: Rows, least: int = 1) -> list[int]:
    return [max(least, *(len(row[index]) for row in rows)) for index in range(len(rows[0]))]


def markdown_grid(rows: Rows, left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    widths = _widths(rows, 2)  # a rule is a dash and a colon at least
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    lines = [rows[0], rule, *rows[1:]]
    return "\n".join(f"| {' | '.join(_padded(line, widths, left))} |" for line in lines)


def text_grid(rows: Rows, left: int = 1) -> str:
    """The same for a terminal."""
    widths = _widths(rows)
    lines = ["  ".join(_padded(line, widths, left)).rstrip() for line in rows]
    return "\n".join([lines[0], "-" * sum(widths, 2 * (len(widths) - 1)), *lines[1:]])


def _padded(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    return [
        f"{text:<{width}}" if index < left else f"{text:>{width}}"
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
    ]


def to_markdown(table: Table) -> str:
    """A section with the table and its notes."""
    left = 2 if table.groups else 1
    parts = [f"### {table.title}"]
    for name, columns in table.parts.items():
        parts += [f"**{name}**"] if name else []
        parts.append(markdown_grid(grid(table, columns), left))
    parts.append("\n".join(f"- {note.strip()}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def to_text(table: Table) -> str:
    """The same for a terminal."""
    left = 2 if table.groups else 1
    parts = [table.title]
    for name, columns in table.parts.items():
        parts.append((f"{name}\n" if name else "") + text_grid(grid(table, columns), left))
    parts.append("\n".join(table.notes))
    return "\n\n".join(parts) + "\n"


def to_csv(tables: Sequence[Table]) -> str:
    """One line for each cell of every table, numbers unrounded; empty where there is none."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for table in tables:
        for part, columns in table.parts.items():
            for row in table.rows:
                for column in columns:
                    entry = table.entries[row, column]
                    writer.writerow(_csv_row(table, part, entry))
    return stream.getvalue()


def _csv_row(table: Table, part: str, entry: Entry) -> list[object]:
    certainty = "digitised" if table.digitised else "exact"
    runs = " ".join(seed.run for seed in entry.seeds)
    measure = entry.column if table.column_factor == BY_MEASURE else table.measure
    return [
        *(table.name, part, entry.row, entry.column),
        *(_plain(entry.ours), _plain(entry.deviation), len(entry.values), _plain(entry.published)),
        certainty if entry.published is not None else "",
        *(_plain(entry.delta), entry.status, entry.count("diverged"), measure, runs),
    ]


def _plain(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.6g}"
