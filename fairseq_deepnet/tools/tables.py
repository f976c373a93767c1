"""Tables of strings as plain text and as Markdown."""

from collections.abc import Sequence

from tabulate import tabulate

Rows = list[list[str]]
"""A heading and rows, all with the same number of cells."""


def text(rows: Rows, left: int = 1, form: str = "simple") -> str:
    """Format a table for a terminal, with the first `left` columns aligned left."""
    sides = ["left" if column < left else "right" for column in range(len(rows[0]))]
    return tabulate(rows[1:], rows[0], form, colalign=sides, disable_numparse=True)


def markdown(rows: Rows, left: int = 1) -> str:
    """Format a table as aligned Markdown."""
    return text(rows, left, "pipe")


def listed(names: Sequence[object], limit: int = 3) -> str:
    """Join the first `limit` names, and append the number of the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + more
