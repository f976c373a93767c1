"""A sweep's definition: one YAML file in configs/sweeps/, read and checked.

Keys of the file:

    title       one line
    also        other names of the sweep
    panels      name -> a part of the sweep with keys of its own, for which those at the top are
                defaults; without panels the top is the only part
    config      config of the training, a name in configs/
    options     fairseq-train options of every cell; `recipe.KEY` sets a recipe's key
    cell        pattern of a cell's name: "{scheme}_{depth}l"
    factors     name -> {set, values | schemes [, others] [, tiny]}; cells are all combinations
    settings    factor -> value -> options of the cells with that value; names in capitals are
                variables of scripts/train.sh
    score       variables of scripts/eval_bleu.sh, in capitals, and options of fairseq-generate;
                false: cells are not scored
    keep        checkpoints that stay of a cell which has its result: all, or only the best (all)
    vocabulary  symbols to count parameters with where the data are not there
    planned-updates   for the hours of a plan, where the config has epochs instead
    tables      what the results are put into: a list of mappings, see below

A factor's `set` is an option, a list of options, or a mapping of options to what the value is
multiplied by. `schemes: TABLE` takes the residual schemes of a published table that are registered,
`schemes: [NAME, ...]` those of a list, and `others: true` adds every other registered one. `tiny`
stands for `values` in a rehearsal.

Keys of a table:

    paper       the published table to stand beside; without it the table is the sweep's own
    panel       a panel of the sweep (the first; a table of its own: all of them), or a list
    rows        a factor
    columns     a factor; `update` or `direction` of a published table, `measure` of an own one
    measure     what the cells hold; with `columns: measure` a list
    split       of a published table: a word of its rows that parts it
    fit         of a published table: the column that the law of depth is fitted to; of an own one,
                with depths on a side: {TABLE: LINE}, lines of published tables (a row or a column)
                whose laws stand beside those of ours
    name        of an own table, for files (the measure)
    each        of an own table: a factor with a table for each of its values
    best        of an own table: a factor, or a list, of which one value stands in each place, that
                whose runs end with the lowest validation loss
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import yaml

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.runs import MEASURES
from fairseq_deepnet.files import inside_project
from fairseq_deepnet.tools.configs import CONFIG_FOLDER, Value, load_config, read_yaml
from fairseq_deepnet.tools.corpora.folder import MONOLINGUAL_TASKS

FOLDER: Final = CONFIG_FOLDER / "sweeps"
_TOP: Final = {"title", "also", "panels", "tables"}
_PANEL: Final = {
    *("config", "options", "cell", "factors", "settings", "score"),
    *("keep", "vocabulary", "planned-updates"),
}
KEPT: Final = ("all", "best")
"""Which checkpoints stay of a cell that has its result, most first; the first is the default."""
MAIN: Final = "main"
"""The one panel of a sweep that names none."""
_FACTOR: Final = {"set", "values", "schemes", "others", "tiny"}
_TABLE: Final = {"panel", "rows", "columns", "measure", "fit"}
PUBLISHED_MEASURES: Final = ("bleu", "valid_loss", "directions")
_LAYERS: Final = frozenset({"encoder-layers", "decoder-layers"})
BY_MEASURE: Final = "measure"
"""`columns` of a table with a column for each measure."""


@dataclasses.dataclass(frozen=True)
class Factor:
    """What differs between the cells of a panel.

    Args:
        sets: option -> what the value is multiplied by; 1 also takes words
        values: the values, as options take them
        tiny: the values of a rehearsal
    """

    name: str
    sets: dict[str, Fraction]
    values: tuple[Value, ...]
    tiny: tuple[Value, ...]

    def options(self, value: Value) -> dict[str, Value]:
        """Return the options that a value stands for; ValueError where it cannot be shared out."""
        found: dict[str, Value] = {}
        for option, multiple in self.sets.items():
            if multiple == 1:
                found[option] = value
                continue
            try:
                product = multiple * Fraction(str(value))
            except ValueError as error:
                raise ValueError(f"{self.name}={value}: a number is expected") from error
            if product.denominator != 1 or product < 1:
                raise ValueError(
                    f"{self.name}={value}: {option} would be {float(product):g}, "
                    "and must be a whole number from 1 on"
                )
            found[option] = int(product)
        return found

    def value_of(self, options: dict[str, Any]) -> str | None:
        """Return the key of the value which options were made with; None where there is none."""
        found = set()
        for option, multiple in self.sets.items():
            try:
                value = options[option]
                found.add(paper.key(value if multiple == 1 else Fraction(str(value)) / multiple))
            except (KeyError, ValueError):
                return None
        return found.pop() if len(found) == 1 else None

    @property
    def is_scheme(self) -> bool:
        """True if it sets the residual scheme."""
        return "residual-scheme" in self.sets

    def label(self, value: str, prefix: str = "") -> str:
        """Return a value as a heading; layers a side as the paper writes them."""
        a_side = {option for option, times in self.sets.items() if times == 1}
        return f"{value}L-{value}L" if a_side >= _LAYERS else f"{prefix}{value}"


@dataclasses.dataclass(frozen=True)
class SweepPanel:
    """Cells that share a config: all combinations of the factors' values.

    What is `forced` wins over options and settings: a command line changes it.
    """

    name: str
    config: str
    cell: str
    factors: tuple[Factor, ...]
    options: dict[str, Value]
    settings: dict[str, dict[str, dict[str, Value]]]
    score: dict[str, str] | None
    vocabulary: int | None
    planned_updates: int | None
    keep: str
    forced: dict[str, Value] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How cells become a table: an entry of `tables`, see above; `name` is for files."""

    name: str
    panels: tuple[str, ...]
    rows: str
    columns: str
    measures: tuple[str, ...]
    paper: str | None = None
    split: str | None = None
    fit: str | dict[str, str] | None = None
    each: str | None = None
    best: tuple[str, ...] = ()

    def measure_of(self, column: str) -> str:
        """Return which measure a column holds."""
        return column if self.columns == BY_MEASURE else self.measures[0]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A whole definition."""

    name: str
    title: str
    panels: tuple[SweepPanel, ...]
    layouts: tuple[Layout, ...]

    @property
    def factors(self) -> list[Factor]:
        """Those of all panels."""
        return [factor for panel in self.panels for factor in panel.factors]

    def in_order(self, keys: Sequence[str], name: str) -> list[str]:
        """Sort values of a factor: numbers by their size, schemes by their group, otherwise as the
        definition has them.
        """
        factors = [factor for factor in self.factors if factor.name == name]
        defined = dict.fromkeys(paper.key(value) for factor in factors for value in factor.values)
        found = [key for key in defined if key in keys]
        found += [key for key in dict.fromkeys(keys) if key not in defined]
        if any(factor.is_scheme for factor in factors):
            order = [*paper.GROUPS.values(), ""]
            found.sort(key=lambda key: order.index(paper.group_of(key)))
        return paper.ordered(found)

    def depth_of(self, layout: Layout) -> str:
        """Return which side of a table is a depth; empty for neither."""
        depths = {factor.name for factor in self.factors if _LAYERS & factor.sets.keys()}
        return next((side for side in (layout.rows, layout.columns) if side in depths), "")

    def panel(self, name: str) -> SweepPanel:
        """Return a panel by its name."""
        return next(panel for panel in self.panels if panel.name == name)

    def with_config(self, config: str) -> Sweep:
        """Return the same with another config below all its cells.

        ValueError where that is of one stack alone and the sweep's own is not, or the reverse:
        factors such as `encoder-layers` would be no options of the model.
        """
        kinds = {False: "encoder-decoder models", True: "language models"}
        for panel in self.panels:
            given, wanted = (
                load_config(name).options.get("task") in MONOLINGUAL_TASKS
                for name in (config, panel.config)
            )
            if given != wanted:
                raise ValueError(
                    f"--config (CONFIG) {config} is for {kinds[given]}, and {self.name} compares "
                    f"{kinds[wanted]} as {panel.config} has them: choose such a config"
                )
        panels = tuple(dataclasses.replace(panel, config=config) for panel in self.panels)
        return dataclasses.replace(self, panels=panels)


def find_sweep(name: str) -> Path:
    """Find the file of a sweep given as a path, a name in configs/sweeps/, or another name of it.

    A path is looked for here and in the project: records of cells hold the latter.
    """
    for candidate in (inside_project(name), FOLDER / name, FOLDER / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    known = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for other in [path.stem, *(content or {}).get("also", [])]:
            known[other] = path
    if name in known:
        return known[name]
    there = ", ".join(known) or "none"
    raise FileNotFoundError(f"no sweep {name!r}: not a file, and configs/sweeps/ holds {there}")


def load_sweep(name: str) -> Sweep:
    """Read and check a definition; ValueError names the file and the key that is wrong."""
    path = find_sweep(name)
    content = read_yaml(path, "sweep", "key: value")
    try:
        return _sweep(path.stem, content)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _check_keys(content: dict[str, Any], allowed: Collection[str], place: str) -> None:
    """Raise ValueError, with the place in the file, for a key that is not allowed."""
    for key in content:
        if key not in allowed:
            raise ValueError(f"{place}unknown key {key!r}; known are {', '.join(sorted(allowed))}")


def _check_known(what: str, value: object, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{what} {value!r} is unknown; known are {', '.join(known)}")


def _sweep(name: str, content: dict[str, Any]) -> Sweep:
    _check_keys(content, _TOP | _PANEL, "")
    common = {key: value for key, value in content.items() if key in _PANEL}
    parts = content.get("panels") or {MAIN: {}}
    panels = tuple(_panel(part, common, own or {}) for part, own in parts.items())
    factors = {panel.name: {factor.name for factor in panel.factors} for panel in panels}
    layouts = tuple(_layout(item, factors) for item in content.get("tables") or [])
    names = [layout.name for layout in layouts]
    for table in names:
        if names.count(table) > 1:  # their figures would be one file
            raise ValueError(f"tables: two are called {table!r}: give one a `name` of its own")
    return Sweep(name, str(content.get("title", name)), panels, layouts)


def _panel(name: str, common: dict[str, Any], own: dict[str, Any]) -> SweepPanel:
    place = "" if name == MAIN else f"panels: {name}: "
    _check_keys(own, _PANEL, place)
    content = common | own
    for key in ("config", "cell", "factors"):
        if key not in content:
            raise ValueError(f"{place}{key} is missing")
    settings = content.get("settings") or {}
    for factor in settings:
        if factor not in content["factors"]:
            raise ValueError(f"{place}settings: there is no factor {factor!r}")
    score = content.get("score", {})
    keep = content.get("keep", KEPT[0])
    _check_known(f"{place}keep:", keep, KEPT)
    return SweepPanel(
        name=str(name),
        config=str(content["config"]),
        cell=str(content["cell"]),
        factors=tuple(_factor(key, value, place) for key, value in content["factors"].items()),
        options={**common.get("options", {}), **own.get("options", {})},
        settings={
            factor: {paper.key(value): dict(options) for value, options in by_value.items()}
            for factor, by_value in settings.items()
        },
        score=None if score is False else {key: str(value) for key, value in score.items()},
        vocabulary=content.get("vocabulary"),
        planned_updates=content.get("planned-updates"),
        keep=keep,
    )


def _factor(name: str, content: dict[str, Any], place: str) -> Factor:
    place = f"{place}factors: {name}: "
    _check_keys(content, _FACTOR, place)
    sets = content.get("set")
    if isinstance(sets, str | list):
        sets = dict.fromkeys(_list(sets), 1)
    if not sets or not isinstance(sets, dict):
        raise ValueError(f"{place}set: an option, a list of options, or option: multiple")
    if ("values" in content) == ("schemes" in content):
        raise ValueError(f"{place}either values or schemes is expected")
    values = content.get("values") or _schemes(content["schemes"], bool(content.get("others")))
    multiples = {option: Fraction(str(multiple)) for option, multiple in sets.items()}
    return Factor(name, multiples, tuple(values), tuple(content.get("tiny") or values))


def _schemes(wanted: str | list[str], others: bool) -> list[str]:
    """Return the registered schemes of a published table or a list, then the others."""
    from fairseq_deepnet.schemes import SCHEMES, scheme_class  # loads torch

    if isinstance(wanted, str):
        names = list(paper.table(wanted).rows)
    else:
        names = wanted
        for name in set(names) - set(paper.table("table1").rows):
            scheme_class(name)  # refuses one that is neither registered nor the paper's
    listed = [name for name in names if name in SCHEMES]
    return listed + [name for name in SCHEMES if others and name not in listed]


def _layout(content: dict[str, Any], factors: dict[str, set[str]]) -> Layout:
    """Read one entry of `tables`, given the names of each panel's factors."""
    is_own = "paper" not in content
    allowed = {"name", "each", "best"} if is_own else {"paper", "split"}
    _check_keys(content, _TABLE | allowed, "tables: ")
    for key in ("rows", "columns", "measure"):
        if key not in content:
            raise ValueError(f"tables: {key} is missing")
    measures = _list(content["measure"])
    by_measure = is_own and content["columns"] == BY_MEASURE
    own_name = content.get("name", "measures" if by_measure else measures[0])
    panels = _list(content.get("panel", list(factors) if is_own else next(iter(factors))))
    names = ("rows", "columns", "paper", "split", "fit", "each")
    rest: dict[str, Any] = {key: content.get(key) for key in names}
    rest["best"] = tuple(_list(content.get("best", [])))
    name = str(own_name if is_own else content["paper"])
    found = Layout(name, tuple(panels), measures=tuple(measures), **rest)
    if not is_own:
        paper.table(name)
    for panel in panels:
        if panel not in factors:
            raise ValueError(f"tables: {name}: there is no panel {panel!r}")
    for measure in measures:
        _check_known("tables: measure", measure, MEASURES if is_own else PUBLISHED_MEASURES)
    if len(measures) > 1 and not by_measure:
        raise ValueError(f"tables: {name}: several measures need `columns: {BY_MEASURE}`")
    if is_own:
        _check_lines(name, {} if found.fit is None else found.fit)
        asked = {found.rows, found.each, None if by_measure else found.columns} - {None}
        for panel in panels:
            for factor in sorted(map(str, asked - factors[panel])):
                raise ValueError(f"tables: {name}: panel {panel} has no factor {factor!r}")
        if found.best and by_measure:
            raise ValueError(
                f"tables: {name}: best: and `columns: {BY_MEASURE}` exclude each other"
            )
        for factor in found.best:
            _check_known(f"tables: {name}: best:", factor, set().union(*factors.values()))
    return found


def _check_lines(name: str, lines: object) -> None:
    """Raise ValueError for what is no mapping of published tables to their lines."""
    if not isinstance(lines, dict):
        raise ValueError(f"tables: {name}: fit is TABLE: LINE of published tables, not {lines!r}")
    for table, line in lines.items():
        known = paper.table(table)
        if line not in (*known.rows, *known.columns):
            raise ValueError(f"tables: {name}: fit: {table} has no row or column {line!r}")


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]
