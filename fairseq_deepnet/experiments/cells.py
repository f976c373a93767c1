"""From a sweep's definition to its cells: one ordinary run each, with a name and settings."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import yaml

from fairseq_deepnet import literals
from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.definition import Factor, Sweep, SweepPanel
from fairseq_deepnet.files import inside_project, shown
from fairseq_deepnet.stock_names import HARMLESS, in_stock_names
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.configs import Value
from fairseq_deepnet.tools.training import launch

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
SET_BY_SWEEPS: Final = {
    "settings": frozenset({"GPUS", "CPU_PROCESSES", "THREADS", "PRECISION"}),
    "score": frozenset(
        {"SPLIT", "BEAM", "LENPEN", "AVERAGE", "GPUS", "PROCESSES", "ENGINE", "QUANTIZATION"}
        | {"THREADS", "BATCH", "DIRECTIONS", "TEXT", "TOKENIZER"}
    ),
}
"""Variables of scripts/train.sh and of scripts/eval_bleu.sh that a definition may set: of the whole
environment, PATH would decide what code runs."""

TINY: Final[dict[str, Value]] = {
    **{"encoder-embed-dim": 16, "encoder-ffn-embed-dim": 16, "encoder-attention-heads": 2},
    **{"decoder-embed-dim": 16, "decoder-ffn-embed-dim": 16, "decoder-attention-heads": 2},
    **{"max-update": 2, "validate-interval-updates": 1, "save-interval-updates": 1},
    **{"max-tokens": 256, "recipe.global-batch-tokens": 256, "log-interval": 1, "num-workers": 0},
}
"""What a rehearsal changes, save for what a factor sets: it walks the whole way in minutes."""


@dataclasses.dataclass(frozen=True)
class CellPlace:
    """Where a cell's result stands: its panel, the key of every factor's value, its seed."""

    panel: str
    values: dict[str, str]
    seed: int


@dataclasses.dataclass
class Cell:
    """One run of a sweep.

    Args:
        name: the run folder's name within the sweep's
        config: the config it builds on
        options: fairseq-train options (and `recipe.KEY`) that win over the config's
        variables: variables of scripts/train.sh
        score: variables of scripts/eval_bleu.sh, and options of fairseq-generate in small letters;
            None where it is not scored
        vocabulary: symbols to plan with where the data are not there
        planned_updates: updates to plan with where the config has epochs instead
        places: panels with these settings; the run is shared between them
        keep: the checkpoints that stay once it has a result, all or the best
    """

    name: str
    config: str
    options: dict[str, Value]
    variables: dict[str, str]
    score: dict[str, str] | None
    vocabulary: int | None
    planned_updates: int | None
    places: list[CellPlace]
    keep: str = "all"

    def resolve(self) -> configs.Config:
        """Return the whole config of the run."""
        overrides = []
        for key, value in self.options.items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
            text = text.removesuffix("...\n").strip()
            overrides.append(f"{key}={text}")
        return configs.load_config(self.config, overrides)

    def settings(self) -> dict[str, str]:
        """Return everything that decides its numbers, in one spelling however it was written."""
        config = self.resolve()
        options = in_stock_names(config.options)
        found = {
            key: paper.key(value)
            for key, value in options.items()
            if key.replace("-", "_") not in HARMLESS
        }
        if "data" in config.recipe:
            found["recipe.data"] = shown(inside_project(str(config.recipe["data"])))
        if "global-batch-tokens" in config.recipe:
            tokens = launch.parse_tokens(config.recipe["global-batch-tokens"])
            found["recipe.global-batch-tokens"] = str(tokens)
        found |= self.variables
        return found | {f"score.{key}": value for key, value in (self.score or {}).items()}

    def scoring(self) -> tuple[dict[str, str], list[str]]:
        """Return variables of scripts/eval_bleu.sh, and options of fairseq-generate for it."""
        score = self.score or {}
        words = [
            w for key, value in score.items() if not key.isupper() for w in (f"--{key}", value)
        ]
        return {key: value for key, value in score.items() if key.isupper()}, words

    def described(self) -> str:
        """Return what tells it from the others: the values of its factors."""
        place = self.places[0]
        return ", ".join(f"{factor} {value}" for factor, value in place.values.items())


@dataclasses.dataclass
class Overrides:
    """What a command line changes in a definition.

    Args:
        factors: factor -> its values instead of the definition's
        options: options of every cell
        score: variables of scripts/eval_bleu.sh, for cells that are scored
        is_scored: whether cells are scored; None: as the definition says
    """

    factors: dict[str, tuple[Value, ...]] = dataclasses.field(default_factory=dict)
    options: dict[str, Value] = dataclasses.field(default_factory=dict)
    score: dict[str, str] = dataclasses.field(default_factory=dict)
    is_scored: bool | None = None


def read_overrides(sweep: Sweep, words: Sequence[str]) -> Overrides:
    """`key=value` words: a factor's name replaces its values (`depth=6,18`), `score.BEAM=4` is a
    variable of scripts/eval_bleu.sh, `score=true` (or false) says whether cells are scored at all,
    all else is an option.

    Raises ValueError for an option that a factor sets: the cells would all be the same.
    """
    factors = {factor.name for factor in sweep.factors}
    set_by = {option: factor.name for factor in sweep.factors for option in factor.sets}
    found = Overrides()
    for word in words:
        key, value = configs.parse_override(word)
        if key in factors:
            texts = word.partition("=")[2].split(",")
            found.factors[key] = tuple(configs.parse_value(text) for text in texts if text.strip())
            if not found.factors[key]:
                raise ValueError(f"{word!r}: {key} is a factor of {sweep.name}: give it values")
        elif key in set_by:
            raise ValueError(
                f"{key} is what the factor {set_by[key]} of {sweep.name} sets: say"
                f" {set_by[key]}=VALUE"
            )
        elif key == "score":
            if not isinstance(value, bool):
                raise ValueError(f"{word!r}: score is true or false; score.BEAM=4 sets a variable")
            found.is_scored = value
        elif key.startswith("score."):
            found.score[key.removeprefix("score.")] = str(value)
        else:
            found.options[key] = value
    return found


def expand(
    sweep: Sweep, overrides: Overrides, seeds: Sequence[int] = (1,), tiny: bool = False
) -> list[Cell]:
    """Expand to cells in the definition's order; equal settings are one cell, of several places.

    Raises ValueError for two cells of one name, and for names that cannot be a folder's.
    """
    cells: dict[str, Cell] = {}
    seen: dict[str, Cell] = {}
    for panel in sweep.panels:
        factors = [_with_values(factor, overrides, tiny) for factor in panel.factors]
        for seed in seeds:
            for values in itertools.product(*(factor.values for factor in factors)):
                cell = _cell(panel, factors, values, seed, overrides, tiny)
                settings = repr(sorted(cell.settings().items()))
                if settings in seen:
                    seen[settings].places += cell.places
                    continue
                if cell.name in cells:
                    raise ValueError(
                        f"{sweep.name}: two cells are called {cell.name}: name every factor in "
                        f"`cell: {panel.cell}`"
                    )
                cells[cell.name] = seen[settings] = cell
    return list(cells.values())


def _with_values(factor: Factor, overrides: Overrides, tiny: bool) -> Factor:
    values = overrides.factors.get(factor.name, factor.tiny if tiny else factor.values)
    if factor.is_scheme:
        from fairseq_deepnet.schemes import scheme_class

        for value in values:
            scheme_class(str(value))
    return dataclasses.replace(factor, values=values)


def _cell(
    panel: SweepPanel,
    factors: Sequence[Factor],
    values: Sequence[Value],
    seed: int,
    overrides: Overrides,
    tiny: bool,
) -> Cell:
    keys = {factor.name: paper.key(value) for factor, value in zip(factors, values, strict=True)}
    try:
        name = panel.cell.format(**keys)
    except KeyError as error:
        raise ValueError(f"cell: {panel.cell}: there is no factor {error}") from error
    name += "" if seed == 1 else f".seed{seed}"
    if not _NAME.fullmatch(name):
        raise ValueError(f"cell: {name!r} is no name of a folder")
    from_factors: dict[str, Value] = {}
    settings: dict[str, Any] = {}
    for factor, value in zip(factors, values, strict=True):
        from_factors |= factor.options(value)
        settings |= panel.settings.get(factor.name, {}).get(keys[factor.name], {})
    variables = {key: str(value) for key, value in settings.items() if key.isupper()}
    options = panel.options | {k: v for k, v in settings.items() if not k.isupper()}
    options |= TINY if tiny else {}
    options |= overrides.options | from_factors | {"seed": seed}
    score = panel.score
    if overrides.is_scored is not None:
        score = (score or {}) if overrides.is_scored else None
    if score is not None:
        kept = {key: value for key, value in score.items() if not tiny or key != "AVERAGE"}
        score = kept | overrides.score
    for what, names in (("settings", variables | options), ("score", score or {})):
        _check_names(names, f"{panel.name}: {what}", SET_BY_SWEEPS[what])
    place = CellPlace(panel.name, keys, seed)
    planned = panel.vocabulary, panel.planned_updates
    return Cell(name, panel.config, options, variables, score, *planned, [place], panel.keep)


def _check_names(names: Iterable[str], place: str, variables: frozenset[str]) -> None:
    """ValueError for a variable or an option that a definition may not set, as it runs code."""
    for name in names:
        if not name.isupper():
            literals.check_name(name.removeprefix("recipe."), place)
        elif name not in variables:
            raise ValueError(f"{place}: {name}: a sweep may set {', '.join(sorted(variables))}")


def choose(cells: list[Cell], pattern: str | None) -> list[Cell]:
    """Choose the cells whose name matches a shell pattern; ValueError where there is none."""
    chosen = [cell for cell in cells if pattern is None or fnmatch.fnmatch(cell.name, pattern)]
    if not chosen:
        names = ", ".join(cell.name for cell in cells[:4]) + ", ..." * (len(cells) > 4)
        raise ValueError(f"--only (ONLY) {pattern}: there is no such cell among {names}")
    return chosen
