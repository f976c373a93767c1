"""Results of a sweep as tables: the numbers of runs by row and column, the paper's beside them.

Each number of a run is a record (`Seed`) in the entry of its row and column; an entry has the mean
over seeds. A table is beside a published one, whose rows and columns it has, or the sweep's own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.paper import (
    LAST,
    Key,
    PublishedTable,
    group_of,
    is_number,
    ordered,
)
from fairseq_deepnet.experiments.results import notes
from fairseq_deepnet.experiments.results.law import Law, fit, fit_published
from fairseq_deepnet.experiments.runs import MEASURES, RunResult, Status, bleu
from fairseq_deepnet.experiments.sweeps.definition import BY_MEASURE, Layout, Sweep
from fairseq_deepnet.files import shown
from fairseq_deepnet.tools.tables import Rows, Section, comma_separated, six_digits

MISSING: Final = "-"
_BAD: Final = {Status.FAILED: "crashed", Status.DIVERGED: "diverged"}
"""A bad end -> the word for it in a table."""
_HEADINGS: Final = {"x-en": "X-En", "en-x": "En-X", "average": "average", LAST: "last update"}
_COLUMNS: Final = (
    *("table", "part", "row", "column", "ours", "deviation", "seeds", "paper", "certainty"),
    *("delta", "status", "diverged", "measure", "runs"),
)
Placed = tuple[dict[str, Key], RunResult]
"""A run, and its value of every factor."""


@dataclass(frozen=True)
class Seed:
    """One run in an entry; `value` is None where it has no number."""

    run: str
    status: Status
    value: float | None


@dataclass
class Entry:
    """One cell of a table: our runs, one a seed, and the paper's value."""

    row: Key
    column: Key
    seeds: list[Seed] = field(default_factory=list)
    published: float | str | None = None

    @property
    def values(self) -> list[float]:
        """The numbers that count: of the runs that neither diverged nor crashed; where all did, of
        all. Those that are not finite never count.
        """
        sound = [seed for seed in self.seeds if seed.status not in _BAD]
        found = [seed.value for seed in sound or self.seeds if seed.value is not None]
        return [value for value in found if math.isfinite(value)]

    @property
    def ours(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def paper(self) -> float | None:
        """The paper's, where it is a number."""
        return self.published if isinstance(self.published, int | float) else None

    @property
    def delta(self) -> float | None:
        """Ours less the paper's; None where either is no number."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    @property
    def status(self) -> str:
        """Done, or the worst that happened to a seed."""
        for status in (*_BAD, Status.UNFINISHED, Status.DONE):
            if self.count(status):
                return status
        return "missing"

    def count(self, status: Status) -> int:
        """Return how many runs ended so."""
        return sum(seed.status == status for seed in self.seeds)

    @property
    def all_bad(self) -> bool:
        """True if there are runs, and none that neither diverged nor crashed."""
        return bool(self.seeds) and all(seed.status in _BAD for seed in self.seeds)

    def written(self, digits: int) -> str:
        """The mean over the seeds that came through, and how many did not; where none did, how they
        ended, and in brackets the mean of what they reached.
        """
        ended = [status for status in _BAD if self.count(status)]
        if self.all_bad and len(ended) > 1:
            parts = [replace(self, seeds=[s for s in self.seeds if s.status == e]) for e in ended]
            total = len(self.seeds)
            told = [f"{len(p.seeds)} of {total} {p.written(digits)}" for p in reversed(parts)]
            return ", ".join(told)
        number = "" if self.ours is None else f"{self.ours:.{digits}f}"
        if self.deviation is not None:
            number += f" ±{self.deviation:.{digits}f}"
        if self.all_bad:
            return f"{_BAD[ended[0]]} ({number})" if number else _BAD[ended[0]]
        for status in reversed(ended):
            number = (
                f"{number or MISSING} ({self.count(status)} of {len(self.seeds)} {_BAD[status]})"
            )
        return number or MISSING


@dataclass
class ResultTable:
    """Entries by row and column, and what is told of them.

    Args:
        rows: row key -> its name
        groups: row key -> a word in a column of its own; empty: no such column
        columns: column key -> heading
        parts: headings of parts -> the columns in them; one part without a heading is the rule
        digits: behind the point, for each column
        measure: what the entries hold, by its name
        notes: what the numbers are, below the table
        row_factor, column_factor: what the keys are values of
        depth: which of the two is a depth; empty for neither
        setting: how the runs were trained, in one line
        level: what a unigram model has, where the entries are losses and that is known
        laws: line over depth -> the law of depth that is fitted to it
    """

    name: str
    title: str
    rows: dict[Key, str]
    groups: dict[Key, str]
    columns: dict[Key, str]
    parts: dict[str, list[Key]]
    entries: dict[tuple[Key, Key], Entry]
    digits: dict[Key, int]
    measure: str
    notes: list[str]
    row_factor: str
    column_factor: str
    depth: str
    digitised: bool = False
    level: float | None = None
    setting: str = ""
    laws: dict[Key, Law] = field(default_factory=dict)

    @property
    def has_values(self) -> bool:
        """True if any of our runs has a number in it."""
        return any(entry.values for entry in self.entries.values())

    def section(self) -> Section:
        """Return the table as words."""
        parts = {name: self._grid(columns) for name, columns in self.parts.items()}
        return Section(self.title, parts, self.notes, left=2 if self.groups else 1)

    def _grid(self, columns: Sequence[Key]) -> Rows:
        """For each column ours, the paper's, and the difference; ours alone where the paper has
        nothing.
        """
        published = {e.column for e in self.entries.values() if e.published is not None}
        heading = [self.row_factor] + (["group"] if self.groups else [])
        for column in columns:
            heading += [self.columns[column]] + ["paper", "Δ"] * (column in published)
        rows = [heading]
        for key, name in self.rows.items():
            row = [name] + ([self.groups[key]] if self.groups else [])
            for column in columns:
                entry, digits = self.entries[key, column], self.digits[column]
                row.append(entry.written(digits))
                if column in published:
                    delta = MISSING if entry.delta is None else f"{entry.delta:+.{digits}f}"
                    row += [self._published(entry, digits), delta]
            rows.append(row)
        return rows

    def _published(self, entry: Entry, digits: int) -> str:
        if entry.paper is None:
            return str(entry.published or MISSING)
        printed = len(str(entry.paper).partition(".")[2])  # never fewer digits than the paper
        return f"{'≈' if self.digitised else ''}{entry.paper:.{max(digits, printed)}f}"

    def records(self) -> Iterable[list[object]]:
        """Return a line of CSV for each entry, numbers unrounded; empty where there is none."""
        certainty = "digitised" if self.digitised else "exact"
        for part, columns in self.parts.items():
            for entry in (self.entries[row, column] for row in self.rows for column in columns):
                yield [
                    *(self.name, part, entry.row, entry.column),
                    *(six_digits(entry.ours), six_digits(entry.deviation), len(entry.values)),
                    *(six_digits(entry.published), "" if entry.published is None else certainty),
                    *(six_digits(entry.delta), entry.status, entry.count(Status.DIVERGED)),
                    entry.column if self.column_factor == BY_MEASURE else self.measure,
                    " ".join(seed.run for seed in entry.seeds),
                ]

    def by_depth(self) -> dict[Key, dict[float, Entry]]:
        """The lines of a table with depths on one side: key of the other side -> depth -> entry."""
        is_row = self.depth == self.row_factor
        lines, depths = (self.columns, self.rows) if is_row else (self.rows, self.columns)
        return {
            line: {
                float(key): self.entries[(key, line) if is_row else (line, key)]
                for key in depths
                if is_number(key)
            }
            for line in lines
        }

    def fit_laws(self) -> None:
        """Fit the law of depth to the means of each line, of what neither diverged nor crashed."""
        for line, entries in self.by_depth().items():
            sound = [(depth, entry) for depth, entry in entries.items() if not entry.all_bad]
            law = fit([(depth, e.ours) for depth, e in sound if e.ours is not None])
            if law is not None:
                self.laws[line] = law


def to_csv(tables: Sequence[ResultTable]) -> str:
    """Return all entries of several tables, one a line."""
    return comma_separated([_COLUMNS, *(line for table in tables for line in table.records())])


def make_tables(sweep: Sweep, results: Sequence[RunResult]) -> list[ResultTable]:
    """Make all tables of a sweep, in the definition's order; an own one without numbers is left
    out, but for the first.

    Raises ValueError for a run that stands in none of them.
    """
    panels = {panel for layout in sweep.layouts for panel in layout.panels}
    for result in results:
        if not placed(sweep, sorted(panels), [result]):
            raise ValueError(
                f"{shown(result.folder)} has no place in {sweep.name}: its settings are none "
                "of the sweep's"
            )
    made: list[ResultTable] = []
    for layout in sweep.layouts:
        found = build(sweep, layout, results)
        made += [table for table in found if layout.paper or table.has_values or not made]
    return made


def side_by_side(results: Sequence[RunResult]) -> tuple[Section, str]:
    """Compare runs of no particular sweep, a line a run: the table, and its CSV.

    Losses are the lowest validation losses of a run.
    """
    rows = [["run", "model", "parameters", "updates", "valid loss", "valid nll", "BLEU", "chrF"]]
    lines: list[list[object]] = [[*rows[0], "status", "signature"]]
    for run in results:
        scores = run.score.values if run.score else {}
        reached = _decimal(run.score.headline if run.score else None, 2)
        if run.status is Status.DIVERGED:
            reached = "diverged" if reached == MISSING else f"diverged ({reached})"
        row = [run.name, _model_of(run.config.options), _decimal(run.parameters, 0)]
        row += [f"{run.updates:,}"]
        for points in (run.valid_loss, run.valid_nll):
            row += [_decimal(min((loss for _, loss in points), default=None), 3)]
        row += [reached, _decimal(scores.get("chrf"), 2)]
        rows.append(row)
        plain = ["" if text == MISSING else text.replace(",", "") for text in row[2:]]
        signature = run.score.signatures.get("bleu", "") if run.score else ""
        lines.append([*row[:2], *plain, run.status, signature])
    section = Section("Runs side by side", {"": rows}, notes.below_runs(results), left=2)
    return section, comma_separated(lines)


def _decimal(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def _model_of(options: Mapping[str, Any]) -> str:
    """What tells models apart: depth, width, scheme or architecture."""
    depth = f"{options.get('encoder-layers', '?')}L-{options.get('decoder-layers', '?')}L"
    scheme = options.get("residual-scheme", options.get("arch", ""))
    width = options.get("encoder-embed-dim")
    return f"{depth} {scheme}" + (f", {width} wide" if width else "")


# Where runs stand.


def placed(sweep: Sweep, panels: Sequence[str], results: Sequence[RunResult]) -> list[Placed]:
    """Every place of every run in these panels; a run that two panels share stands there once."""
    found: list[Placed] = []
    for result in results:
        places: list[dict[str, Key]] = []
        for panel in panels:
            places += [place for place in _places(result, sweep, panel) if place not in places]
        found += [(place, result) for place in places]
    return found


def _places(result: RunResult, sweep: Sweep, panel_name: str) -> list[dict[str, Key]]:
    """Where a run stands in a panel: as its sweep recorded, otherwise as its config says."""
    if result.places:
        return [place["values"] for place in result.places if place["panel"] == panel_name]
    panel = sweep.panel(panel_name)
    options: dict[str, Any] = dict(result.config.options)
    options |= {f"recipe.{key}": value for key, value in result.config.recipe.items()}
    length = ("max-update", "max-epoch", "validate-interval-updates")
    given = {key: value for key, value in panel.options.items() if key not in length}
    if any(paper.key(options.get(key)) != paper.key(value) for key, value in given.items()):
        return []
    found = {factor.name: factor.value_of(options) for factor in panel.factors}
    values = {name: value for name, value in found.items() if value is not None}
    return [values] if len(values) == len(found) else []


def _numbers(
    layout: Layout, place: dict[str, Key], run: RunResult, columns: Sequence[Key]
) -> dict[Key, float | None]:
    """What a run has for its row, by column."""
    if layout.paper is None:
        # measures are of a run that has come to its end
        ended = run.status not in (Status.UNFINISHED, Status.TO_DO)
        by_measure = layout.columns == BY_MEASURE
        return {
            name if by_measure else place[layout.columns]: MEASURES[name].value(run)
            if ended
            else None
            for name in layout.measures
        }
    measured: Mapping[Key, float] = run.score.values if run.score else {}
    if layout.measures[0] == "bleu":
        return {place[layout.columns]: bleu(run)}
    if layout.measures[0] == "valid_loss":
        measured = {str(update): loss for update, loss in run.valid_loss}
    found = {column: measured.get(column) for column in columns}
    if layout.measures[0] == "valid_loss" and measured:
        last = next(reversed(list(measured)))
        if last not in columns:
            found[LAST] = measured[last]
    return found


# Tables.


def build(sweep: Sweep, layout: Layout, results: Sequence[RunResult]) -> list[ResultTable]:
    """Make the tables of a layout: one, or one for each value of the factor that it names."""
    members = placed(sweep, layout.panels, results)
    if layout.paper is not None:
        return [_beside_paper(sweep, layout, members, paper.table(layout.paper))]
    if layout.each is None:
        return [_own(sweep, layout, members)]
    values = sweep.in_order([place[layout.each] for place, _ in members], layout.each)
    tables = []
    for value in values:
        here = [item for item in members if item[0][layout.each] == value]
        tables.append(_own(sweep, layout, here, f"-{value}", f", {layout.each} {value}"))
    return tables


def _entries(
    layout: Layout, members: Sequence[Placed], rows: list[Key], columns: list[Key]
) -> dict[tuple[Key, Key], Entry]:
    """Entries with our runs; rows and columns that only they have are added to the lists."""
    entries: dict[tuple[Key, Key], Entry] = {}
    for place, run in members:
        row = place[layout.rows]
        for column, value in _numbers(layout, place, run, columns).items():
            rows += [row] * (row not in rows)
            columns += [column] * (column not in columns)
            entry = entries.setdefault((row, column), Entry(row, column))
            entry.seeds.append(Seed(run.name, run.status, value))
    for row in rows:
        for column in columns:
            entries.setdefault((row, column), Entry(row, column))
    return entries


def _beside_paper(
    sweep: Sweep, layout: Layout, members: Sequence[Placed], published: PublishedTable
) -> ResultTable:
    # figure 6 has schemes as rows in paper.yaml and as columns on the page
    turned = layout.columns == "scheme"
    rows = list(published.columns if turned else published.rows)
    columns = list(published.rows if turned else published.columns)
    entries = _entries(layout, members, rows, columns)
    for (row, column), entry in entries.items():
        entry.published = published.value(*((column, row) if turned else (row, column)))
    rows, columns = ordered(rows), ordered(columns)
    known = published.rows
    parts: dict[str, list[Key]] = {} if layout.split else {"": columns}
    for key in columns if layout.split else ():
        parts.setdefault(known[key].group if key in known else "not in the paper", []).append(key)
    has_groups = not turned and any(row.group for row in known.values())
    measure = layout.measures[0]
    table = ResultTable(
        name=published.name,
        title=f"{published.title} (the paper's {published.source})",
        rows={key: _heading(published, layout.rows, key, not turned) for key in rows},
        groups={k: known[k].group if k in known else "" for k in rows} if has_groups else {},
        columns={key: _heading(published, layout.columns, key, turned) for key in columns},
        parts=parts,
        entries=entries,
        digits=dict.fromkeys(columns, 2 if measure == "valid_loss" else 1),
        digitised=published.certainty == "digitised",
        measure=measure,
        notes=notes.below_published(published, measure, [run for _, run in members]),
        row_factor=layout.rows,
        column_factor=layout.columns,
        depth=sweep.depth_of(layout),
    )
    if layout.fit is not None:
        ours = fit(
            [(d, e.ours) for d, e in table.by_depth()[layout.fit].items() if e.ours is not None]
        )
        theirs = fit_published(published, layout.fit)
        table.notes += [
            "L(d) = A log(d) + B, natural logarithm, least squares over the depths above:",
            f"  ours   {ours or 'needs two depths'}",
            f"  paper  {theirs}, fitted here to its digitised points; the paper gives no A and B",
        ]
    return table


def _heading(published: PublishedTable, factor: str, key: Key, is_row: bool) -> str:
    """What the paper calls a key of its table: `is_row` of one of its rows."""
    if is_row and key in published.rows:
        return published.rows[key].name
    return _HEADINGS.get(key) or published.label(factor, key)


def _own(
    sweep: Sweep, layout: Layout, members: Sequence[Placed], end: str = "", more: str = ""
) -> ResultTable:
    """A table of the sweep's own: `end` ends its name, `more` the title."""
    by_measure = layout.columns == BY_MEASURE
    rows: list[Key] = []
    columns: list[Key] = list(layout.measures) if by_measure else []
    entries = _entries(layout, members, rows, columns)
    rows = sweep.in_order(rows, layout.rows)
    columns = sweep.in_order(columns, layout.columns)
    factors = {factor.name: factor for factor in sweep.factors}
    measures = {c: MEASURES[c if by_measure else layout.measures[0]] for c in columns}
    meaning = "" if by_measure else f": {MEASURES[layout.measures[0]].meaning}"
    runs = [run for _, run in members]
    table = ResultTable(
        name=f"{layout.name}{end}",
        title=f"{sweep.title}{more}{meaning}",
        rows={row: factors[layout.rows].label(row) for row in rows},
        groups={row: group_of(row) for row in rows} if factors[layout.rows].is_scheme else {},
        columns={
            column: measure.heading
            if by_measure
            else factors[layout.columns].label(column, f"{layout.columns} ")
            for column, measure in measures.items()
        },
        parts={"": columns},
        entries=entries,
        digits={column: measure.digits for column, measure in measures.items()},
        measure=" ".join(layout.measures),
        notes=notes.below_own(
            layout.measures, [[s.status for s in e.seeds] for e in entries.values()], runs
        ),
        row_factor=layout.rows,
        column_factor=layout.columns,
        depth=sweep.depth_of(layout),
        setting=notes.trained(runs),
        level=notes.unigram_level(runs) if "nll" in layout.measures[0] else None,
    )
    if layout.laws_beside is not None:
        table.fit_laws()
        names = table.columns if table.depth == layout.rows else table.rows
        table.notes += notes.of_laws(table.laws, names, layout.laws_beside)
    return table
