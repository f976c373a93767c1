"""Definition of a sweep, and its expansion to cells, which are one run each.

A definition is a YAML file in configs/sweeps/ with these keys:

    title       one line
    panels      name -> part of the sweep with its own keys; keys at the top level are their
                defaults; without panels the top level is the only part
    config      config of the runs, a name in configs/
    options     fairseq-train options of every cell; `recipe.KEY` sets a key of the recipe
    cell        pattern of cell names: "{scheme}_{depth}l"
    factors     name -> {set, values | schemes [, others] [, tiny]}; cells are all combinations
    settings    factor -> value -> options of the cells with that value
    score       options of `deepnet evaluate` in capitals (BEAM: 4), and options of
                fairseq-generate; false: cells are not scored

`set` of a factor is an option, a list of options, or a mapping from options to the multiple of the
value that they take. `schemes: TABLE` selects the registered residual schemes of a published table,
`schemes: [NAME, ...]` those of a list, and `others: true` adds all other registered schemes. `tiny`
replaces `values` in a rehearsal. PRECISION, in options or settings, is an option of `deepnet
train`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.files import inside_project, shown
from fairseq_deepnet.stock_names import HARMLESS, in_stock_names
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.configs import CONFIG_FOLDER, Value
from fairseq_deepnet.tools.tables import listed
from fairseq_deepnet.tools.training import launch

FOLDER: Final = CONFIG_FOLDER / "sweeps"
_PANEL: Final = {"config", "options", "cell", "factors", "settings", "score"}
_FACTOR: Final = {"set", "values", "schemes", "others", "tiny"}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_NOTHING: Final[Mapping[str, Value]] = MappingProxyType({})
_TRAIN_WORDS: Final = {"PRECISION"}
_SCORE_WORDS: Final = {
    *("SPLIT", "BEAM", "LENPEN", "AVERAGE", "BATCH", "DIRECTIONS"),
    *("TEXT", "TOKENIZER"),
}
"""Options of `deepnet train` and `deepnet evaluate` that a definition may set."""
TINY: Final[dict[str, Value]] = {
    **{"encoder-embed-dim": 16, "encoder-ffn-embed-dim": 16, "encoder-attention-heads": 2},
    **{"decoder-embed-dim": 16, "decoder-ffn-embed-dim": 16, "decoder-attention-heads": 2},
    **{"max-update": 2, "validate-interval-updates": 1, "save-interval-updates": 1},
    **{"max-tokens": 256, "recipe.global-batch-tokens": 256, "log-interval": 1, "num-workers": 0},
}
"""Options of a rehearsal, unless a factor sets them."""


@dataclasses.dataclass(frozen=True)
class Factor:
    """An axis of a panel.

    Args:
        sets: option -> multiple of the value that it takes; with 1, values may be words
        tiny: values in a rehearsal
    """

    name: str
    sets: dict[str, Fraction]
    values: tuple[Value, ...]
    tiny: tuple[Value, ...]

    def options(self, value: Value) -> dict[str, Value]:
        """Return the options that a value sets; raise ValueError if a multiple is not whole."""
        options: dict[str, Value] = {}
        for option, multiple in self.sets.items():
            product = value if multiple == 1 else multiple * Fraction(str(value))
            if isinstance(product, Fraction) and product.denominator != 1:
                raise ValueError(f"{self.name}={value}: {option} would be {float(product):g}")
            options[option] = int(product) if isinstance(product, Fraction) else product
        return options


@dataclasses.dataclass(frozen=True)
class Panel:
    """Cells that share a config: all combinations of the values of its factors.

    `forced` options come from the command line and override options and settings.
    """

    name: str
    config: str
    cell: str
    factors: tuple[Factor, ...]
    options: dict[str, Value]
    settings: dict[str, dict[str, dict[str, Value]]]
    score: dict[str, str] | None
    forced: dict[str, Value] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep; `name` is the stem of its file, or the path of a file outside configs/."""

    name: str
    title: str
    panels: tuple[Panel, ...]

    @property
    def factors(self) -> list[Factor]:
        """Factors of all panels."""
        return [factor for panel in self.panels for factor in panel.factors]

    def with_config(self, config: str) -> Sweep:
        """Return the sweep with another config for all cells."""
        panels = tuple(dataclasses.replace(panel, config=config) for panel in self.panels)
        return dataclasses.replace(self, panels=panels)


@dataclasses.dataclass(frozen=True)
class Place:
    """Place in a panel: the key of each factor's value, and the seed."""

    panel: str
    values: dict[str, str]
    seed: int


@dataclasses.dataclass
class Cell:
    """A run of a sweep.

    Args:
        name: name of its run folder
        options: fairseq-train options (and `recipe.KEY`) that override the panel's config
        train: options of `deepnet train`, in capitals
        score: options of `deepnet evaluate`, in capitals, and of fairseq-generate; None: not scored
        places: places with these settings, which share the run
    """

    name: str
    panel: Panel
    options: dict[str, Value]
    train: dict[str, str]
    score: dict[str, str] | None
    places: list[Place]

    def resolve(self) -> configs.Config:
        """Return the complete config of the run."""
        overrides = []
        for key, value in self.options.items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
            text = text.removesuffix("...\n").strip()
            overrides.append(f"{key}={text}")
        return configs.load_config(self.panel.config, overrides)

    def settings(self) -> dict[str, str]:
        """Return all settings that affect the numbers of the run, in a canonical spelling."""
        config = self.resolve()
        options = in_stock_names(config.options)
        settings = {
            key: paper.key(value)
            for key, value in options.items()
            if key.replace("-", "_") not in HARMLESS
        }
        if "data" in config.recipe:
            settings["recipe.data"] = shown(inside_project(str(config.recipe["data"])))
        if "global-batch-tokens" in config.recipe:
            tokens = launch.parse_tokens(config.recipe["global-batch-tokens"])
            settings["recipe.global-batch-tokens"] = str(tokens)
        return settings | self.train

    def differences(self) -> dict[str, str]:
        """Return all options that differ from the panel's config."""
        config = configs.load_config(self.panel.config)
        base = config.options | {f"recipe.{key}": value for key, value in config.recipe.items()}
        differing = {
            key: paper.key(value)
            for key, value in self.options.items()
            if paper.key(base.get(key)) != paper.key(value)
        }
        return differing | self.train

    def scoring(self) -> list[str] | None:
        """Return the arguments of `deepnet evaluate` after the run; None if it is not scored."""
        if self.score is None:
            return None
        options: list[str] = []
        generation: list[str] = []
        for key, value in self.score.items():
            words = options if key.isupper() else generation
            words += [f"--{key.lower()}", value]
        return [*options, "--", *generation] if generation else options

    def share(self, other: Cell) -> bool:
        """Merge a cell with the same settings; return False if the two are scored differently."""
        if None not in (self.score, other.score) and self.score != other.score:
            return False
        self.places += other.places
        self.score = other.score if self.score is None else self.score
        return True


# Reading a definition.


def find_sweep(name: str) -> Path:
    """Return the file of a sweep given as a path or as a name in configs/sweeps/."""
    for candidate in (inside_project(name), FOLDER / name, FOLDER / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    names = ", ".join(sorted(path.stem for path in FOLDER.glob("*.yaml"))) or "none"
    raise FileNotFoundError(f"no sweep {name!r}: not a file, and configs/sweeps/ holds {names}")


def load_sweep(name: str) -> Sweep:
    """Read and check a definition; ValueError names the file and the wrong key."""
    path = find_sweep(name)
    content = configs.read_yaml(path, "sweep", "key: value")
    is_ours = path.resolve().parent == FOLDER.resolve()
    try:
        _check_keys(content, {"title", "panels"} | _PANEL, "")
        common = {key: value for key, value in content.items() if key in _PANEL}
        parts = content.get("panels") or {"main": {}}
        panels = tuple(_panel(str(part), common, own or {}) for part, own in parts.items())
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error
    title = str(content.get("title", path.stem))
    return Sweep(path.stem if is_ours else shown(path), title, panels)


def _check_keys(content: dict[str, Any], allowed: set[str], place: str) -> None:
    for key in content:
        if key not in allowed:
            raise ValueError(f"{place}unknown key {key!r}; known are {', '.join(sorted(allowed))}")


def _panel(name: str, common: dict[str, Any], own: dict[str, Any]) -> Panel:
    place = f"panels: {name}: " if own else ""
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
    return Panel(
        name=name,
        config=str(content["config"]),
        cell=str(content["cell"]),
        factors=tuple(_factor(key, value, place) for key, value in content["factors"].items()),
        options={**common.get("options", {}), **own.get("options", {})},
        settings={
            factor: {paper.key(value): dict(options) for value, options in by_value.items()}
            for factor, by_value in settings.items()
        },
        score=None if score is False else {key: str(value) for key, value in score.items()},
    )


def _factor(name: str, content: dict[str, Any], place: str) -> Factor:
    place = f"{place}factors: {name}: "
    _check_keys(content, _FACTOR, place)
    sets = content.get("set")
    if isinstance(sets, str | list):
        sets = dict.fromkeys([sets] if isinstance(sets, str) else sets, 1)
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
            scheme_class(name)  # refuses a scheme that is neither registered nor the paper's
    known = [name for name in names if name in SCHEMES]
    return known + [name for name in SCHEMES if others and name not in known]


# From a definition and a command line to cells.


def override(
    sweep: Sweep, words: Sequence[str], tiny: bool = False, forced: Mapping[str, Value] = _NOTHING
) -> Sweep:
    """Return a sweep changed by `key=value` arguments.

    The name of a factor replaces its values (`depth=6,18`); in panels without the factor, a single
    value sets its options (`lr=1e-3`, `norms=none`). `score.BEAM=4` sets an option of `deepnet
    evaluate`, `score=true` or `score=false` turns scoring on or off, and any other key is an option
    of every cell. Raises ValueError for an option that a factor sets.

    Args:
        tiny: a rehearsal
        forced: further options of every cell
    """
    factors = {factor.name for factor in sweep.factors}
    values: dict[str, tuple[Value, ...]] = {}
    options = {**(TINY if tiny else {}), **forced}
    score: dict[str, str] = {}
    is_scored: bool | None = None
    for word in words:
        key, value = configs.parse_override(word)
        if key in factors:
            texts = word.partition("=")[2].split(",")
            values[key] = tuple(configs.parse_value(text) for text in texts if text.strip())
            if not values[key]:
                raise ValueError(f"{word!r}: {key} is a factor of {sweep.name}: give it values")
        elif key == "score":
            if not isinstance(value, bool):
                raise ValueError(f"{word!r}: score is true or false; score.BEAM=4 sets an option")
            is_scored = value
        elif key == "seed":
            raise ValueError(f"{word!r}: SEEDS={value} (--seeds {value}) chooses the seeds")
        elif key.startswith("score."):
            score[key.removeprefix("score.")] = str(value)
        elif all(any(key in factor.sets for factor in panel.factors) for panel in sweep.panels):
            name = next(factor.name for factor in sweep.factors if key in factor.sets)
            raise ValueError(f"{word!r}: the factor {name} sets {key}; use {name}=VALUES")
        else:
            options[key] = value

    def changed(panel: Panel) -> Panel:
        scored = panel.score if is_scored is None else (panel.score or {}) if is_scored else None
        if scored is not None:
            scored = {k: v for k, v in scored.items() if not tiny or k != "AVERAGE"} | score
        own = tuple(
            dataclasses.replace(f, values=values.get(f.name, f.tiny if tiny else f.values))
            for f in panel.factors
        )
        names = {factor.name for factor in own}
        single: dict[str, Value] = {}
        for factor in sweep.factors:
            if factor.name not in names and len(values.get(factor.name, ())) == 1:
                single |= factor.options(values[factor.name][0])
        return dataclasses.replace(panel, factors=own, forced=options | single, score=scored)

    return dataclasses.replace(sweep, panels=tuple(map(changed, sweep.panels)))


def expand(sweep: Sweep, seeds: Sequence[int] = (1,)) -> list[Cell]:
    """Return the cells in the order of the definition; equal settings share one cell.

    A shared cell is scored if one of its panels is. Raises ValueError for an unregistered scheme,
    for two cells with one name, and for names that are not valid for a folder.
    """
    from fairseq_deepnet.schemes import scheme_class  # loads torch

    cells: dict[str, Cell] = {}
    seen: dict[str, list[Cell]] = {}
    for panel in sweep.panels:
        for factor in panel.factors:
            if "residual-scheme" in factor.sets:
                for value in factor.values:
                    scheme_class(str(value))
        combinations = list(itertools.product(*(factor.values for factor in panel.factors)))
        for seed, values in itertools.product(seeds, combinations):
            cell = _cell(panel, values, seed)
            alike = seen.setdefault(repr(sorted(cell.settings().items())), [])
            if any(other.share(cell) for other in alike):
                continue
            if cell.name in cells:
                raise ValueError(
                    f"{sweep.name}: two cells are called {cell.name}: name every factor in "
                    f"`cell: {panel.cell}`"
                )
            cells[cell.name] = cell
            alike.append(cell)
    return list(cells.values())


def _cell(panel: Panel, values: Sequence[Value], seed: int) -> Cell:
    keys: dict[str, str] = {}
    from_factors: dict[str, Value] = {}
    settings: dict[str, Any] = {}
    for factor, value in zip(panel.factors, values, strict=True):
        key = keys[factor.name] = paper.key(value)
        from_factors |= factor.options(value)
        settings |= panel.settings.get(factor.name, {}).get(key, {})
    try:
        name = panel.cell.format(**keys) + (f".seed{seed}" if seed != 1 else "")
    except KeyError as error:
        raise ValueError(f"cell: {panel.cell}: there is no factor {error}") from error
    if not _NAME.fullmatch(name):
        raise ValueError(f"cell: {name!r} is no name of a folder")
    options = panel.options | settings | panel.forced | from_factors | {"seed": seed}
    train = {key: str(options.pop(key)) for key in list(options) if key.isupper()}
    for what, names, words in (
        ("settings", [*train, *options], _TRAIN_WORDS),
        ("score", list(panel.score or {}), _SCORE_WORDS),
    ):
        for option in names:
            place = f"{panel.name}: {what}"
            if option.isupper() and option not in words:
                raise ValueError(f"{place}: {option}: a sweep may set {', '.join(sorted(words))}")
            if not option.isupper() and not option.startswith("recipe."):
                configs.check_allowed(option, place)
    return Cell(name, panel, options, train, panel.score, [Place(panel.name, keys, seed)])


def choose(cells: list[Cell], patterns: str | None) -> list[Cell]:
    """Return the cells that match one of several shell patterns, separated by spaces.

    Raises ValueError for a pattern without a match.
    """
    wanted = ["*"] if patterns is None else patterns.split()
    for pattern in wanted:
        if not any(fnmatch.fnmatch(cell.name, pattern) for cell in cells):
            names = listed([cell.name for cell in cells], 4)
            raise ValueError(f"--only (ONLY) {pattern}: there is no such cell among {names}")
    return [c for c in cells if any(fnmatch.fnmatch(c.name, pattern) for pattern in wanted)]
