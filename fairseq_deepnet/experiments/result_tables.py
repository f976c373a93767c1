"""Results of a sweep as tables: the numbers of runs by row and column, the paper's beside them.

Each number of a run is a record (`Seed`) in the entry of its row and column; an entry has the mean
over seeds. A table is beside a published one, whose rows and columns it has, or the sweep's own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fairseq_deepnet.experiments import notes, paper
from fairseq_deepnet.experiments.definition import BY_MEASURE, Layout, Sweep
from fairseq_deepnet.experiments.paper import LAST, Key, Law, PublishedTable, group_of
from fairseq_deepnet.experiments.runs import MEASURES, Measure, RunResult, Status, bleu
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


class Seed(NamedTuple):
    """One run in an entry; `value` is None where it has no number."""

    run: str
    status: Status
    value: float | None


@dataclass
class Entry:
    """One cell of a table: our runs, one a seed, and the paper's value."""

    seeds: list[Seed] = field(default_factory=list)
    published: float | str | None = None

    @property
    def values(self) -> list[float]:
        """The finite numbers of the runs that neither diverged nor crashed; if all did, of all."""
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
        order = (*_BAD, Status.UNFINISHED, Status.DONE)
        return next((status for status in order if self.count(status)), "missing")

    def count(self, status: Status) -> int:
        """Return how many runs ended so."""
        return sum(seed.status == status for seed in self.seeds)

    @property
    def all_bad(self) -> bool:
        """True if there are runs, and none that neither diverged nor crashed."""
        return bool(self.seeds) and all(seed.status in _BAD for seed in self.seeds)

    def written(self, digits: int) -> str:
        """Write the mean over the seeds that came through, and how many did not; where none did,
        how they ended, and in brackets the mean of what they reached.
        """
        ended = [status for status in reversed(_BAD) if self.count(status)]
        total = len(self.seeds)
        if self.all_bad and len(ended) > 1:
            parts = [Entry([s for s in self.seeds if s.status == status]) for status in ended]
            return ", ".join(f"{len(p.seeds)} of {total} {p.written(digits)}" for p in parts)
        number = "" if self.ours is None else f"{self.ours:.{digits}f}"
        if self.deviation is not None:
            number += f" ±{self.deviation:.{digits}f}"
        if self.all_bad:
            return f"{_BAD[ended[0]]} ({number})" if number else _BAD[ended[0]]
        failures = (f" ({self.count(status)} of {total} {_BAD[status]})" for status in ended)
        return (number or MISSING) + "".join(failures)


@dataclass
class ResultTable:
    """Entries by row and column, and what is said of them.

    Args:
        published: what the table stands beside; None: it is the sweep's own
        rows, columns: key -> name
        entries: (row, column) -> entry
        groups: row key -> a word in a column of its own; empty: no such column
        parts: headings of parts -> the columns in them; one part without a heading is the rule
        runs: those in it
        depth: which side is a depth; empty for neither
        notes: what the numbers are, below the table
        laws: line over depth -> the law of depth that is fitted to it
    """

    name: str
    title: str
    layout: Layout
    published: PublishedTable | None
    rows: dict[Key, str]
    columns: dict[Key, str]
    entries: dict[tuple[Key, Key], Entry]
    groups: dict[Key, str]
    parts: dict[str, list[Key]]
    runs: list[RunResult]
    depth: str
    notes: list[str]
    laws: dict[Key, Law] = field(default_factory=dict)

    @property
    def has_values(self) -> bool:
        """True if any of our runs has a number in it."""
        return any(entry.values for entry in self.entries.values())

    @property
    def setting(self) -> str:
        """How the runs of a table of the sweep's own were trained, in one line."""
        return "" if self.published else notes.trained(self.runs)

    @property
    def level(self) -> float | None:
        """What a unigram model has, where the entries are losses and that is known."""
        return notes.unigram_level(self.runs) if "nll" in self.layout.measures[0] else None

    def measure(self, column: Key) -> Measure:
        """Return what a column holds; a mean over directions is a BLEU."""
        return MEASURES.get(self.layout.measure_of(column), MEASURES["bleu"])

    def section(self) -> Section:
        """Return the table as words."""
        parts = {name: self._grid(columns) for name, columns in self.parts.items()}
        return Section(self.title, parts, self.notes, left=2 if self.groups else 1)

    def _grid(self, columns: Sequence[Key]) -> Rows:
        """Return for each column ours, and the paper's with the difference where it has any."""
        beside = {column for (_, column), e in self.entries.items() if e.published is not None}
        heading = [self.layout.rows] + ["group"] * bool(self.groups)
        for column in columns:
            heading += [self.columns[column]] + ["paper", "Δ"] * (column in beside)
        rows = [heading]
        for key, name in self.rows.items():
            row = [name] + ([self.groups[key]] if self.groups else [])
            for column in columns:
                entry, digits = self.entries[key, column], self.measure(column).digits
                row.append(entry.written(digits))
                if column in beside:
                    delta = MISSING if entry.delta is None else f"{entry.delta:+.{digits}f}"
                    row += [self._paper(entry, digits), delta]
            rows.append(row)
        return rows

    @property
    def is_digitised(self) -> bool:
        """True if the paper's numbers were read off a plot."""
        return self.published is not None and self.published.certainty == "digitised"

    def _paper(self, entry: Entry, digits: int) -> str:
        if entry.paper is None:
            return str(entry.published or MISSING)
        printed = len(str(entry.paper).partition(".")[2])  # never fewer digits than the paper
        return f"{'≈' * self.is_digitised}{entry.paper:.{max(digits, printed)}f}"

    def records(self) -> Iterator[list[object]]:
        """Yield a line of CSV for each entry, numbers unrounded; empty where there is none."""
        for part, columns in self.parts.items():
            for row, column in ((row, column) for row in self.rows for column in columns):
                entry = self.entries[row, column]
                certainty = "digitised" if self.is_digitised else "exact"
                yield [
                    *(self.name, part, row, column),
                    *(six_digits(entry.ours), six_digits(entry.deviation), len(entry.values)),
                    *(six_digits(entry.published), "" if entry.published is None else certainty),
                    *(six_digits(entry.delta), entry.status, entry.count(Status.DIVERGED)),
                    self.layout.measure_of(column),
                    " ".join(seed.run for seed in entry.seeds),
                ]

    @property
    def sides(self) -> tuple[dict[Key, str], dict[Key, str]]:
        """Names of the lines over depth, and those of the depths."""
        is_row = self.depth == self.layout.rows
        return (self.columns, self.rows) if is_row else (self.rows, self.columns)

    def by_depth(self) -> dict[Key, dict[float, Entry]]:
        """Return line -> depth -> entry, where depths are on one side."""
        lines, headings = self.sides
        depths = list(filter(paper.is_number, headings))
        if lines is self.columns:
            return {key: {float(d): self.entries[d, key] for d in depths} for key in lines}
        return {key: {float(d): self.entries[key, d] for d in depths} for key in lines}

    def law(self, line: Key) -> Law | None:
        """Fit the law of depth to the means of a line, of what neither diverged nor crashed."""
        entries = self.by_depth()[line].items()
        sound = [(d, e.ours) for d, e in entries if not e.all_bad]
        return paper.fit([(depth, value) for depth, value in sound if value is not None])


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
    """Return what sets models apart: depth, width, scheme or architecture."""
    depth = f"{options.get('encoder-layers', '?')}L-{options.get('decoder-layers', '?')}L"
    scheme = options.get("residual-scheme", options.get("arch", ""))
    width = options.get("encoder-embed-dim")
    return f"{depth} {scheme}" + (f", {width} wide" if width else "")


# Where runs stand.


def placed(sweep: Sweep, panels: Sequence[str], results: Sequence[RunResult]) -> list[Placed]:
    """Return every place of every run in panels; a run that two of them share stands there once."""
    found: list[Placed] = []
    for result in results:
        places: list[dict[str, Key]] = []
        for panel in panels:
            places += [place for place in _places(result, sweep, panel) if place not in places]
        found += [(place, result) for place in places]
    return found


def _places(result: RunResult, sweep: Sweep, panel_name: str) -> list[dict[str, Key]]:
    """Return where a run stands: as its sweep recorded, otherwise as its config says."""
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
    """Return what a run has for its row, by column."""
    measure = layout.measures[0]
    if layout.paper is None:
        # measures are of a run that has come to its end
        names = layout.measures if layout.columns == BY_MEASURE else (place[layout.columns],)
        measures = [MEASURES[layout.measure_of(name)] for name in names]
        values = [one.value(run) if run.status.is_result else None for one in measures]
        return dict(zip(names, values, strict=True))
    if measure == "bleu":
        return {place[layout.columns]: bleu(run)}
    measured: Mapping[Key, float] = run.score.values if run.score else {}
    if measure == "valid_loss":
        measured = {str(update): loss for update, loss in run.valid_loss}
    found = {column: measured.get(column) for column in columns}
    last = next(reversed(list(measured)), None)
    if measure == "valid_loss" and last is not None and last not in columns:
        found[LAST] = measured[last]
    return found


# Tables.


def build(sweep: Sweep, layout: Layout, results: Sequence[RunResult]) -> list[ResultTable]:
    """Make the tables of a layout: one, or one for each value of the factor that it names."""
    members = placed(sweep, layout.panels, results)
    if layout.paper is not None:
        return [_beside_paper(sweep, layout, members, paper.table(layout.paper))]
    if layout.best:
        members = _best(layout, members)
    if layout.each is None:
        return [_own(sweep, layout, members)]
    tables = []
    for value in sweep.in_order([place[layout.each] for place, _ in members], layout.each):
        here = [item for item in members if item[0][layout.each] == value]
        tables.append(_own(sweep, layout, here, f"-{value}", f", {layout.each} {value}"))
    return tables


def _best(layout: Layout, members: Sequence[Placed]) -> list[Placed]:
    """Return for each entry the runs with the best values of the factors that the layout names:
    validation alone decides.
    """
    places = {name for name in (layout.rows, layout.columns, layout.each) if name}
    tried: dict[tuple[Key, ...], dict[tuple[Key, ...], list[Placed]]] = {}
    for place, run in members:
        entry = tuple(place.get(name, "") for name in sorted(places))
        values = tuple(place.get(factor, "") for factor in layout.best)
        # runs of two panels without these factors are no two seeds
        values += tuple(paper.key(run.config.options.get(name)) for name in notes.APART)
        tried.setdefault(entry, {}).setdefault(values, []).append((place, run))
    return [item for by_value in tried.values() for item in min(by_value.values(), key=_ending)]


def _ending(members: Sequence[Placed]) -> tuple[bool, float]:
    """Return whether runs of all seeds diverged, and the mean of their last validation losses;
    infinite where one of them has none.
    """
    runs = [run for _, run in members]
    ended = [run.valid_loss for run in runs if run.status.is_result]
    losses = [losses[-1][1] if losses else math.inf for losses in ended]
    mean = statistics.fmean(losses) if losses and all(map(math.isfinite, losses)) else math.inf
    return all(run.status in _BAD for run in runs), mean


def _entries(
    layout: Layout, members: Sequence[Placed], rows: list[Key], columns: list[Key]
) -> dict[tuple[Key, Key], Entry]:
    """Return entries with our runs; add rows and columns that only they have to the lists."""
    entries: dict[tuple[Key, Key], Entry] = {}
    for place, run in members:
        row = place[layout.rows]
        for column, value in _numbers(layout, place, run, columns).items():
            rows += [row] * (row not in rows)
            columns += [column] * (column not in columns)
            entry = entries.setdefault((row, column), Entry())
            entry.seeds.append(Seed(run.name, run.status, value))
    places = ((row, column) for row in rows for column in columns)
    return {place: entries.get(place, Entry()) for place in places}


def _beside_paper(
    sweep: Sweep, layout: Layout, members: Sequence[Placed], published: PublishedTable
) -> ResultTable:
    known = published.rows
    # figure 6 has schemes as rows in paper.yaml and as columns on the page
    turned = layout.columns == "scheme"
    rows, columns = list(known), list(published.columns)
    rows, columns = (columns, rows) if turned else (rows, columns)
    entries = _entries(layout, members, rows, columns)
    for (row, column), entry in entries.items():
        entry.published = published.value(*((column, row) if turned else (row, column)))
    rows, columns = paper.ordered(rows), paper.ordered(columns)
    parts: dict[str, list[Key]] = {} if layout.split else {"": columns}
    for key in columns if layout.split else ():
        parts.setdefault(known[key].group if key in known else "not in the paper", []).append(key)

    def heading(factor: str, key: Key, is_row: bool) -> str:
        if is_row and key in known:
            return known[key].name
        return _HEADINGS.get(key) or published.label(factor, key)

    has_groups = not turned and any(row.group for row in known.values())
    runs = [run for _, run in members]
    table = ResultTable(
        name=published.name,
        title=f"{published.title} (the paper's {published.source})",
        layout=layout,
        published=published,
        rows={key: heading(layout.rows, key, not turned) for key in rows},
        columns={key: heading(layout.columns, key, turned) for key in columns},
        entries=entries,
        groups={k: known[k].group if k in known else "" for k in rows} if has_groups else {},
        parts=parts,
        runs=runs,
        depth=sweep.depth_of(layout),
        notes=notes.below_published(published, layout.measures[0], runs),
    )
    if isinstance(layout.fit, str):
        table.notes += [
            "L(d) = A log(d) + B, natural logarithm, least squares over the depths above:",
            f"  ours   {table.law(layout.fit) or 'needs two depths'}",
            f"  paper  {published.law(layout.fit)}, fitted here to its digitised points; the paper"
            " gives no A and B",
        ]
    return table


def _own(
    sweep: Sweep, layout: Layout, members: Sequence[Placed], end: str = "", more: str = ""
) -> ResultTable:
    """Make a table of the sweep's own: `end` ends its name, `more` the title."""
    by_measure = layout.columns == BY_MEASURE
    rows: list[Key] = []
    columns: list[Key] = list(layout.measures) if by_measure else []
    entries = _entries(layout, members, rows, columns)
    rows, columns = sweep.in_order(rows, layout.rows), sweep.in_order(columns, layout.columns)
    factors = {factor.name: factor for factor in sweep.factors}
    if by_measure:
        headings, meaning = {key: MEASURES[key].heading for key in columns}, ""
    else:
        label, meaning = factors[layout.columns].label, f": {MEASURES[layout.measures[0]].meaning}"
        headings = {key: label(key, f"{layout.columns} ") for key in columns}
    runs = [run for _, run in members]
    table = ResultTable(
        name=f"{layout.name}{end}",
        title=f"{sweep.title}{more}{meaning}",
        layout=layout,
        published=None,
        rows={row: factors[layout.rows].label(row) for row in rows},
        columns=headings,
        entries=entries,
        groups={row: group_of(row) for row in rows} if factors[layout.rows].is_scheme else {},
        parts={"": columns},
        runs=runs,
        depth=sweep.depth_of(layout),
        notes=notes.below_own(
            layout.measures, [[s.status for s in e.seeds] for e in entries.values()], runs
        ),
    )
    if layout.best:
        table.notes += notes.of_best(
            layout, rows, columns, members, {name: one.sets for name, one in factors.items()}
        )
    if isinstance(layout.fit, dict):
        fitted = {line: table.law(line) for line in table.by_depth()}
        table.laws = {line: law for line, law in fitted.items() if law is not None}
        table.notes += notes.of_laws(table.laws, table.sides[0], layout.fit)
    return table
