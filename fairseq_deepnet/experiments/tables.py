"""Results as tables: those of the paper with our numbers beside them, and those of our own sweeps.

`TABLES` has a function for each sweep in configs/sweeps/; another sweep has a table for each
measure, its first factor by its second. An entry is the mean over the seeds of one place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.paper import LAST, Key, Law, PublishedTable
from fairseq_deepnet.experiments.results import Status, pandas
from fairseq_deepnet.tools.tables import Rows, Section, listed, six_digits

if TYPE_CHECKING:
    import pandas as pd

MISSING: Final = "-"
BAD: Final = {Status.FAILED: "crashed", Status.DIVERGED: "diverged"}
"""A bad end -> the word for it in a table."""
APART: Final = ("lr", "adam-eps", "freeze-norms", "max-update")
"""Options among which a table of the best runs chooses in each place."""
_ORDER: Final = (*BAD, Status.UNFINISHED, Status.DONE)
_HEADINGS: Final = {"x-en": "X-En", "en-x": "En-X", "average": "average", LAST: "last update"}
CSV: Final = (
    *("table", "part", "row", "column", "ours", "deviation", "seeds", "paper", "certainty"),
    *("delta", "status", "diverged", "measure", "runs"),
)


class Measure(NamedTuple):
    """A column of results.csv that a table can show."""

    heading: str
    meaning: str
    axis: str
    digits: int


MEASURES: Final = {
    "bleu": Measure("BLEU", "sacreBLEU of the {split}", "BLEU, more is better", 1),
    "paper_bleu": Measure("BLEU", "BLEU of the {split}", "BLEU, more is better", 1),
    "valid_nll": Measure(
        "valid nll",
        "validation loss of the last update: negative log-likelihood, bits per token",
        "validation nll (bits per token), less is better",
        2,
    ),
    "best_valid_nll": Measure(
        "best valid nll",
        "lowest validation loss of the run: negative log-likelihood, bits per token",
        "lowest validation nll (bits per token), less is better",
        2,
    ),
    "valid_loss": Measure(
        "valid loss",
        "validation loss of the last update, with label smoothing, bits per token",
        "validation loss (bits per token), less is better",
        2,
    ),
    "train_nll": Measure(
        "train nll",
        "training loss, mean of the last 5 in the log: negative log-likelihood, bits per token",
        "training nll (bits per token), less is better",
        2,
    ),
    "seconds_per_update": Measure(
        "s/update",
        "seconds per update, median of the log, whatever else the machine did",
        "seconds per update",
        2,
    ),
}


@dataclass
class Entry:
    """Place of a table: our runs, one per seed, and the paper's value.

    Args:
        runs: rows of results.csv
        measure: the column that is shown
    """

    runs: pd.DataFrame
    measure: str
    paper: float | str | None = None

    @functools.cached_property
    def values(self) -> pd.Series:
        """The measure of each run that has ended; NaN of others."""
        numbers = pandas().to_numeric(self.runs[self.measure])
        return numbers.where(self.runs["status"].isin([s for s in Status if s.is_result]))

    @property
    def all_bad(self) -> bool:
        """True if there are runs, and none that neither diverged nor crashed."""
        return bool(len(self.runs)) and bool(self.runs["status"].isin(BAD).all())

    @property
    def counted(self) -> pd.Series:
        """The finite values of the runs that neither diverged nor crashed; if all did, of all."""
        sound = self.values if self.all_bad else self.values[~self.runs["status"].isin(BAD)]
        return sound[sound.abs() < math.inf]

    @property
    def ours(self) -> float | None:
        """The mean over seeds."""
        return float(self.counted.mean()) if len(self.counted) else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return float(self.counted.std()) if len(self.counted) > 1 else None

    @property
    def delta(self) -> float | None:
        """Ours less the paper's; None where either is no number."""
        is_number = isinstance(self.paper, int | float)
        return self.ours - self.paper if self.ours is not None and is_number else None  # type: ignore[operator]

    def count(self, status: Status) -> int:
        """Return how many runs ended so."""
        return int((self.runs["status"] == status).sum())

    @property
    def status(self) -> str:
        """Done, or the worst that happened to a seed."""
        return next((status for status in _ORDER if self.count(status)), "missing")

    def text(self) -> str:
        """Return the mean over the seeds that ended well, and how many did not; where none did, how
        they ended, with the mean that they reached in brackets.
        """
        ended = [status for status in reversed(BAD) if self.count(status)]
        total = len(self.runs)
        if self.all_bad and len(ended) > 1:
            parts = [Entry(self.runs[self.runs["status"] == s], self.measure) for s in ended]
            return ", ".join(f"{len(p.runs)} of {total} {p.text()}" for p in parts)
        digits = MEASURES[self.measure].digits
        number = "" if self.ours is None else f"{self.ours:.{digits}f}"
        if self.deviation is not None:
            number += f" ±{self.deviation:.{digits}f}"
        if self.all_bad:
            return f"{BAD[ended[0]]} ({number})" if number else BAD[ended[0]]
        failures = (f" ({self.count(status)} of {total} {BAD[status]})" for status in ended)
        return (number or MISSING) + "".join(failures)


@dataclass
class Table:
    """Entries by row and column.

    Args:
        row, column: names of the two sides, such as scheme and depth
        rows, columns: key -> heading
        published: the paper's table beside ours; None for one of our own
        groups: row key -> text of a second column of words; empty: no such column
        parts: headings of parts -> the columns in them; usually one part without a heading
        depth: the side that is a depth; empty for neither
        laws: line over depth -> the law of depth fitted to it
        level: validation loss of a unigram model, where that is one value
    """

    name: str
    title: str
    row: str
    column: str
    rows: dict[Key, str]
    columns: dict[Key, str]
    entries: dict[tuple[Key, Key], Entry]
    notes: list[str]
    published: PublishedTable | None = None
    groups: dict[Key, str] = field(default_factory=dict)
    parts: dict[str, list[Key]] = field(default_factory=dict)
    depth: str = ""
    laws: dict[Key, Law] = field(default_factory=dict)
    level: float | None = None
    setting: str = ""

    @property
    def has_values(self) -> bool:
        """True if any of our runs has a number in it."""
        return any(entry.ours is not None for entry in self.entries.values())

    def section(self) -> Section:
        """Return the table as words."""
        parts = self.parts or {"": list(self.columns)}
        grids = {name: self._grid(columns) for name, columns in parts.items()}
        return Section(self.title, grids, self.notes, left=2 if self.groups else 1)

    def _grid(self, columns: Sequence[Key]) -> Rows:
        """Return for each column ours, and the paper's with the difference where it has any."""
        beside = {column for (_, column), e in self.entries.items() if e.paper is not None}
        heading = [self.row, "group"] if self.groups else [self.row]
        for column in columns:
            heading += [self.columns[column], *(["paper", "Δ"] if column in beside else [])]
        rows = [heading]
        for key, name in self.rows.items():
            row = [name, self.groups[key]] if self.groups else [name]
            for column in columns:
                entry = self.entries[key, column]
                row.append(entry.text())
                if column in beside:
                    digits = MEASURES[entry.measure].digits
                    delta = MISSING if entry.delta is None else f"{entry.delta:+.{digits}f}"
                    row += [self._of_paper(entry, digits), delta]
            rows.append(row)
        return rows

    @property
    def _is_digitised(self) -> bool:
        return self.published is not None and self.published.certainty == "digitised"

    def _of_paper(self, entry: Entry, digits: int) -> str:
        if not isinstance(entry.paper, int | float):
            return entry.paper or MISSING
        printed = len(str(entry.paper).partition(".")[2])  # never fewer digits than the paper
        return f"{'≈' if self._is_digitised else ''}{entry.paper:.{max(digits, printed)}f}"

    def lines(self) -> Iterator[list[object]]:
        """Yield a line of CSV for each entry, numbers unrounded; empty where there is none."""
        certainty = self.published.certainty if self.published else "exact"
        for part, columns in (self.parts or {"": list(self.columns)}).items():
            for row, column in ((row, column) for row in self.rows for column in columns):
                entry = self.entries[row, column]
                yield [
                    *(self.name, part, row, column),
                    *(six_digits(entry.ours), six_digits(entry.deviation), len(entry.counted)),
                    *(six_digits(entry.paper), "" if entry.paper is None else certainty),
                    *(six_digits(entry.delta), entry.status, entry.count(Status.DIVERGED)),
                    entry.measure.removeprefix("paper_"),
                    " ".join(entry.runs["run"]),
                ]

    def by_depth(self) -> dict[Key, dict[float, Entry]]:
        """Return line -> depth -> entry, where depths are on one side."""
        if self.depth == self.row:
            depths = list(filter(paper.is_number, self.rows))
            return {key: {float(d): self.entries[d, key] for d in depths} for key in self.columns}
        depths = list(filter(paper.is_number, self.columns))
        return {key: {float(d): self.entries[key, d] for d in depths} for key in self.rows}

    def law(self, line: Key) -> Law | None:
        """Fit the law of depth to the means of a line, of runs that ended well."""
        entries = self.by_depth()[line].items()
        return paper.fit([(d, e.ours) for d, e in entries if not e.all_bad and e.ours is not None])


# From rows of results.csv to a table.


def in_panels(runs: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the runs with a place in one of these panels."""
    places = runs["panels"].map(lambda text: {place.partition(":")[0] for place in text.split()})
    return runs[places.map(lambda panels: bool(panels & set(names)))]


def best(runs: pd.DataFrame, *place: str) -> pd.DataFrame:
    """Return of each place the runs with those options of APART whose runs end best; only
    validation decides.
    """
    chosen = [
        min((runs for _, runs in here.groupby(list(APART), dropna=False, sort=False)), key=_ending)
        for _, here in runs.groupby(list(place), sort=False)
    ]
    return pandas().concat(chosen) if chosen else runs


def _ending(runs: pd.DataFrame) -> tuple[bool, float]:
    """Return whether the runs of all seeds ended badly, and the mean of their last validation
    losses; infinite where one of those that ended has none.
    """
    ended = runs[runs["status"].isin([s for s in Status if s.is_result])]
    mean = pandas().to_numeric(ended["valid_loss"]).mean(skipna=False)
    is_finite = len(ended) > 0 and math.isfinite(mean)
    return bool(runs["status"].isin(BAD).all()), mean if is_finite else math.inf


def _collect(
    runs: pd.DataFrame, row: str, column: str, measure: str
) -> tuple[dict[tuple[Key, Key], Entry], list[Key], list[Key]]:
    """Return the entries of runs by row and column, with their rows and their columns."""
    there = runs.dropna(subset=[row, column])
    groups = there.groupby([row, column], sort=False)
    entries = {(str(r), str(c)): Entry(group, measure) for (r, c), group in groups}
    return entries, list(dict.fromkeys(there[row])), list(dict.fromkeys(there[column]))


def _filled(
    entries: dict[tuple[Key, Key], Entry], rows: Iterable[Key], columns: Sequence[Key], like: Any
) -> dict[tuple[Key, Key], Entry]:
    """Return an entry for each place, of no runs where there is none."""
    empty, measure = like.iloc[:0], next((e.measure for e in entries.values()), "bleu")
    places = ((row, column) for row in rows for column in columns)
    return {place: entries.get(place, Entry(empty, measure)) for place in places}


def _ordered(keys: Sequence[Key], side: str) -> list[Key]:
    """Sort numbers by size, and schemes by the place of their LayerNorm."""
    keys = list(keys)
    if side == "scheme":
        order = [*paper.GROUPS.values(), ""]
        keys.sort(key=lambda key: order.index(paper.group_of(key)))
    return paper.ordered(keys)


def _label(runs: pd.DataFrame, side: str, key: Key, prefix: str = "") -> str:
    """Return a heading; layers per side as the paper writes them."""
    here = runs[runs[side] == key]
    per_side = f"{key}L-{key}L"
    return per_side if side == "depth" and per_side in set(here["layers"]) else f"{prefix}{key}"


def own(
    runs: pd.DataFrame,
    row: str,
    column: str,
    measure: str,
    name: str | None = None,
    more: str = "",
    beside: dict[str, Key] | None = None,
) -> Table:
    """Make a table of our own.

    Args:
        name: for files (the measure)
        more: ends the sweep's title
        beside: published table -> line, whose laws of depth are shown beside ours
    """
    entries, rows, columns = _collect(runs, row, column, measure)
    rows, columns = _ordered(rows, row), _ordered(columns, column)
    meaning = MEASURES[measure].meaning.format(split=_splits(runs))
    shown = runs.dropna(subset=[row, column])
    table = Table(
        name=name or measure,
        title=f"{_title(runs)}{more}: {meaning}",
        row=row,
        column=column,
        rows={key: _label(runs, row, key) for key in rows},
        columns={key: _label(runs, column, key, f"{column} ") for key in columns},
        entries=_filled(entries, rows, columns, runs),
        notes=_below_own(shown, [measure], entries.values()),
        groups={key: paper.group_of(key) for key in rows} if row == "scheme" else {},
        depth="depth" if "depth" in (row, column) else "",
        level=_level(shown) if "nll" in measure else None,
        setting=trained(shown),
    )
    if beside is not None:
        fitted = {line: table.law(line) for line in table.by_depth()}
        table.laws = {line: law for line, law in fitted.items() if law is not None}
        table.notes += _of_laws(table, beside)
    return table


def by_measure(runs: pd.DataFrame, row: str, *measures: str, name: str = "measures") -> Table:
    """Make a table of our own with a column for each measure."""
    entries: dict[tuple[Key, Key], Entry] = {}
    rows: list[Key] = []
    for measure in measures:
        found, rows, _ = _collect(runs.assign(measure=measure), row, "measure", measure)
        entries |= found
    rows = _ordered(rows, row)
    return Table(
        name=name,
        title=_title(runs),
        row=row,
        column="measure",
        rows={key: _label(runs, row, key) for key in rows},
        columns={measure: MEASURES[measure].heading for measure in measures},
        entries=entries,
        notes=_below_own(runs, measures, entries.values()),
        groups={key: paper.group_of(key) for key in rows} if row == "scheme" else {},
        depth="depth" if row == "depth" else "",
        setting=trained(runs),
    )


def beside_paper(
    name: str,
    runs: pd.DataFrame,
    row: str,
    column: str,
    measure: str,
    fit: Key | None = None,
    by_group: bool = False,
) -> Table:
    """Make one of the paper's tables with our numbers.

    Args:
        fit: the column that the law of depth is fitted to
        by_group: a part for each group of the paper's rows
    """
    published = paper.table(name)
    known = published.rows
    turned = column == "scheme"  # paper.yaml has schemes as rows
    entries, our_rows, our_columns = _collect(runs, row, column, measure)
    rows, columns = list(known), list(published.columns)
    rows, columns = (columns, rows) if turned else (rows, columns)
    rows = paper.ordered(list(dict.fromkeys([*rows, *our_rows])))
    columns = paper.ordered(list(dict.fromkeys([*columns, *our_columns])))
    entries = _filled(entries, rows, columns, runs)
    for (r, c), entry in entries.items():
        entry.paper = published.value(*((c, r) if turned else (r, c)))
    parts: dict[str, list[Key]] = {}
    for key in columns if by_group else ():
        parts.setdefault(known[key].group if key in known else "not in the paper", []).append(key)

    def heading(side: str, key: Key, is_row: bool) -> str:
        if is_row and key in known:
            return known[key].name
        return _HEADINGS.get(key) or published.label(side, key)

    has_groups = not turned and any(one.group for one in known.values())
    table = Table(
        name=name,
        title=f"{published.title} (the paper's {published.source})",
        row=row,
        column=column,
        rows={key: heading(row, key, not turned) for key in rows},
        columns={key: heading(column, key, turned) for key in columns},
        entries=entries,
        notes=_below_published(published, runs, measure),
        published=published,
        groups={k: known[k].group if k in known else "" for k in rows} if has_groups else {},
        parts=parts,
        depth="depth" if "depth" in (row, column) else "",
    )
    if fit is not None:
        table.notes += [
            "L(d) = A log(d) + B, natural logarithm, least squares over the depths above:",
            f"  ours   {table.law(fit) or 'needs two depths'}",
            f"  paper  {published.law(fit)}, fitted here to its digitised points; the paper gives "
            "no A and B",
        ]
    return table


# The tables of each sweep.


def _with_paper_bleu(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the BLEU that the paper reports: of tokens, where the data are words."""
    return runs.assign(paper_bleu=runs["tokenised_bleu"].fillna(runs["bleu"]))


def _table1(runs: pd.DataFrame) -> list[Table]:
    return [beside_paper("table1", _with_paper_bleu(runs), "scheme", "depth", "paper_bleu")]


def _fig6(runs: pd.DataFrame) -> list[Table]:
    runs = _with_paper_bleu(runs)
    return [beside_paper("fig6", runs, "depth", "scheme", "paper_bleu", by_group=True)]


def _fig7(runs: pd.DataFrame) -> list[Table]:
    tables = []
    for panel in ("lr", "batch", "width"):
        name = f"fig7-{panel}"
        curves = _at_updates(in_panels(runs, panel), paper.table(name).columns)
        tables.append(beside_paper(name, curves, panel, "update", "valid_loss"))
    return tables


def _at_updates(runs: pd.DataFrame, updates: Sequence[Key]) -> pd.DataFrame:
    """Return a row per run and update with the validation loss there; the last one in a column of
    its own where the run ended at another update.
    """
    rows = []
    for run in runs.to_dict("records"):
        pairs = (pair.split(":") for pair in str(run["valid_losses"] or "").split())
        losses = {update: float(loss) for update, loss in pairs}
        places = {update: losses.get(update) for update in updates}
        last = next(reversed(losses), None)
        if last is not None and last not in places:
            places[LAST] = losses[last]
        rows += [{**run, "update": at, "valid_loss": loss} for at, loss in places.items()]
    return pandas().DataFrame(rows, columns=[*runs.columns, "update"])


def _table2(runs: pd.DataFrame) -> list[Table]:
    measures = ["x-en", "en-x", "average"]
    ours = [runs.assign(direction=name, bleu=runs[name]) for name in measures]
    long = pandas().concat(ours)
    return [
        beside_paper("table2", long, "depth", "direction", "bleu"),
        beside_paper(
            "fig8",
            long[long["direction"] == "average"],
            "depth",
            "direction",
            "bleu",
            fit="average",
        ),
    ]


def _depth(runs: pd.DataFrame) -> list[Table]:
    chosen = best(in_panels(runs, "law", "norms", "epsilon", "thousand"), "scheme", "depth")
    laws: dict[str, Key] = {"fig6": "deepnorm", "fig8": "average"}
    tables = [
        own(chosen, "scheme", "depth", "bleu", "depth", beside=laws),
        own(chosen, "scheme", "depth", "valid_nll", "depth-nll"),
    ]
    for table in tables:
        table.notes += _of_best(chosen, table)
    law = in_panels(runs, "law")
    tables += each(law, "depth", "scheme", "lr", "valid_loss", "rates")
    tables += each(law, "depth", "scheme", "lr", "bleu", "rates-bleu")
    for panel, row, laws in (
        ("norms", "norms", {"fig6": "deepnorm"}),
        ("epsilon", "scheme", {}),
        ("long", "scheme", {}),
        ("ablation", "variant", {}),
    ):
        here = in_panels(runs, panel)
        if len(here):
            tables.append(own(here, row, "depth", "bleu", panel, beside=laws or None))
            if panel != "long":
                tables.append(own(here, row, "depth", "valid_nll", f"{panel}-nll"))
    return tables


def each(
    runs: pd.DataFrame, factor: str, row: str, column: str, measure: str, name: str | None = None
) -> list[Table]:
    """Make a table of our own for each value of a factor."""
    return [
        own(
            runs[runs[factor] == v],
            row,
            column,
            measure,
            f"{name or measure}-{v}",
            f", {factor} {v}",
        )
        for v in _ordered(list(dict.fromkeys(runs[factor].dropna())), factor)
    ]


def _lr_batch(runs: pd.DataFrame) -> list[Table]:
    return each(runs, "scheme", "lr", "batch", "valid_nll")


def _methods_6l(runs: pd.DataFrame) -> list[Table]:
    names = ("bleu", "valid_loss", "valid_nll", "train_nll", "seconds_per_update")
    return [by_measure(runs, "scheme", *names)]


def tables_by_factors(runs: pd.DataFrame) -> list[Table]:
    """Make the tables of any sweep: its first factor by its second, one for each value of a third;
    of a single factor, a column per measure.
    """
    factors: dict[tuple[str, ...], list[str]] = {}
    for place in dict.fromkeys(" ".join(runs["panels"]).split()):
        panel, _, names = place.partition(":")
        factors.setdefault(tuple(names.split(",")), []).append(panel)
    tables = []
    for (row, *others), panels in factors.items():
        here = in_panels(runs, *panels)
        for measure in ("valid_nll", "bleu"):
            if not others:
                tables.append(by_measure(here, row, "valid_nll", "bleu"))
                break
            if len(others) == 1:
                tables.append(own(here, row, others[0], measure))
            else:
                tables += each(here, others[1], row, others[0], measure)
    return tables


_FACTORS: Final = ("scheme", "depth", "lr", "norms", "variant", "batch", "width")
"""Columns that `TABLES` expect; a sweep that was run in part may lack one."""
TABLES: Final[dict[str, Callable[[pd.DataFrame], list[Table]]]] = {
    "table1": _table1,
    "table2": _table2,
    "tatoeba": _table2,
    "fig6": _fig6,
    "fig7": _fig7,
    "depth": _depth,
    "lr_batch": _lr_batch,
    "methods_6l": _methods_6l,
}
"""Sweep -> its tables."""


def tables_of(sweep: str, runs: pd.DataFrame) -> list[Table]:
    """Return the tables of a sweep, without those that have no number of ours; the first stays."""
    runs = runs.assign(**{name: None for name in _FACTORS if name not in runs})
    tables = TABLES.get(sweep, tables_by_factors)(runs)
    return [t for n, t in enumerate(tables) if t.published or t.has_values or n == 0]


def side_by_side(runs: pd.DataFrame) -> tuple[Section, list[list[object]]]:
    """Compare runs of no sweep, one line per run: the table, and its lines of CSV."""
    columns = {
        "parameters": ("parameters", 0),
        "updates": ("updates", 0),
        "best_valid_loss": ("valid loss", 3),
        "best_valid_nll": ("valid nll", 3),
        "bleu": ("BLEU", 2),
        "chrf": ("chrF", 2),
    }
    rows = [["run", "model", *(heading for heading, _ in columns.values())]]
    lines: list[list[object]] = []
    for run in runs.to_dict("records"):
        width = f", {run['shape'].partition('/')[0]} wide" if isinstance(run["shape"], str) else ""
        row = [run["run"], f"{run['layers']} {run['scheme_or_arch'] or ''}{width}"]
        for name, (_, digits) in columns.items():
            value = run.get(name)
            there = isinstance(value, int | float) and math.isfinite(value)
            text = f"{value:,.{digits}f}" if there else MISSING
            if name == "bleu" and run["status"] == Status.DIVERGED:
                text = f"diverged ({text})" if there else "diverged"
            row.append(text)
            ours, count = six_digits(value if there else None), int(there)
            is_bad = int(run["status"] == Status.DIVERGED)
            line = ["runs", "", run["run"], name, ours, "", count, "", "", "", run["status"]]
            lines.append([*line, is_bad, name, run["run"]])
        rows.append(row)
    notes = ["validation losses: the lowest of the run, bits per token; nll is without smoothing"]
    notes += _scores(runs, "BLEU", "bleu")
    signatures = dict.fromkeys(runs["chrf_signature"].dropna()) if "chrf_signature" in runs else ()
    notes += [f"chrF: {signature}" for signature in signatures]
    return Section("Runs side by side", {"": rows}, notes + _endings(runs), left=2), lines


# Notes below a table: how each number was obtained.


def _title(runs: pd.DataFrame) -> str:
    return str(runs["title"].iloc[0]) if len(runs) else ""


def _splits(runs: pd.DataFrame) -> str:
    """Return what the scores are of: usually the test set."""
    return ", ".join(dict.fromkeys(runs["scored_on"].dropna())) or "test set"


def _below_published(published: PublishedTable, runs: pd.DataFrame, measure: str) -> list[str]:
    notes = [
        f"paper: {published.certainty}, {paper.REFERENCE}, {published.source}: {published.metric}"
    ]
    if published.certainty == "digitised":
        notes.append("≈: read off the paper's plot, to about 0.1 BLEU or 0.01 of a loss")
    if measure == "valid_loss":
        kind = "label-smoothed validation loss, bits per token"
        facts = [
            (r["run"], f"{kind}, {r['updates']:,} updates, {r['data']}")
            for r in runs.to_dict("records")
            if r["valid_losses"]
        ]
        notes += _grouped("ours", facts)
    else:
        notes += _scores(runs, "ours", measure)
    return notes + _endings(runs)


def _scores(runs: pd.DataFrame, title: str, measure: str) -> list[str]:
    """Return how the scores were obtained: metric, signature, text, search, model, data."""
    facts = []
    for run in runs.to_dict("records"):
        if not isinstance(run.get("scored"), str):
            continue
        is_tokenised = measure == "paper_bleu" and isinstance(run["tokenised_signature"], str)
        kind = "tokenised BLEU" if is_tokenised else "sacreBLEU (detokenised)"
        signature = run["tokenised_signature" if is_tokenised else "signature"] or ""
        facts.append(
            (run["run"], f"{kind} {signature}".strip() + f", {run['scored']}, {run['data']}")
        )
    return _grouped(title, facts)


def _below_own(runs: pd.DataFrame, measures: Sequence[str], entries: Iterable[Entry]) -> list[str]:
    notes = [
        f"{MEASURES[m].heading}: {MEASURES[m].meaning.format(split=_splits(runs))}"
        for m in measures
    ]
    level = _level(runs)
    if level is not None and any("nll" in name for name in measures):
        notes.append(f"a model that only knows how frequent subwords are has an nll of {level:.2f}")
    notes.append(f"trained: {trained(runs)}")
    if "bleu" in measures:
        notes += _scores(runs, "BLEU", "bleu")
    counts = sorted({len(entry.runs) for entry in entries})
    if counts and counts[-1] > 1:
        seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        notes.append(
            "mean ±sample standard deviation over those runs of a cell that ended well; "
            f"{seeds} seeds were run"
        )
    if (runs["status"] == Status.DIVERGED).any():
        notes.append(
            "diverged: see below; the number in brackets is the mean that such runs reached, which "
            "counts in no other cell"
        )
    return notes + _endings(runs)


def _of_best(runs: pd.DataFrame, table: Table) -> list[str]:
    """Return which options the runs in each place of a table of the best have."""
    notes = ["of all runs in a place, those whose options gave the lowest last validation loss"]
    differing = [name for name in APART if runs[name].nunique(dropna=False) > 1]
    for row in table.rows:
        texts = []
        for column in table.columns:
            here = table.entries[row, column].runs
            if len(here):
                options = ((name, here[name].iloc[0]) for name in differing)
                said = " ".join(
                    f"{name} {value if isinstance(value, str) else 'default'}"
                    for name, value in options
                )
                texts.append(f"{column}: {said}")
        notes += [f"  {row}, {table.column} {', '.join(texts)}"] if texts else []
    return notes


def _of_laws(table: Table, beside: dict[str, Key]) -> list[str]:
    """Return the fitted laws of depth with their residuals, and those of the paper's lines."""
    if not table.laws:
        return []
    names = table.columns if table.depth == table.row else table.rows
    notes = ["L(d) = A log(d) + B, natural logarithm, least squares; d layers per side:"]
    for key, law in table.laws.items():
        residuals = ", ".join(f"{depth:g}: {value:+.2f}" for depth, value in law.residuals)
        notes.append(f"  {names[key]}: {law}; residuals {residuals}")
    for name, line in beside.items():
        theirs = paper.table(name)
        unit = "" if "-" in theirs.label("depth", "10") else "; there d is layers in all"
        source = f"  the paper's {theirs.source}, {line}, {theirs.title}"
        notes.append(f"{source}: {theirs.law(line)}{unit}")
    return notes


def trained(runs: pd.DataFrame) -> str:
    """Return shape, length, rate and data of runs in one line: each value that occurs."""

    def values(name: str) -> str:
        keys = paper.ordered(sorted({paper.key(value) for value in runs[name].dropna()}))
        return ", ".join(f"{int(key):,}" if key.isdecimal() else key for key in keys) or "?"

    folders = ", ".join(sorted({Path(str(data)).name for data in runs["data"].dropna()})) or "?"
    shapes = "".join(f"{shape}, " for shape in sorted(set(runs["shape"].dropna())))
    return (
        f"{shapes}{values('max-update')} updates of {values('tokens')} tokens, "
        f"learning rate {values('lr')}, warm-up {values('warmup-updates')}, {folders}, "
        f"seeds {values('seed')}"
    )


def _level(runs: pd.DataFrame) -> float | None:
    """Return the loss of a unigram model on the data of all runs; None where that varies."""
    levels = {round(level, 4) for level in runs["unigram_nll"].dropna()}
    return levels.pop() if len(levels) == 1 else None


def _grouped(title: str, facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return one line for each different text, with the runs that it is true of."""
    groups: dict[str, dict[str, None]] = {}
    for run, text in facts:
        groups.setdefault(text, {})[run] = None
    if len(groups) == 1:
        return [f"{title}: {next(iter(groups))}"]
    return [f"{title}, {listed(list(runs), 4)}: {text}" for text, runs in groups.items()]


def _endings(runs: pd.DataFrame) -> list[str]:
    """Return why runs are not done, one line per run."""
    bad = runs[runs["status"] != Status.DONE].drop_duplicates("run")
    return [f"{run}: {why or s}" for run, why, s in bad[["run", "reason", "status"]].to_numpy()]
