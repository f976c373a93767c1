"""Tables that a sweep defines for itself: its own factors and measures, beside no published one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.paper import Key
from fairseq_deepnet.experiments.report import notes
from fairseq_deepnet.experiments.report.fit import Law, fit
from fairseq_deepnet.experiments.report.measures import MEASURES
from fairseq_deepnet.experiments.report.results import Result
from fairseq_deepnet.experiments.report.table import Entry, Seed, Table, ordered
from fairseq_deepnet.experiments.report.tables import places_of
from fairseq_deepnet.experiments.sweeps.definition import Sweep
from fairseq_deepnet.experiments.sweeps.factors import Factor
from fairseq_deepnet.experiments.sweeps.layouts import BY_MEASURE, OwnLayout
from fairseq_deepnet.experiments.sweeps.state import Status

GROUPS: Final = {"post": "Post-LN", "none": "no LN", "pre": "Pre-LN"}
"""Where LayerNorm stands -> the paper's word for such schemes, in the order of its figure 6."""
_WITHOUT_END: Final = {Status.UNFINISHED.value, Status.TO_DO.value}

Placed = tuple[dict[str, Key], Result]


def group_of(scheme: str) -> str:
    """The group of a residual scheme; empty for one that is not registered."""
    from fairseq_deepnet.schemes import SCHEMES

    return GROUPS[SCHEMES[scheme].norm.value] if scheme in SCHEMES else ""


def placed(sweep: Sweep, panels: Sequence[str], results: Sequence[Result]) -> list[Placed]:
    """Every place of every run in these panels; a run that two panels share stands there once."""
    found: list[Placed] = []
    for result in results:
        seen = []
        for panel in panels:
            for values in places_of(result, sweep, panel):
                if values not in seen:
                    seen.append(values)
                    found.append((values, result))
    return found


def build(sweep: Sweep, layout: OwnLayout, results: Sequence[Result]) -> list[Table]:
    """The tables of a layout: one, or one for each value of the factor that it names."""
    everything = placed(sweep, layout.panels, results)
    if layout.each is None:
        return [_table(sweep, layout, everything, layout.name, "")]
    values = in_order([place[layout.each] for place, _ in everything], sweep, layout.each)
    return [
        _table(
            sweep,
            layout,
            [item for item in everything if item[0][layout.each] == value],
            f"{layout.name}-{value}",
            f", {layout.each} {value}",
        )
        for value in values
    ]


def _table(
    sweep: Sweep, layout: OwnLayout, members: Sequence[Placed], name: str, more: str
) -> Table:
    entries: dict[tuple[Key, Key], Entry] = {}
    rows: list[Key] = []
    columns: list[Key] = list(layout.measures) if layout.columns == BY_MEASURE else []
    for place, result in members:
        row = place[layout.rows]
        rows.append(row)
        for measure in layout.measures:
            column = measure if layout.columns == BY_MEASURE else place[layout.columns]
            columns.append(column)
            entry = entries.setdefault((row, column), Entry(row, column))
            entry.seeds.append(_seed(result, measure))
    rows = in_order(rows, sweep, layout.rows)
    columns = in_order(columns, sweep, layout.columns)
    for row in rows:
        for column in columns:
            entries.setdefault((row, column), Entry(row, column))
    factors = {factor.name: factor for panel in sweep.panels for factor in panel.factors}
    by_measure = layout.columns == BY_MEASURE
    laws = None if layout.fit is None else _laws(rows, entries)
    meaning = "" if by_measure else f": {MEASURES[layout.measures[0]].meaning}"
    runs = [result for _, result in members]
    is_scheme = "residual-scheme" in factors[layout.rows].sets
    table = Table(
        name=name,
        title=f"{sweep.title}{more}{meaning}",
        corner=layout.rows,
        rows={row: _label(factors[layout.rows], row, "") for row in rows},
        groups={row: group_of(row) for row in rows} if is_scheme else {},
        columns={
            column: MEASURES[column].heading
            if by_measure
            else _label(factors[layout.columns], column, f"{layout.columns} ")
            for column in columns
        },
        parts={"": columns},
        entries=entries,
        digits={
            column: MEASURES[column if by_measure else layout.measures[0]].digits
            for column in columns
        },
        digitised=False,
        measure=" ".join(layout.measures),
        notes=notes.below_own(layout.measures, entries.values(), runs),
        row_factor=layout.rows,
        column_factor=layout.columns,
        setting=notes.trained(runs),
        level=notes.unigram_level(runs) if "nll" in layout.measures[0] else None,
        laws=laws or {},
    )
    if laws is not None and layout.fit is not None:
        table.notes += notes.of_laws(laws, table.rows, layout.fit)
    return table


def _laws(rows: Sequence[Key], entries: dict[tuple[Key, Key], Entry]) -> dict[Key, Law]:
    """The law of depth of each row, over the means of what neither diverged nor crashed."""
    found = {}
    for name in rows:
        cells = [entry for (row, _), entry in entries.items() if row == name and not entry.all_bad]
        depths = [(float(e.column), e.ours) for e in cells if e.ours is not None]
        law = fit(sorted(depths))
        if law is not None:
            found[name] = law
    return found


def in_order(keys: Sequence[Key], sweep: Sweep, factor: str) -> list[Key]:
    """Numbers by their size, schemes by their group, otherwise as the definition has the values."""
    factors = [item for panel in sweep.panels for item in panel.factors if item.name == factor]
    defined = dict.fromkeys(paper.key(value) for item in factors for value in item.values)
    found = [key for key in defined if key in keys] + [key for key in keys if key not in defined]
    if any("residual-scheme" in item.sets for item in factors):
        order = list(GROUPS.values())
        found.sort(key=lambda key: order.index(group_of(key)) if group_of(key) else len(order))
    return ordered(list(dict.fromkeys(found)))


def _seed(result: Result, measure: str) -> Seed:
    """A run's number; none before it has come to its end, as all measures are of that."""
    value = None if result.status in _WITHOUT_END else MEASURES[measure].value(result)
    return Seed(result.name, result.status, value)


def _label(factor: Factor, value: Key, prefix: str) -> str:
    """A value in a heading; layers a side as the paper writes them."""
    if {"encoder-layers", "decoder-layers"} <= {
        o for o, times in factor.sets.items() if times == 1
    }:
        return f"{value}L-{value}L"
    return f"{prefix}{value}"
