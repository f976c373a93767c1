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
    tables      what the results are put into: see fairseq_deepnet.experiments.sweeps.layouts

A factor's `set` is an option, a list of options, or a mapping of options to what the value is
multiplied by. `schemes: TABLE` takes the residual schemes of a published table that are registered,
`schemes: [NAME, ...]` those of a list, and `others: true` adds every other registered one. `tiny`
stands for `values` in a rehearsal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.sweeps.factors import Factor, check_keys, read_factor
from fairseq_deepnet.experiments.sweeps.layouts import Layout, layout
from fairseq_deepnet.files import inside_project
from fairseq_deepnet.tools.configs import CONFIG_FOLDER, Value, load_config
from fairseq_deepnet.tools.corpora.folder import MONOLINGUAL_TASKS

FOLDER: Final = CONFIG_FOLDER / "sweeps"
_TOP: Final = {"title", "also", "panels", "tables"}
_PANEL: Final = {
    *("config", "options", "cell", "factors", "settings", "score"),
    *("keep", "vocabulary", "planned-updates"),
}
KEPT: Final = ("all", "best")
"""Which checkpoints stay of a cell that has its result; the first is the default."""
MAIN: Final = "main"
"""The one panel of a sweep that names none."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """Cells that share a config: all combinations of the factors' values."""

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


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A whole definition."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    layouts: tuple[Layout, ...]

    def panel(self, name: str) -> Panel:
        """A panel by its name."""
        return next(panel for panel in self.panels if panel.name == name)

    def with_config(self, config: str) -> Sweep:
        """The same with another config below all its cells.

        ValueError where that is of one stack alone and the sweep's own is not, or the reverse:
        factors such as `encoder-layers` would be no options of the model.
        """
        for panel in self.panels:
            if _is_monolingual(config) != _is_monolingual(panel.config):
                kinds = ("encoder-decoder models", "language models")
                wanted, given = kinds if _is_monolingual(config) else kinds[::-1]
                raise ValueError(
                    f"--config (CONFIG) {config} is for {given}, and {self.name} compares {wanted} "
                    f"as {panel.config} has them: choose such a config"
                )
        panels = tuple(dataclasses.replace(panel, config=config) for panel in self.panels)
        return dataclasses.replace(self, panels=panels)


def _is_monolingual(config: str) -> bool:
    return load_config(config).options.get("task") in MONOLINGUAL_TASKS


def find_sweep(name: str, folder: Path = FOLDER) -> Path:
    """The file of a sweep given as a path, a name in configs/sweeps/, or another name of it.

    A path is looked for here and in the project: records of cells hold the latter.
    """
    for candidate in (inside_project(name), folder / name, folder / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    known = {}
    for path in sorted(folder.glob("*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for other in [path.stem, *(content or {}).get("also", [])]:
            known[other] = path
    if name in known:
        return known[name]
    there = ", ".join(known) or "none"
    raise FileNotFoundError(f"no sweep {name!r}: not a file, and configs/sweeps/ holds {there}")


def load_sweep(name: str, folder: Path = FOLDER) -> Sweep:
    """Read and check a definition; ValueError names the file and the key that is wrong."""
    path = find_sweep(name, folder)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        detail = " ".join(str(error).split())
        raise ValueError(f"{path}: not a valid sweep: {detail}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a sweep is a mapping of keys, see configs/sweeps/table1.yaml")
    try:
        return _sweep(path.stem, content)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _sweep(name: str, content: dict[str, Any]) -> Sweep:
    check_keys(content, _TOP | _PANEL, "")
    common = {key: value for key, value in content.items() if key in _PANEL}
    parts = content.get("panels") or {MAIN: {}}
    panels = tuple(_panel(part, common, own or {}) for part, own in parts.items())
    factors = {panel.name: {factor.name for factor in panel.factors} for panel in panels}
    layouts = tuple(layout(item, factors) for item in content.get("tables") or [])
    _check_names(layouts)
    return Sweep(name, str(content.get("title", name)), panels, layouts)


def _check_names(layouts: Sequence[Layout]) -> None:
    """ValueError for two tables of one name: their figures would be one file."""
    names = [item.name for item in layouts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"tables: two are called {name!r}: give one a `name` of its own")


def _panel(name: str, common: dict[str, Any], own: dict[str, Any]) -> Panel:
    place = "" if name == MAIN else f"panels: {name}: "
    check_keys(own, _PANEL, place)
    content = common | own
    for key in ("config", "cell", "factors"):
        if key not in content:
            raise ValueError(f"{place}{key} is missing")
    factors = tuple(read_factor(key, value, place) for key, value in content["factors"].items())
    names = {factor.name for factor in factors}
    settings = content.get("settings") or {}
    for factor in settings:
        if factor not in names:
            raise ValueError(f"{place}settings: there is no factor {factor!r}")
    score = content.get("score", {})
    keep = content.get("keep", KEPT[0])
    if keep not in KEPT:
        raise ValueError(f"{place}keep: {keep!r} is unknown; known are {', '.join(KEPT)}")
    return Panel(
        name=str(name),
        config=str(content["config"]),
        cell=str(content["cell"]),
        factors=factors,
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
