"""Tables of our results, with the paper's numbers beside ours where available.

By default, the rows of a table correspond to the sweep's first factor and the columns to its second
factor. `TABLES` contains functions that build different tables. Each entry is a mean over seeds.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.paper import Key, Law
from fairseq_deepnet.experiments.results import FALLBACKS, Status
from fairseq_deepnet.tools.tables import listed

MISSING: Final = "-"
BAD: Final = {Status.FAILED: "crashed", Status.DIVERGED: "diverged"}
"""Status of an unsuccessful run -> word in the table."""
_CHOSEN: Final = ["lr", "adam-eps", "freeze-norms", "max-update"]
"""Options for which `choose_best` selects the best values, for each scheme and depth."""
_PAPERS_LAWS: Final = {"fig6": ("deepnorm", "layers per side"), "fig8": ("average", "layers")}
"""Published figure -> line to which the law of depth is fitted, and the unit of depth."""
MEASURES: Final = {
    "bleu": "BLEU, with the signature below",
    "valid_loss": "validation loss (last, or at the update shown), label-smoothed, bits per token",
    "valid_nll": "last validation loss, nll in bits per token",
    "train_nll": "mean of the last 5 training losses, nll in bits per token",
    "seconds_per_update": "median over the log",
}
"""Measure (a column of results.csv) -> its description in the notes below a table."""


@dataclass
class Table:
    """A table of a sweep, both as text (`grid`) and as numbers (`entries`).

    Args:
        grid: the cells of the table as text
        entries: one line per cell, with the columns table, row, column, measure, ours (mean),
            deviation (sample standard deviation), seeds (number of successful runs), paper, delta,
            status (done, or the worst status of all seeds) and runs
        row, column: names of the axes, such as scheme and depth
        names: row -> name in the paper; empty for our own tables
        laws: line, such as a scheme -> law L(d) = A log(d) + B fitted to our means at depths d
    """

    title: str
    grid: pd.DataFrame
    notes: list[str]
    entries: pd.DataFrame
    row: str
    column: str
    names: dict[Key, str] = field(default_factory=dict)
    laws: dict[Key, Law] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the table and of its figure."""
        return str(self.entries["table"].iloc[0])

    def by_depth(self) -> dict[Key, pd.DataFrame]:
        """Return the entries of each line by depth; {} if no axis is depth or units differ."""
        if "depth" not in (self.row, self.column) or self.column == "measure":
            return {}
        depth, line = ("row", "column") if self.row == "depth" else ("column", "row")
        numbered = self.entries[self.entries[depth].map(paper.is_number)].astype({depth: float})
        return {str(key): rows.set_index(depth) for key, rows in numbered.groupby(line, sort=False)}

    def fit_laws(self) -> None:
        """Fit a law of depth to each line with enough points."""
        laws = {key: paper.fit(rows["ours"].dropna()) for key, rows in self.by_depth().items()}
        self.laws = {key: law for key, law in laws.items() if law is not None}

    def markdown(self) -> str:
        """Return the title, the table and the notes as Markdown."""
        grid = self.grid.astype(object).where(self.grid.notna(), None)
        text = grid.to_markdown(index=False, missingval=MISSING, disable_numparse=True)
        notes = "\n".join(f"- {note}" for note in self.notes)
        return f"### {self.title}\n\n{text}\n\n{notes}\n"


def finite_values(runs: pd.DataFrame, measure: str) -> pd.Series:
    """Return the finite values of a measure in successful runs."""
    values = pd.to_numeric(runs[measure].where(runs["status"] == Status.DONE))
    return values[values.abs() < math.inf]


def _entry(runs: pd.DataFrame, measure: str, published: float | str | None) -> dict[str, Any]:
    """Return the table entry for `runs`, including the mean over the successful runs."""
    values = finite_values(runs, measure)
    ours, deviation = values.mean(), values.std()
    order = (*BAD, Status.UNFINISHED, Status.DONE)
    text = f"{ours:.2f}" if len(values) else MISSING
    text += f" ±{deviation:.2f}" if len(values) > 1 else ""
    if failed := int(runs["status"].isin(BAD).sum()):
        ends = " and ".join(word for end, word in BAD.items() if (runs["status"] == end).any())
        text = ends if failed == len(runs) else f"{text} ({failed} of {len(runs)} {ends})"
    return {
        "ours": ours,
        "deviation": deviation,
        "seeds": len(values),
        "paper": published,
        "delta": ours - published if isinstance(published, int | float) else math.nan,
        "status": next((s.value for s in order if (runs["status"] == s).any()), "missing"),
        "runs": " ".join(runs["run"]),
        "text": text if published is None else f"{text} [{published}]",
    }


def build(
    name: str,
    runs: pd.DataFrame,
    row: str,
    column: str,
    measure: str = "",
    *,
    title: str = "",
    is_published: bool = False,
    has_law: bool = False,
) -> list[Table]:
    """Return a list with one table of `runs`, or an empty list if no run has a row and a column.

    Args:
        measure: measure of all entries; empty if the columns are measures
        title: text to insert between the sweep's title and the measure
        is_published: if True, show the numbers of the paper's table with the same name
        has_law: if True, fit a law of depth to each line (see `Table`)

    Raises:
        ValueError: if two runs of an entry have the same seed.
    """
    columns = runs.columns.union([row, column, "code", "precision"])  # older files lack these
    runs = runs.reindex(columns=columns).dropna(subset=[row, column])
    if runs.empty:
        return []
    published = paper.table(name) if is_published else None
    lines = []
    for r in paper.ordered([*(published.rows if published else ()), *runs[row]]):
        for c in paper.ordered([*(published.columns if published else ()), *runs[column]]):
            here, shown = runs[(runs[row] == r) & (runs[column] == c)], measure or c
            if here.duplicated("seed").any():
                same = f"{listed(sorted(here['run']), 4)} have the same {row}, {column} and seed"
                raise ValueError(f"{name}: {same}; report their folders separately")
            place = {"table": name, "row": r, "column": c, "measure": shown}
            lines.append(place | _entry(here, shown, published.value(r, c) if published else None))
    entries = pd.DataFrame(lines)
    grid = entries.set_index(["row", "column"])["text"].unstack(sort=False)
    grid = grid.rename(published.names if published else {}).rename_axis(index=row).reset_index()
    grid.columns = pd.Index([f"{column} {c}" if paper.is_number(c) else c for c in grid.columns])
    title = f"{runs['title'].iloc[0]}{title}" + (f": {measure}" if measure else "")
    table = Table(title, grid, [], entries.drop(columns="text"), row, column)
    if published:
        table.title, table.names = published.title, published.names
        source = f"{paper.REFERENCE}, {published.source}: {published.metric}"
        table.notes.append(f"in brackets: {source}")
        if published.certainty == "digitised":
            table.notes.append(
                "read off the paper's plot, with errors of about 0.1 BLEU or 0.01 in losses"
            )
    measures = table.entries["measure"].unique()
    table.notes += [f"{name}: {MEASURES[name]}" for name in measures]
    table.notes.append(f"trained: {describe_settings(runs)}")
    table.notes.append("mean ±sample standard deviation over successful seeds")
    table.notes += _describe_scores(runs) if "bleu" in measures else []
    if has_law:
        table.fit_laws()
        table.notes += _describe_laws(table)
    if others := list(runs.reindex(columns=["run", "other_scores"]).dropna()["run"].unique()):
        remedy = "repeat the sweep's command with score=true to include its own scores"
        text = f"not included: scores of {listed(others, 4)} from outside the sweep; {remedy}"
        table.notes.append(text)
    was_rescued = runs["reason"].str.contains(FALLBACKS, regex=False, na=False)
    bad = runs[(runs["status"] != Status.DONE) | was_rescued].drop_duplicates("run")
    table.notes += [f"{r}: {why or s}" for r, why, s in bad[["run", "reason", "status"]].to_numpy()]
    return [table]


def _describe_laws(table: Table) -> list[str]:
    """Return notes on the laws of depth fitted to our results and to the paper's."""
    notes = ["L(d) = A log(d) + B, natural logarithm, least squares over the depths above"]
    notes += [f"ours, {line}: {law}" for line, law in table.laws.items()]
    for name, (line, unit) in _PAPERS_LAWS.items():
        theirs = paper.table(name)
        depths = theirs.rows.get(line) or {d: row[line] for d, row in theirs.rows.items()}
        law = paper.fit(pd.to_numeric(pd.Series(depths), errors="coerce").dropna())
        notes.append(f"the paper's {theirs.source}, {line} (d: {unit}): {law}")
    return notes


def _describe_scores(runs: pd.DataFrame) -> list[str]:
    """Return notes on how scores were obtained: signature, text, beam search, model and data."""
    notes = []
    scored = runs.dropna(subset=["scored"]).fillna({"bleu_signature": "", "data": ""})
    for how, here in scored.groupby(["bleu_signature", "scored", "data"], sort=False):
        notes.append(f"scored, {listed(list(here['run'].unique()), 4)}: {', '.join(how)}")
    return notes


def describe_settings(runs: pd.DataFrame) -> str:
    """Return text that lists, for each setting, all values that occur in `runs`."""
    names = ("shape", "max-update", "tokens", "precision", "lr", "warmup-updates", "data", "seed")
    values = {n: sorted({paper.key(v) for v in runs[n].dropna()}) for n in (*names, "code")}
    return "; ".join(f"{name} {', '.join(paper.ordered(v))}" for name, v in values.items() if v)


# Tables of specific sweeps.


def _by_scheme_and_depth(table: str, runs: pd.DataFrame) -> list[Table]:
    # for Moses data, the paper reports BLEU on tokens
    names = {"bleu": "bleu_tokenised", "bleu_signature": "bleu_tokenised_signature"}
    runs = runs.assign(**{name: runs[own].fillna(runs[name]) for name, own in names.items()})
    return build(table, runs, "scheme", "depth", "bleu", is_published=True)


def _fig7(runs: pd.DataFrame) -> list[Table]:
    """Build tables of validation losses at the paper's updates and at each run's last update."""
    runs, tables = runs.fillna({"valid_losses": ""}), []
    for panel in ("lr", "batch", "width"):
        rows, columns = [], paper.table(f"fig7-{panel}").columns
        for run in in_panels(runs, panel).to_dict("records"):
            losses = dict(pair.split(":") for pair in run["valid_losses"].split())
            for update in dict.fromkeys([*columns, *list(losses)[-1:]]):
                rows.append({**run, "update": update, "valid_loss": losses.get(update)})
        curves = pd.DataFrame(rows, columns=[*runs.columns, "update"])
        tables += build(f"fig7-{panel}", curves, panel, "update", "valid_loss", is_published=True)
    return tables


def _table2(runs: pd.DataFrame) -> list[Table]:
    ours = [runs.assign(direction=name, bleu=runs[name]) for name in ("x-en", "en-x", "average")]
    axes = ("depth", "direction", "bleu")
    return [
        *build("table2", pd.concat(ours), *axes, is_published=True),
        *build("fig8", ours[-1], *axes, is_published=True, has_law=True),
    ]


def _depth(runs: pd.DataFrame) -> list[Table]:
    chosen = choose_best(in_panels(runs, "law", "norms", "epsilon", "thousand"))
    tables = build("depth", chosen, "scheme", "depth", "bleu", has_law=True)
    tables += build("depth-nll", chosen, "scheme", "depth", "valid_nll")
    for table in tables:
        runs_of = ", ".join(chosen["run"])
        table.notes.append(f"runs with the options of the lowest last validation loss: {runs_of}")
    return tables + by_factors(runs, merge=False)  # panels also differ in options


def choose_best(runs: pd.DataFrame) -> pd.DataFrame:
    """For each scheme and depth, return the runs whose options gave the lowest validation loss."""
    chosen = [
        min((group for _, group in place.groupby(_CHOSEN, dropna=False, sort=False)), key=_loss)
        for _, place in runs.groupby(["scheme", "depth"], sort=False)
    ]
    return pd.concat(chosen) if chosen else runs


def _loss(runs: pd.DataFrame) -> float:
    """Return the mean of the last validation losses, or infinity if any run diverged."""
    losses = finite_values(runs, "valid_loss")
    is_sound = len(losses) and not (runs["status"] == Status.DIVERGED).any()
    return float(losses.mean()) if is_sound else math.inf


def in_panels(runs: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the runs that belong to at least one of these panels."""
    places = runs["panels"].map(lambda text: {place.partition(":")[0] for place in text.split()})
    return runs[places.map(lambda panels: bool(panels & set(names)))]


def by_factors(runs: pd.DataFrame, merge: bool = True) -> list[Table]:
    """Build a table for each combination of values of all factors except the first two.

    Rows correspond to the first factor, and columns to the second, or to measures if there is only
    one factor.

    Args:
        merge: if True, panels with the same factors share their tables unless runs coincide
    """
    groups: dict[str, list[str]] = {}
    for place in dict.fromkeys(" ".join(runs["panels"]).split()):
        panel, _, factors = place.partition(":")
        groups.setdefault(factors if merge else place, []).append(panel)
    for factors, panels in groups.items() if merge else ():
        # panels that repeat a combination of factors differ in other options
        if in_panels(runs, *panels).duplicated([*factors.split(","), "seed"]).any():
            return by_factors(runs, merge=False)
    tables = []
    for key, panels in groups.items():
        here, (row, *others) = in_panels(runs, *panels), key.rpartition(":")[2].split(",")
        start, title = (f"{panels[0]}-", f", {panels[0]}") if len(groups) > 1 else ("", "")
        if not others:
            long = pd.concat([here.assign(measure=measure) for measure in MEASURES])
            tables += build(f"{start}measures", long, row, "measure", title=title)
            continue
        column, *rest = others
        for measure in ("valid_nll", "bleu"):
            for values, part in here.groupby(rest, sort=False) if rest else [((), here)]:
                end = "".join(f", {name} {value}" for name, value in zip(rest, values, strict=True))
                name = "-".join([f"{start}{measure}", *values])
                tables += build(name, part, row, column, measure, title=title + end)
    return tables


TABLES: Final[dict[str, Callable[[pd.DataFrame], list[Table]]]] = {
    "table1": functools.partial(_by_scheme_and_depth, "table1"),
    "table2": _table2,
    "tatoeba": _table2,
    "fig6": functools.partial(_by_scheme_and_depth, "fig6"),
    "fig7": _fig7,
    "depth": _depth,
}
"""Sweep -> function that builds its tables."""


def tables_of(sweep: str, runs: pd.DataFrame) -> list[Table]:
    """Return a sweep's first table, and each of its other tables that contains our results."""
    tables = TABLES.get(sweep, by_factors)(runs)
    return [t for n, t in enumerate(tables) if n == 0 or t.entries["ours"].notna().any()]
