"""The tables that a sweep's results are put into: its key `tables`, read and checked.

Keys of a table:

    paper       the published table to stand beside; without it the table is the sweep's own
    panel       a panel of the sweep (the first; a table of its own: all of them), or a list
    rows        a factor
    columns     a factor; `update` or `direction` of a published table, `measure` of an own one
    measure     what the cells hold; with `columns: measure` a list
    split       of a published table: a word of its rows that parts it
    fit         of a published table: the column that the law of depth is fitted to; of an own one,
                whose columns are depths: {TABLE: LINE}, lines of published tables (a row or a
                column) whose laws stand beside those of our rows
    name        of an own table, for files (the measure)
    each        of an own table: a factor with a table for each of its values
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.report.measures import MEASURES

PUBLISHED_MEASURES: Final = ("bleu", "valid_loss", "directions")
BY_MEASURE: Final = "measure"
"""`columns` of a table with a column for each measure."""
_PUBLISHED: Final = {"paper", "panel", "rows", "columns", "measure", "split", "fit"}
_OWN: Final = {"panel", "rows", "columns", "measure", "name", "each", "fit"}


@dataclasses.dataclass(frozen=True)
class PublishedLayout:
    """How a panel's cells become one of the paper's tables; see report/tables.py."""

    paper: str
    panel: str
    rows: str
    columns: str
    measure: str
    split: str | None = None
    fit: str | None = None

    @property
    def name(self) -> str:
        """The published table's."""
        return self.paper

    @property
    def panels(self) -> tuple[str, ...]:
        """The one that it reads."""
        return (self.panel,)


@dataclasses.dataclass(frozen=True)
class OwnLayout:
    """How the cells of panels become a table that is none of the paper's; see
    fairseq_deepnet.experiments.report.own_tables.
    """

    name: str
    panels: tuple[str, ...]
    rows: str
    columns: str
    measures: tuple[str, ...]
    each: str | None = None
    fit: dict[str, str] | None = None


Layout = PublishedLayout | OwnLayout


def layout(content: dict[str, Any], factors: dict[str, set[str]]) -> Layout:
    """One entry of `tables`; ValueError for what makes no sense.

    Arguments:
        factors: panel -> the names of its factors
    """
    allowed = _PUBLISHED if "paper" in content else _OWN
    for key in content:
        if key not in allowed:
            known = ", ".join(sorted(allowed))
            raise ValueError(f"tables: unknown key {key!r}; known are {known}")
    for key in ("rows", "columns", "measure"):
        if key not in content:
            raise ValueError(f"tables: {key} is missing")
    return _published(content, factors) if "paper" in content else _own(content, factors)


def _published(content: dict[str, Any], factors: dict[str, set[str]]) -> PublishedLayout:
    found = PublishedLayout(**({"panel": next(iter(factors))} | content))
    paper.table(found.paper)
    _check_panels(found.paper, found.panels, factors)
    _check_measures((found.measure,), PUBLISHED_MEASURES)
    return found


def _own(content: dict[str, Any], factors: dict[str, set[str]]) -> OwnLayout:
    panels = tuple(_list(content.get("panel", list(factors))))
    measures = tuple(_list(content["measure"]))
    by_measure = content["columns"] == BY_MEASURE
    name = content.get("name", "measures" if by_measure else measures[0])
    found = OwnLayout(
        name=str(name),
        panels=panels,
        rows=content["rows"],
        columns=content["columns"],
        measures=measures,
        each=content.get("each"),
        fit=content.get("fit"),
    )
    _check_panels(found.name, panels, factors)
    _check_measures(measures, MEASURES)
    if len(measures) > 1 and not by_measure:
        raise ValueError(f"tables: {name}: several measures need `columns: {BY_MEASURE}`")
    if found.fit is not None:
        _check_fit(found.name, found.fit)
    asked = {found.rows, found.each, None if by_measure else found.columns} - {None}
    for panel in panels:
        for factor in sorted(map(str, asked - factors[panel])):
            raise ValueError(f"tables: {name}: panel {panel} has no factor {factor!r}")
    return found


def _check_fit(name: str, lines: object) -> None:
    """ValueError for what is no mapping of published tables to their lines."""
    if not isinstance(lines, dict):
        raise ValueError(f"tables: {name}: fit is TABLE: LINE of published tables, not {lines!r}")
    for table, line in lines.items():
        known = paper.table(table)
        if line not in (*known.rows, *known.columns):
            raise ValueError(f"tables: {name}: fit: {table} has no row or column {line!r}")


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _check_panels(table: str, panels: Sequence[str], factors: dict[str, set[str]]) -> None:
    for panel in panels:
        if panel not in factors:
            raise ValueError(f"tables: {table}: there is no panel {panel!r}")


def _check_measures(measures: Sequence[str], known: Sequence[str] | dict[str, Any]) -> None:
    for measure in measures:
        if measure not in known:
            raise ValueError(
                f"tables: measure {measure!r} is unknown; known are {', '.join(known)}"
            )
