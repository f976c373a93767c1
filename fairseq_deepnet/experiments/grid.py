"""Sweep definitions, and their expansion into cells, each of which is one run.

A definition is a YAML file in configs/sweeps/ with these keys:

    title       title of the tables
    panels      name -> part of the sweep with its own keys; keys at the top level are defaults for
                all panels; without panels, the top level is the only panel
    config      name of the runs' config in configs/
    options     fairseq-train options of every cell; `recipe.KEY` sets a key of the recipe
    cell        pattern of cell names: "{scheme}_{depth}l"
    factors     name -> {set, values}; cells are all combinations of values
    settings    factor -> value -> further options of the cells with that value
    score       options of `deepnet evaluate` in capitals (BEAM: 4), and options of
                fairseq-generate; false if cells are not scored

A factor sets the options listed in `set` to its value. Without `set`, `settings` lists the options
for each value. `values: schemes` selects all registered residual schemes. In `options` and
`settings`, the key PRECISION sets an option of `deepnet train` instead of fairseq-train.
"""

import argparse
import copy
import dataclasses
import fnmatch
import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.errors import Parser, did_you_mean
from fairseq_deepnet.experiments import paper
from fairseq_deepnet.files import shown
from fairseq_deepnet.stock_names import HARMLESS, in_stock_names
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.configs import CONFIG_FOLDER, Value
from fairseq_deepnet.tools.tables import listed
from fairseq_deepnet.tools.training import launch

FOLDER: Final = CONFIG_FOLDER / "sweeps"
_KEYS: Final = {"config", "options", "cell", "factors", "settings", "score"}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_TRAIN_WORDS: Final = {"PRECISION"}
_SCORE_WORDS: Final = {
    *("SPLIT", "BEAM", "LENPEN", "AVERAGE", "BATCH", "DIRECTIONS", "TEXT", "TOKENIZER")
}
"""Options of `deepnet train` and `deepnet evaluate` that a definition may set."""
Panel = dict[str, Any]
"""Keys of a panel, including the defaults from the top level."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep, as defined in a file.

    Args:
        name: name of the file in configs/sweeps/, without its suffix, or the path of another file
    """

    name: str
    title: str
    panels: dict[str, Panel]


@dataclasses.dataclass
class Cell:
    """A run of a sweep.

    Args:
        name: name of the run folder
        options: fairseq-train options (and `recipe.KEY`) that override the config
        train: options of `deepnet train`, in capitals
        score: arguments of `deepnet evaluate`, or None if the cell is not scored
        places: panel, factor values and seed of every combination that this run covers
    """

    name: str
    config: str
    options: dict[str, Value]
    train: dict[str, str]
    score: list[str] | None
    places: list[dict[str, Any]]

    @property
    def train_words(self) -> list[str]:
        """Arguments of `deepnet train`."""
        return [word for key, value in self.train.items() for word in (f"--{key.lower()}", value)]

    def resolve(self) -> configs.Config:
        """Return the run's complete config."""
        config = configs.load_config(self.config)
        configs.override(config, self.options, self.name)
        return config

    def settings(self) -> dict[str, str]:
        """Return all settings that affect the run's results, in a canonical spelling."""
        config = self.resolve()
        settings = {
            key: paper.key(value)
            for key, value in in_stock_names(config.options).items()
            if key.replace("-", "_") not in HARMLESS
        }
        if config.data is not None:
            settings["recipe.data"] = shown(config.data)
        if "global-batch-tokens" in config.recipe:
            tokens = launch.parse_tokens(config.recipe["global-batch-tokens"])
            settings["recipe.global-batch-tokens"] = str(tokens)
        return settings | self.train


def load_sweep(name: str) -> Sweep:
    """Read a definition from a path, or by its name in configs/sweeps/.

    Raises:
        ValueError: if the definition is invalid; the message names the file and the key.
    """
    path = configs.find_config(name, FOLDER)
    content = configs.read_yaml(path, "sweep", "key: value")
    title = str(content.pop("title", path.stem))
    parts = content.pop("panels", None) or {"main": {}}
    try:
        panels = {str(part): _panel(content, own or {}) for part, own in parts.items()}
        _refuse_unused_settings(list(panels.values()))
        for name in (*panels, *(f for panel in panels.values() for f in panel["factors"])):
            if re.search(r"[\s:,]", name):
                raise ValueError(f"{name!r}: a name cannot contain spaces, colons or commas")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    is_published = path.resolve().parent == FOLDER.resolve()
    return Sweep(path.stem if is_published else shown(path), title, panels)


def _panel(common: Panel, own: Panel) -> Panel:
    panel: Panel = {"settings": {}, "score": {}} | common | own
    panel["options"] = {**common.get("options", {}), **own.get("options", {})}
    if wrong := panel.keys() ^ _KEYS:
        text = f"missing or unknown keys: {', '.join(sorted(wrong))}"
        raise ValueError(f"{text}; a panel has {', '.join(sorted(_KEYS))}")
    if panel["score"] is not False and not isinstance(panel["score"], dict):
        raise ValueError("score: expected options of deepnet evaluate, {} for defaults, or false")
    if not panel["factors"]:
        raise ValueError("factors: at least one factor is needed")
    if unknown := panel["settings"].keys() - panel["factors"].keys():
        raise ValueError(f"settings: unknown factors: {', '.join(unknown)}")
    panel["settings"] = {
        factor: {paper.key(value): dict(options) for value, options in by_value.items()}
        for factor, by_value in panel["settings"].items()
    }
    panel["factors"] = {name: _factor(name, f) for name, f in panel["factors"].items()}
    return panel


def _refuse_unused_settings(panels: Sequence[Panel]) -> None:
    """Raise ValueError if settings name a value that no panel has, such as a misspelt scheme."""
    for factor in {name for panel in panels for name in panel["settings"]}:
        having = [panel for panel in panels if factor in panel["factors"]]
        values = {paper.key(v) for panel in having for v in panel["factors"][factor]["values"]}
        for panel in having:
            unused = panel["settings"].get(factor, {}).keys() - values
            if unused and panel["factors"][factor]["set"]:
                raise ValueError(f"settings: {factor} has no value {', '.join(sorted(unused))}")


def _factor(name: str, content: dict[str, Any]) -> dict[str, Any]:
    from fairseq_deepnet.schemes import SCHEMES  # loads torch

    sets, values = content.get("set", []), content.get("values")
    values = list(SCHEMES) if values == "schemes" else values
    if content.keys() - {"set", "values"} or not values or not isinstance(values, list):
        raise ValueError(f"factors: {name}: expected a list `values` and, optionally, `set`")
    return {"set": [sets] if isinstance(sets, str) else sets, "values": values}


def _options_of(panel: Panel, factor: str, value: Value) -> dict[str, Value]:
    """Return the options for one value of a factor."""
    if sets := panel["factors"][factor]["set"]:
        return dict.fromkeys(sets, value)
    settings: dict[str, dict[str, Value]] = panel["settings"].get(factor, {})
    if paper.key(value) not in settings:
        raise ValueError(f"{factor}={value} is unknown; choose from {', '.join(settings)}")
    return settings[paper.key(value)]


def override(
    sweep: Sweep, words: Sequence[str], forced: Mapping[str, Value] | None = None
) -> Sweep:
    """Return a copy of a sweep with `key=value` arguments applied.

    If the key is a factor, the values replace the factor's values (`depth=6,18`). In panels without
    this factor, a single value sets the factor's options (`lr=1e-3`, `norms=none`). `score.BEAM=4`
    sets an option of `deepnet evaluate`, and `score=true` or `score=false` turns scoring on or off.
    Any other key sets an option of every cell.

    Args:
        forced: further options of every cell

    Raises:
        ValueError: if a key is an option that a factor sets, or a value is invalid.
    """
    panels = copy.deepcopy(sweep.panels)
    owners = {factor: panel for panel in sweep.panels.values() for factor in panel["factors"]}
    for panel in panels.values():
        panel["forced"] = dict(forced or {})
    pairs = map(configs.parse_override, words)
    # whether to score comes first, as score.KEY depends on it
    for key, value in sorted(pairs, key=lambda pair: pair[0] != "score"):
        word = f"{key}={value}"
        values = [configs.parse_value(text) for text in str(value).split(",")]
        if key in owners and (value is None or None in values):
            raise ValueError(f"{key}: a value is missing")
        if key == "score.TEXT":  # cells run in ROOT
            value = shown(Path(str(value)))
        if key == "score" and not isinstance(value, bool):
            raise ValueError(f"{word!r}: score is true or false; score.BEAM=4 sets an option")
        if key not in owners and all(key in _set_by_factors(panel) for panel in panels.values()):
            raise ValueError(f"{word!r}: a factor sets {key}; the factors are {', '.join(owners)}")
        if key.startswith("score.") and all(p["score"] is False for p in panels.values()):
            raise ValueError(f"{word!r}: the sweep does not score its cells; add score=true")
        for panel in panels.values():
            if key in panel["factors"]:
                panel["factors"][key]["values"] = values
            elif key in owners:
                own = _options_of(owners[key], key, values[0]) if len(values) == 1 else {}
                panel["forced"] |= own
            elif key == "score":
                panel["score"] = (panel["score"] or {}) if value else False
            elif not key.startswith("score."):
                panel["forced"][key] = value
            elif panel["score"] is not False:
                panel["score"][key.removeprefix("score.")] = value
    return dataclasses.replace(sweep, panels=panels)


def check(sweep: Sweep, cells: Sequence[Cell], words: Sequence[str]) -> None:
    """Check all options as `deepnet train` and `deepnet evaluate` do.

    Args:
        words: the `key=value` arguments of the command line

    Raises:
        ValueError: for an invalid option; the message names its source and similar names.
    """
    from fairseq_deepnet.tools.training import settle, train  # loads torch and fairseq

    typed = {configs.parse_override(word)[0] for word in words}
    keys = ["score", *(factor for panel in sweep.panels.values() for factor in panel["factors"])]
    for cell in cells:
        config = cell.resolve()
        try:
            settle.check_options(config)
            parse(train, ["CONFIG", *cell.train_words])
            _check_score(tuple(cell.score or ()), str(config.options.get("task", "translation")))
        except ValueError as error:
            text = str(error).removeprefix(f"{config.name}: ")
            name = re.split("[=: /]", text.partition("--")[2] or text)[0]
            if text.startswith("unknown") and (hint := did_you_mean(name, keys)):
                text = text.partition(";")[0] + hint
            of_config = name in config.options and name not in cell.options
            source = config.name if of_config else sweep.name
            if typed & {name, name.upper(), f"score.{name}", f"score.{name.upper()}"}:
                source = "command line"
            raise ValueError(f"{source}: {text}") from error


@functools.cache  # the parser of fairseq-generate takes most of a second
def _check_score(words: tuple[str, ...], task: str) -> None:
    from fairseq_deepnet.tools import fairseq_options
    from fairseq_deepnet.tools.evaluation import evaluate

    extra = parse(evaluate, ["RUN", *words]).extra
    fairseq_options.parse_generation(["DATA", "--path", "MODEL", "--task", task, *extra])
    evaluate.check_options(extra)


def parse(module: Any, words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a subcommand, given its module."""
    parser = Parser()
    module.add_arguments(parser)
    return parser.parse(words)


def _set_by_factors(panel: Panel) -> set[str]:
    firsts = ((name, factor["values"][0]) for name, factor in panel["factors"].items())
    return {option for name, value in firsts for option in _options_of(panel, name, value)}


def expand(sweep: Sweep, seeds: Sequence[int] = (1,)) -> list[Cell]:
    """Return the cells in definition order; combinations with equal settings share a cell.

    Raises:
        ValueError: if a scheme is not registered, cells with different settings have the same name,
            a name is not valid for a folder, or the definition sets an option that it must not set.
    """
    cells: dict[str, Cell] = {}
    by_settings: dict[str, Cell] = {}
    for name, panel in sweep.panels.items():
        values = (factor["values"] for factor in panel["factors"].values())
        for seed, *combination in itertools.product(seeds, *values):
            chosen = dict(zip(panel["factors"], combination, strict=True))
            try:
                cell = _cell(name, panel, chosen, seed)
            except (KeyError, ValueError) as error:
                raise ValueError(f"{sweep.name}: {name}: {error}") from error
            config = cell.resolve()
            words = (config.options | config.recipe | cell.train).items()  # with those of speed
            settings = repr((sorted((k, paper.key(v)) for k, v in words), cell.score))
            same = by_settings.setdefault(settings, cell)
            if same is not cell:
                same.places += cell.places
            elif cells.setdefault(cell.name, cell) is not cell:
                raise ValueError(f"{sweep.name}: two cells have the name {cell.name}")
    return list(cells.values())


def _cell(panel_name: str, panel: Panel, chosen: dict[str, Value], seed: int) -> Cell:
    from fairseq_deepnet.schemes import scheme_class  # loads torch

    keys = {factor: paper.key(value) for factor, value in chosen.items()}
    name = panel["cell"].format(**keys) + (f".seed{seed}" if seed != 1 else "")
    if not _NAME.fullmatch(name):
        raise ValueError(f"cell: {name!r} is not a valid folder name")
    options = dict(panel["options"])
    for factor, key in keys.items():
        options |= panel["settings"].get(factor, {}).get(key, {})
    options |= configs.tied(options, panel.get("forced", {}))
    for factor, value in chosen.items():
        options |= _options_of(panel, factor, value)
    if "seed" in options:
        raise ValueError("seed: use SEEDS=1,2 (--seeds 1,2) to select seeds")
    if "residual-scheme" in options:
        scheme_class(str(options["residual-scheme"]))
    train = {key: str(options.pop(key)) for key in list(options) if key.isupper()}
    score = None if panel["score"] is False else {k: str(v) for k, v in panel["score"].items()}
    for source, names, allowed in (
        ("settings", [*train, *options], _TRAIN_WORDS),
        ("score", list(score or {}), _SCORE_WORDS),
    ):
        for option in names:
            if option not in allowed and (option.isupper() or option.upper() in allowed):
                choices = ", ".join(sorted(allowed))
                raise ValueError(f"{source}: {option} is not allowed; choose from {choices}")
            if not option.isupper() and not option.startswith("recipe."):
                configs.check_allowed(option, source)
    places = [{"panel": panel_name, "values": keys, "seed": seed}]
    words = None
    if score is not None:
        own = [w for k, v in score.items() if k.isupper() for w in (f"--{k.lower()}", v)]
        fairseqs = [w for k, v in score.items() if not k.isupper() for w in (f"--{k}", v)]
        words = [*own, "--", *fairseqs] if fairseqs else own
    return Cell(name, panel["config"], options | {"seed": seed}, train, words, places)


def choose(cells: list[Cell], patterns: str | None) -> list[Cell]:
    """Return the cells that match at least one of the space-separated shell patterns.

    Raises:
        ValueError: if a pattern matches no cell.
    """
    globs = ["*"] if patterns is None else patterns.split()
    for pattern in globs:
        if not any(fnmatch.fnmatch(cell.name, pattern) for cell in cells):
            names = listed([cell.name for cell in cells], 4)
            raise ValueError(f"--only (ONLY) {pattern} matches none of the cells {names}")
    return [c for c in cells if any(fnmatch.fnmatch(c.name, pattern) for pattern in globs)]
