"""The paper's tables with our column beside the paper's, out of results and a sweep's layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.experiments.report import notes
from fairseq_deepnet.experiments.report.fit import fit, fit_published
from fairseq_deepnet.experiments.report.measures import bleu
from fairseq_deepnet.experiments.report.results import Result
from fairseq_deepnet.experiments.report.table import LAST, Entry, Seed, Table, is_number, ordered
from fairseq_deepnet.experiments.sweeps.definition import Sweep
from fairseq_deepnet.experiments.sweeps.layouts import PublishedLayout


def _bleu(result: Result) -> dict[Key, float]:
    value = bleu(result)
    return {} if value is None else {"": value}


def _valid_loss(result: Result) -> dict[Key, float]:
    return {str(update): loss for update, loss in result.valid_loss}


def _directions(result: Result) -> dict[Key, float]:
    return result.score.values if result.score else {}


_MEASURES: Final[dict[str, Callable[[Result], dict[Key, float]]]] = {
    "bleu": _bleu,
    "valid_loss": _valid_loss,
    "directions": _directions,
}


def places_of(result: Result, sweep: Sweep, panel_name: str) -> list[dict[str, Key]]:
    """Where a run stands in a panel: as its sweep recorded, otherwise as its config says."""
    if result.places:
        return [place["values"] for place in result.places if place["panel"] == panel_name]
    panel = sweep.panel(panel_name)
    options: dict[str, Any] = dict(result.config.options)
    options |= {f"recipe.{key}": value for key, value in result.config.recipe.items()}
    given = {key: value for key, value in panel.options.items() if not _is_length(key)}
    if any(paper.key(options.get(key)) != paper.key(value) for key, value in given.items()):
        return []
    found = {factor.name: factor.value_of(options) for factor in panel.factors}
    values = {name: value for name, value in found.items() if value is not None}
    return [values] if len(values) == len(found) else []


def _is_length(option: str) -> bool:
    return option in ("max-update", "max-epoch", "validate-interval-updates")


def build(sweep: Sweep, layout: PublishedLayout, results: Sequence[Result]) -> Table:
    """One of the paper's tables from all results that have a place in it."""
    published = paper.table(layout.paper)
    # figure 6 has schemes as rows in paper.yaml and as columns on the page
    turned = layout.columns == "scheme"
    row_keys = list(published.columns if turned else published.rows)
    column_keys = list(published.rows if turned else published.columns)
    entries: dict[tuple[Key, Key], Entry] = {}
    shown_results = []
    by_factor = layout.measure == "bleu"
    for result in results:
        for place in places_of(result, sweep, layout.panel):
            shown_results.append(result)
            row = place[layout.rows]
            measured = _MEASURES[layout.measure](result)
            if by_factor:
                pairs = {place[layout.columns]: measured.get("")}
            else:
                pairs = {column: measured.get(column) for column in column_keys}
                _add_last(pairs, layout, measured, column_keys)
            for column, value in pairs.items():
                row_keys += [row] * (row not in row_keys)
                column_keys += [column] * (column not in column_keys)
                entry = entries.setdefault((row, column), Entry(row, column))
                entry.seeds.append(Seed(result.name, result.status, value))
    for row in row_keys:
        for column in column_keys:
            entry = entries.setdefault((row, column), Entry(row, column))
            entry.published = published.value(*((column, row) if turned else (row, column)))
    row_keys = ordered(row_keys)
    column_keys = ordered(column_keys)
    table = Table(
        name=layout.paper,
        title=f"{published.title} (the paper's {published.source})",
        corner=layout.rows,
        rows={key: _name(published, layout.rows, key, turned) for key in row_keys},
        groups=_groups(published, row_keys) if not turned else {},
        columns={key: _name(published, layout.columns, key, not turned) for key in column_keys},
        parts=_parts(published, column_keys) if layout.split else {"": column_keys},
        entries=entries,
        digits=dict.fromkeys(column_keys, 2 if layout.measure == "valid_loss" else 1),
        digitised=published.certainty == "digitised",
        measure=layout.measure,
        notes=notes.below(published, layout.measure, shown_results),
        row_factor=layout.rows,
        column_factor=layout.columns,
    )
    if layout.fit is not None:
        table.notes += _law(table, layout.fit)
    return table


def _add_last(
    pairs: dict[Key, float | None],
    layout: PublishedLayout,
    measured: dict[Key, float],
    columns: Sequence[Key],
) -> None:
    """The last validation loss, where it was not taken at one of the paper's updates."""
    if layout.measure == "valid_loss" and measured:
        last = next(reversed(measured))
        if last not in columns:
            pairs[LAST] = measured[last]


def _name(published: paper.Table, factor: str, key: Key, from_columns: bool) -> str:
    if not from_columns and key in published.rows:
        return published.rows[key].name
    names = {"x-en": "X-En", "en-x": "En-X", "average": "average", LAST: "last update"}
    return names[key] if key in names else published.label(factor, key)


def _groups(published: paper.Table, rows: Sequence[Key]) -> dict[Key, str]:
    if not any(row.group for row in published.rows.values()):
        return {}
    return {key: published.rows[key].group if key in published.rows else "" for key in rows}


def _parts(published: paper.Table, columns: Sequence[Key]) -> dict[str, list[Key]]:
    parts: dict[str, list[Key]] = {}
    for key in columns:
        group = published.rows[key].group if key in published.rows else "not in the paper"
        parts.setdefault(group, []).append(key)
    return parts


def _law(table: Table, column: Key) -> list[str]:
    """The fitted law of our column, and beside it that of the paper's points."""
    entries = [
        entry for (row, found), entry in table.entries.items() if found == column and is_number(row)
    ]
    ours = fit([(float(entry.row), entry.ours) for entry in entries if entry.ours is not None])
    theirs = fit_published(paper.table(table.name), column)
    return [
        "L(d) = A log(d) + B, natural logarithm, least squares over the depths above:",
        f"  ours   {ours if ours else 'needs two depths'}",
        f"  paper  {theirs}, fitted here to its digitised points; the paper gives no A and B",
    ]
