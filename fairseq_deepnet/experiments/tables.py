"""Tables of results: the paper's with our numbers beside them, and those of our own sweeps.

`TABLES` has a function for each sweep in configs/sweeps/ whose tables are not simply its first
factor by its second. An entry is the mean over the seeds of one place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.paper import LAST, Key, Law, PublishedTable
from fairseq_deepnet.experiments.results import Status, pandas
from fairseq_deepnet.tools.tables import Rows, Section, listed, six_digits

if TYPE_CHECKING:
    import pandas as pd

MISSING: Final = "-"
BAD: Final = {Status.FAILED: "crashed", Status.DIVERGED: "diverged"}
"""Status of an unsuccessful run -> its word in a table."""
_CHOSEN: Final = ("lr", "adam-eps", "freeze-norms", "max-update")
"""Options among which `best` chooses in each place."""
_ORDER: Final = (*BAD, Status.UNFINISHED, Status.DONE)
_HEADINGS: Final = {"x-en": "X-En", "en-x": "En-X", LAST: "last update"}
CSV: Final = (
    *("table", "row", "column", "measure", "ours", "deviation", "seeds", "paper", "delta"),
    *("status", "runs"),
)


class Measure(NamedTuple):
    """A column of results.csv that a table can show."""

    heading: str
    meaning: str
    digits: int


MEASURES: Final = {
    "bleu": Measure("BLEU", "sacreBLEU", 1),
    "paper_bleu": Measure("BLEU", "BLEU, of tokens where the data are words", 1),
    "valid_nll": Measure("valid nll", "last validation loss, nll in bits per token", 2),
    "valid_loss": Measure("valid loss", "last validation loss, label-smoothed, bits per token", 2),
    "train_nll": Measure("train nll", "mean of the last 5 training losses, bits per token", 2),
    "seconds_per_update": Measure("s/update", "median of the log", 2),
}


@dataclass
class Entry:
    """Entry of a table: our runs, one per seed, and the paper's value.

    Args:
        runs: rows of results.csv
        measure: column to show
    """

    runs: pd.DataFrame
    measure: str
    paper: float | str | None = None

    @functools.cached_property
    def values(self) -> pd.Series:
        """Measure of each run that has ended; NaN for others."""
        numbers = pandas().to_numeric(self.runs[self.measure])
        return numbers.where(self.runs["status"].isin([s for s in Status if s.is_result]))

    @property
    def all_bad(self) -> bool:
        """True if there are runs and all of them diverged or crashed."""
        return bool(len(self.runs)) and bool(self.runs["status"].isin(BAD).all())

    @property
    def counted(self) -> pd.Series:
        """Finite values of the successful runs, or of all runs if none was successful."""
        sound = self.values if self.all_bad else self.values[~self.runs["status"].isin(BAD)]
        return sound[sound.abs() < math.inf]

    @property
    def ours(self) -> float | None:
        """Mean over seeds."""
        return float(self.counted.mean()) if len(self.counted) else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return float(self.counted.std()) if len(self.counted) > 1 else None

    @property
    def delta(self) -> float | None:
        """Our value minus the paper's; None unless both are numbers."""
        is_number = isinstance(self.paper, int | float)
        return self.ours - self.paper if self.ours is not None and is_number else None  # type: ignore[operator]

    @property
    def status(self) -> str:
        """Status: done, or the worst of all seeds."""
        return next((s for s in _ORDER if (self.runs["status"] == s).any()), "missing")

    def text(self) -> str:
        """Return the mean over successful seeds and the number of others; if all failed, how they
        ended, with their mean in brackets.
        """
        digits = MEASURES[self.measure].digits
        number = "" if self.ours is None else f"{self.ours:.{digits}f}"
        if self.deviation is not None:
            number += f" ±{self.deviation:.{digits}f}"
        counts = {word: int((self.runs["status"] == status).sum()) for status, word in BAD.items()}
        ends = " and ".join(word for word, count in counts.items() if count)
        if self.all_bad:
            return f"{ends} ({number})" if number else ends
        failed = sum(counts.values())
        return (number or MISSING) + (f" ({failed} of {len(self.runs)} {ends})" if failed else "")


@dataclass
class Table:
    """Entries by row and column.

    Args:
        row, column: names of the axes, such as scheme and depth
        rows, columns: key -> heading
        published: the paper's table; None for one of our own
        groups: row key -> text of a second column; empty for no such column
    """

    name: str
    title: str
    row: str
    column: str
    rows: dict[Key, str]
    columns: dict[Key, str]
    entries: dict[tuple[Key, Key], Entry]
    notes: list[str]
    published: PublishedTable | None
    groups: dict[Key, str]

    @property
    def has_values(self) -> bool:
        """True if any of our runs has a number."""
        return any(entry.ours is not None for entry in self.entries.values())

    def section(self) -> Section:
        """Return our numbers by column, with the paper's and the difference where it has any."""
        beside = {column for (_, column), e in self.entries.items() if e.paper is not None}
        rows: Rows = [[self.row, *(["group"] if self.groups else [])]]
        for key, heading in self.columns.items():
            rows[0] += [heading, *(["paper", "Δ"] if key in beside else [])]
        for key, name in self.rows.items():
            row = [name, *([self.groups[key]] if self.groups else [])]
            for column in self.columns:
                entry = self.entries[key, column]
                row.append(entry.text())
                if column in beside:
                    digits = MEASURES[entry.measure].digits
                    delta = MISSING if entry.delta is None else f"{entry.delta:+.{digits}f}"
                    row += [self._of_paper(entry, digits), delta]
            rows.append(row)
        return Section(self.title, {"": rows}, self.notes, left=2 if self.groups else 1)

    def _of_paper(self, entry: Entry, digits: int) -> str:
        if not isinstance(entry.paper, int | float):
            return entry.paper or MISSING
        printed = len(str(entry.paper).partition(".")[2])  # never fewer digits than the paper
        is_digitised = self.published is not None and self.published.certainty == "digitised"
        return f"{'≈' if is_digitised else ''}{entry.paper:.{max(digits, printed)}f}"

    def lines(self) -> Iterator[list[object]]:
        """Yield a CSV line per entry, with numbers not rounded; empty for missing ones."""
        for (row, column), entry in self.entries.items():
            yield [
                *(self.name, row, column, entry.measure.removeprefix("paper_")),
                *(six_digits(entry.ours), six_digits(entry.deviation), len(entry.counted)),
                *(six_digits(entry.paper), six_digits(entry.delta), entry.status),
                " ".join(entry.runs["run"]),
            ]

    def by_depth(self) -> dict[Key, dict[float, Entry]]:
        """Return line -> depth -> entry; empty if neither axis is depth."""
        if "depth" not in (self.row, self.column):
            return {}
        lines: dict[Key, dict[float, Entry]] = {}
        for (row, column), entry in self.entries.items():
            line, depth = (column, row) if self.row == "depth" else (row, column)
            if paper.is_number(depth):
                lines.setdefault(line, {})[float(depth)] = entry
        return lines

    def laws(self) -> dict[Key, Law]:
        """Fit the law of depth to the means of each line, over successful runs."""
        laws = {}
        for line, entries in self.by_depth().items():
            points = [(d, e.ours) for d, e in entries.items() if not e.all_bad]
            law = paper.fit([(d, ours) for d, ours in points if ours is not None])
            if law is not None:
                laws[line] = law
        return laws


# From rows of results.csv to a table.


def in_panels(runs: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the runs with a place in one of these panels."""
    places = runs["panels"].map(lambda text: {place.partition(":")[0] for place in text.split()})
    return runs[places.map(lambda panels: bool(panels & set(names)))]


def best(runs: pd.DataFrame, *place: str) -> pd.DataFrame:
    """Return for each place the runs with the options of _CHOSEN that validation prefers."""
    chosen = [
        min((runs for _, runs in here.groupby(list(_CHOSEN), dropna=False, sort=False)), key=_end)
        for _, here in runs.groupby(list(place), sort=False)
    ]
    return pandas().concat(chosen) if chosen else runs


def _end(runs: pd.DataFrame) -> tuple[bool, float]:
    """Return whether all seeds failed, and the mean of their last validation losses.

    The mean is infinite if a run that ended has no loss.
    """
    ended = runs[runs["status"].isin([s for s in Status if s.is_result])]
    mean = pandas().to_numeric(ended["valid_loss"]).mean(skipna=False)
    is_finite = len(ended) > 0 and math.isfinite(mean)
    return bool(runs["status"].isin(BAD).all()), mean if is_finite else math.inf


def build(
    name: str,
    runs: pd.DataFrame,
    row: str,
    column: str,
    measures: str | dict[Key, str],
    *,
    title: str = "",
    published: PublishedTable | None = None,
    laws: dict[str, Key] | None = None,
) -> Table:
    """Build a table.

    Args:
        measures: measure of all entries, or of each column
        title: end of the title, after the sweep's
        published: the paper's table to show beside ours
        laws: published table -> line; the law of depth is fitted to ours and to these lines
    """
    shown = runs.dropna(subset=[row, column])
    published_rows = published.rows if published else {}
    rows = _ordered([*published_rows, *shown[row]], row)
    columns = _ordered([*(published.columns if published else ()), *shown[column]], column)
    entries = {}
    for r in rows:
        for c in columns:
            here = shown[(shown[row] == r) & (shown[column] == c)]
            measure = measures if isinstance(measures, str) else measures[c]
            entries[r, c] = Entry(here, measure, published.value(r, c) if published else None)
    used = list(dict.fromkeys([measures] if isinstance(measures, str) else measures.values()))
    if published:
        heading = f"{published.title} (the paper's {published.source})"
        groups = {key: published_rows[key].group if key in published_rows else "" for key in rows}
    else:
        heading = (str(runs["title"].iloc[0]) if len(runs) else "") + title
        heading += f": {MEASURES[used[0]].meaning}" if len(used) == 1 else ""
        groups = {key: paper.group_of(key) if row == "scheme" else "" for key in rows}
    table = Table(
        name=name,
        title=heading,
        row=row,
        column=column,
        rows={
            key: published_rows[key].name if key in published_rows else _label(shown, row, key)
            for key in rows
        },
        columns={key: _column_heading(shown, column, key, published) for key in columns},
        entries=entries,
        notes=_notes(shown, used, published),
        published=published,
        groups=groups if any(groups.values()) else {},
    )
    if laws is not None:
        table.notes += _of_laws(table, laws)
    return table


def _ordered(keys: Sequence[Key], side: str) -> list[Key]:
    """Sort numbers by size, and our schemes by the placement of LayerNorm."""
    keys = list(dict.fromkeys(keys))
    if side == "scheme":
        order = [*paper.GROUPS.values(), ""]
        keys.sort(key=lambda key: order.index(paper.group_of(key)))
    return paper.ordered(keys)


def _label(runs: pd.DataFrame, side: str, key: Key) -> str:
    """Return a heading; layers per side are written as in the paper."""
    per_side = f"{key}L-{key}L"
    is_per_side = side == "depth" and per_side in set(runs[runs[side] == key]["layers"])
    return per_side if is_per_side else key


def _column_heading(
    runs: pd.DataFrame, side: str, key: Key, published: PublishedTable | None
) -> str:
    if side == "measure":
        return MEASURES[key].heading
    if published is not None or key == LAST:
        return _HEADINGS.get(key) or (published.label(side, key) if published else key)
    return _label(runs, side, key) if side == "depth" else f"{side} {key}"


def by_measure(runs: pd.DataFrame, row: str, *measures: str) -> Table:
    """Build a table of our own with a column per measure."""
    long = pandas().concat([runs.assign(measure=measure) for measure in measures])
    return build("measures", long, row, "measure", {m: m for m in measures})


# The tables of each sweep.


def _beside(name: str, runs: pd.DataFrame, row: str, column: str, measure: str) -> Table:
    return build(name, runs, row, column, measure, published=paper.table(name))


def _by_scheme_and_depth(name: str, runs: pd.DataFrame) -> list[Table]:
    # the paper reports BLEU of tokens where the data are words
    runs = runs.assign(paper_bleu=runs["tokenised_bleu"].fillna(runs["bleu"]))
    return [_beside(name, runs, "scheme", "depth", "paper_bleu")]


def _fig7(runs: pd.DataFrame) -> list[Table]:
    tables = []
    for panel in ("lr", "batch", "width"):
        name = f"fig7-{panel}"
        curves = _at_updates(in_panels(runs, panel), paper.table(name).columns)
        tables.append(_beside(name, curves, panel, "update", "valid_loss"))
    return tables


def _at_updates(runs: pd.DataFrame, updates: Sequence[Key]) -> pd.DataFrame:
    """Return a row per run and update with its validation loss.

    The last loss has its own column if the run ended at another update.
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
    ours = [runs.assign(direction=name, bleu=runs[name]) for name in ("x-en", "en-x", "average")]
    long = pandas().concat(ours)
    average = long[long["direction"] == "average"]
    fig8 = _beside("fig8", average, "depth", "direction", "bleu")
    fig8.notes += _of_laws(fig8, {"fig8": "average"})
    return [_beside("table2", long, "depth", "direction", "bleu"), fig8]


def _depth(runs: pd.DataFrame) -> list[Table]:
    chosen = best(in_panels(runs, "law", "norms", "epsilon", "thousand"), "scheme", "depth")
    laws: dict[str, Key] = {"fig6": "deepnorm", "fig8": "average"}
    tables = [
        build("depth", chosen, "scheme", "depth", "bleu", laws=laws),
        build("depth-nll", chosen, "scheme", "depth", "valid_nll"),
    ]
    for table in tables:
        table.notes += _of_best(chosen, table)
    law = in_panels(runs, "law")
    tables += _for_each(law, ["depth"], "scheme", "lr", "valid_loss", "rates")
    tables += _for_each(law, ["depth"], "scheme", "lr", "bleu", "rates-bleu")
    for panel, row in (
        *(("norms", "norms"), ("epsilon", "scheme"), ("long", "scheme"), ("ablation", "variant")),
    ):
        here = in_panels(runs, panel)
        if len(here):
            tables.append(build(panel, here, row, "depth", "bleu"))
            tables.append(build(f"{panel}-nll", here, row, "depth", "valid_nll"))
    return tables


def _for_each(
    runs: pd.DataFrame,
    factors: Sequence[str],
    row: str,
    column: str,
    measure: str,
    name: str,
    title: str = "",
) -> list[Table]:
    """Build a table of our own for each combination of the values of the factors."""
    if not factors:
        return [build(name, runs, row, column, measure, title=title)]
    tables = []
    first, *rest = factors
    for value in _ordered(list(runs[first].dropna()), first):
        here, end = runs[runs[first] == value], f"{title}, {first} {value}"
        tables += _for_each(here, rest, row, column, measure, f"{name}-{value}", end)
    return tables


def _methods_6l(runs: pd.DataFrame) -> list[Table]:
    names = ("bleu", "valid_loss", "valid_nll", "train_nll", "seconds_per_update")
    return [by_measure(runs, "scheme", *names)]


def by_factors(runs: pd.DataFrame) -> list[Table]:
    """Build the tables of any sweep: its first factor by its second, for each value of the others.

    A single factor gives a column per measure.
    """
    panels: dict[tuple[str, ...], list[str]] = {}
    for place in dict.fromkeys(" ".join(runs["panels"]).split()):
        panel, _, names = place.partition(":")
        panels.setdefault(tuple(names.split(",")), []).append(panel)
    tables = []
    for (row, *others), names_of_panels in panels.items():
        here = in_panels(runs, *names_of_panels)
        if not others:
            tables.append(by_measure(here, row, "valid_nll", "bleu"))
        for measure in ("valid_nll", "bleu") if others else ():
            tables += _for_each(here, others[1:], row, others[0], measure, measure)
    return tables


_FACTORS: Final = ("scheme", "depth", "lr", "norms", "variant", "batch", "width")
"""Columns that `TABLES` require; a partial sweep may lack some."""
TABLES: Final[dict[str, Callable[[pd.DataFrame], list[Table]]]] = {
    "table1": functools.partial(_by_scheme_and_depth, "table1"),
    "table2": _table2,
    "tatoeba": _table2,
    "fig6": functools.partial(_by_scheme_and_depth, "fig6"),
    "fig7": _fig7,
    "depth": _depth,
    "methods_6l": _methods_6l,
}
"""Sweep -> its tables."""


def tables_of(sweep: str, runs: pd.DataFrame) -> list[Table]:
    """Return the tables of a sweep that have our numbers, and always the first."""
    runs = runs.assign(**{name: None for name in _FACTORS if name not in runs})
    tables = TABLES.get(sweep, by_factors)(runs)
    return [t for n, t in enumerate(tables) if t.published or t.has_values or n == 0]


def side_by_side(runs: pd.DataFrame) -> Section:
    """Compare runs outside of sweeps, one per line."""
    columns = {
        "parameters": ("parameters", 0),
        "updates": ("updates", 0),
        "best_valid_loss": ("valid loss", 3),
        "best_valid_nll": ("valid nll", 3),
        "bleu": ("BLEU", 2),
        "chrf": ("chrF", 2),
    }
    rows = [["run", "model", *(heading for heading, _ in columns.values())]]
    for run in runs.to_dict("records"):
        width = f", {run['shape'].partition('/')[0]} wide" if isinstance(run["shape"], str) else ""
        row = [run["run"], f"{run['layers']} {run['scheme_or_arch'] or ''}{width}"]
        for name, (_, digits) in columns.items():
            value = run.get(name)
            is_there = isinstance(value, int | float) and math.isfinite(value)
            row.append(f"{value:,.{digits}f}" if is_there else MISSING)
        rows.append(row)
    notes = ["validation losses: the lowest of the run, bits per token; nll is without smoothing"]
    return Section(
        "Runs side by side", {"": rows}, notes + _scores(runs, "bleu") + _endings(runs), left=2
    )


# Notes below a table: how each number was obtained.


def _notes(
    runs: pd.DataFrame, measures: Sequence[str], published: PublishedTable | None
) -> list[str]:
    notes = []
    if published is not None:
        source = f"{paper.REFERENCE}, {published.source}: {published.metric}"
        notes.append(f"paper: {published.certainty}, {source}")
        if published.certainty == "digitised":
            notes.append("≈: read off the paper's plot, to about 0.1 BLEU or 0.01 of a loss")
    notes += [f"{MEASURES[m].heading}: {MEASURES[m].meaning}" for m in measures]
    notes.append(f"trained: {trained(runs)}")
    for measure in measures:
        notes += _scores(runs, measure) if measure in ("bleu", "paper_bleu") else []
    if runs["seed"].nunique() > 1:
        notes.append("mean ±sample standard deviation over the seeds that ended well")
    if (runs["status"] == Status.DIVERGED).any():
        notes.append("in brackets after diverged: the mean that such runs reached")
    return notes + _endings(runs)


def _scores(runs: pd.DataFrame, measure: str) -> list[str]:
    """Describe how scores were obtained: metric, signature, text, search, model, data."""
    groups: dict[str, dict[str, None]] = {}
    for run in runs.to_dict("records"):
        if isinstance(run.get("scored"), str):
            is_tokenised = measure == "paper_bleu" and isinstance(run["tokenised_signature"], str)
            kind = "tokenised BLEU" if is_tokenised else "sacreBLEU (detokenised)"
            signature = run["tokenised_signature" if is_tokenised else "signature"] or ""
            text = f"{kind} {signature}, {run['scored']}, {run['data']}"
            groups.setdefault(text, {})[run["run"]] = None
    if len(groups) == 1:
        return [f"scored: {next(iter(groups))}"]
    return [f"scored, {listed(list(names), 4)}: {text}" for text, names in groups.items()]


def _of_best(runs: pd.DataFrame, table: Table) -> list[str]:
    """Return the chosen options of the runs in each place."""
    notes = ["of all runs in a place, those whose options gave the lowest last validation loss"]
    differing = [name for name in _CHOSEN if runs[name].nunique(dropna=False) > 1]
    for (row, column), entry in table.entries.items():
        if len(entry.runs):
            values = ((name, entry.runs[name].iloc[0]) for name in differing)
            options = (f"{n} {v if isinstance(v, str) else 'default'}" for n, v in values)
            notes.append(f"  {row} {column}: {' '.join(options)}")
    return notes


def _of_laws(table: Table, beside: dict[str, Key]) -> list[str]:
    """Return the fitted laws of depth with their residuals, and those of the paper's lines."""
    names = table.columns if table.row == "depth" else table.rows
    notes = ["L(d) = A log(d) + B, natural logarithm, least squares over the depths above:"]
    for key, law in table.laws().items():
        residuals = ", ".join(f"{depth:g}: {value:+.2f}" for depth, value in law.residuals)
        notes.append(f"  ours, {names[key]}: {law}; residuals {residuals}")
    for name, line in beside.items():
        theirs = paper.table(name)
        unit = "layers per side" if "-" in theirs.label("depth", "10") else "layers in all"
        notes.append(f"  the paper's {theirs.source}, {line} (d: {unit}): {theirs.law(line)}")
    return notes


def trained(runs: pd.DataFrame) -> str:
    """Summarise shape, length, learning rate and data of runs, with all values that occur."""

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


def _endings(runs: pd.DataFrame) -> list[str]:
    """Return a line per run that is not done, with the reason."""
    bad = runs[runs["status"] != Status.DONE].drop_duplicates("run")
    return [f"{run}: {why or s}" for run, why, s in bad[["run", "reason", "status"]].to_numpy()]
