"""From a sweep's definition to its cells: one ordinary run each, with a name and settings."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import yaml

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.definition import KEPT, Sweep, SweepPanel
from fairseq_deepnet.files import inside_project, shown
from fairseq_deepnet.stock_names import HARMLESS, in_stock_names
from fairseq_deepnet.tools import configs, recipe_options
from fairseq_deepnet.tools.configs import Value
from fairseq_deepnet.tools.tables import listed
from fairseq_deepnet.tools.training import launch

_NOTHING: Final[Mapping[str, Value]] = MappingProxyType({})
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
        panel: what it builds on
        options: fairseq-train options (and `recipe.KEY`) that win over the config's
        variables: variables of scripts/train.sh
        score: variables of scripts/eval_bleu.sh, and options of fairseq-generate in small letters;
            None where it is not scored
        places: panels with these settings; the run is shared between them
    """

    name: str
    panel: SweepPanel
    options: dict[str, Value]
    variables: dict[str, str]
    score: dict[str, str] | None
    places: list[CellPlace]

    def resolve(self) -> configs.Config:
        """Return the whole config of the run."""
        overrides = []
        for key, value in self.options.items():
            text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
            text = text.removesuffix("...\n").strip()
            overrides.append(f"{key}={text}")
        return configs.load_config(self.panel.config, overrides)

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
        variables, options = {}, []
        for key, value in (self.score or {}).items():
            if key.isupper():
                variables[key] = value
            else:
                options += [f"--{key}", value]
        return variables, options

    def join(self, other: Cell) -> bool:
        """Take over the places and wishes of a cell with the same training; False where both are
        scored, and not alike.
        """
        if None not in (self.score, other.score) and self.score != other.score:
            return False
        self.places += other.places
        self.score = other.score if self.score is None else self.score
        keep = min(self.panel.keep, other.panel.keep, key=KEPT.index)
        self.panel = dataclasses.replace(self.panel, keep=keep)
        return True

    def differences(self) -> dict[str, str]:
        """Return every option and variable that differs from the panel's config."""
        config = configs.load_config(self.panel.config)
        base = config.options | {f"recipe.{key}": value for key, value in config.recipe.items()}
        differing = {
            key: paper.key(value)
            for key, value in self.options.items()
            if paper.key(base.get(key)) != paper.key(value)
        }
        return differing | self.variables


def override(
    sweep: Sweep, words: Sequence[str], tiny: bool = False, forced: Mapping[str, Value] = _NOTHING
) -> Sweep:
    """Return a sweep as `key=value` words change it.

    A factor's name replaces its values (`depth=6,18`); in panels without such a factor, a single
    value sets its options (`lr=1e-3`, `norms=none`). `score.BEAM=4` is a variable of
    scripts/eval_bleu.sh, `score=true` (or false) says whether cells are scored at all, all else is
    an option of every cell. `refuse_lost` refuses words that have no effect on a chosen cell.

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
                raise ValueError(f"{word!r}: score is true or false; score.BEAM=4 sets a variable")
            is_scored = value
        elif key == "seed":
            raise ValueError(f"{word!r}: SEEDS={value} (--seeds {value}) chooses the seeds")
        elif key.startswith("score."):
            score[key.removeprefix("score.")] = str(value)
        else:
            options[key] = value

    def changed(panel: SweepPanel) -> SweepPanel:
        scored = panel.score if is_scored is None else (panel.score or {}) if is_scored else None
        if scored is not None:
            scored = {k: v for k, v in scored.items() if not tiny or k != "AVERAGE"} | score
        chosen = (values.get(f.name, f.tiny if tiny else f.values) for f in panel.factors)
        pairs = zip(panel.factors, chosen, strict=True)
        own = tuple(dataclasses.replace(factor, values=found) for factor, found in pairs)
        names = {factor.name for factor in own}
        single: dict[str, Value] = {}
        for factor in sweep.factors:
            if factor.name not in names and len(values.get(factor.name, ())) == 1:
                single |= factor.options(values[factor.name][0])
        return dataclasses.replace(panel, factors=own, forced=options | single, score=scored)

    return dataclasses.replace(sweep, panels=tuple(map(changed, sweep.panels)))


def expand(sweep: Sweep, seeds: Sequence[int] = (1,)) -> list[Cell]:
    """Expand to cells in the definition's order; equal settings are one cell, of several places.

    Such a cell is scored if any of its panels wants that, and the one that keeps most checkpoints
    decides what stays. If two want other scores of it, they are two cells.

    Raises ValueError for a scheme that is not registered, for two cells of one name, and for names
    that cannot be a folder's.
    """
    from fairseq_deepnet.schemes import scheme_class  # loads torch

    cells: dict[str, Cell] = {}
    seen: dict[str, list[Cell]] = {}
    for panel in sweep.panels:
        for value in (v for factor in panel.factors if factor.is_scheme for v in factor.values):
            scheme_class(str(value))
        combinations = list(itertools.product(*(factor.values for factor in panel.factors)))
        for seed, values in itertools.product(seeds, combinations):
            cell = _cell(panel, values, seed)
            training = dataclasses.replace(cell, score=None).settings()
            alike = seen.setdefault(repr(sorted(training.items())), [])
            if any(other.join(cell) for other in alike):
                continue
            if cell.name in cells:
                raise ValueError(
                    f"{sweep.name}: two cells are called {cell.name}: name every factor in "
                    f"`cell: {panel.cell}`"
                )
            cells[cell.name] = cell
            alike.append(cell)
    return list(cells.values())


def _cell(panel: SweepPanel, values: Sequence[Value], seed: int) -> Cell:
    keys: dict[str, str] = {}
    from_factors: dict[str, Value] = {}
    settings: dict[str, Any] = {}
    for factor, value in zip(panel.factors, values, strict=True):
        key = keys[factor.name] = paper.key(value)
        from_factors |= factor.options(value)
        settings |= panel.settings.get(factor.name, {}).get(key, {})
    try:
        name = panel.cell.format(**keys) + f".seed{seed}" * (seed != 1)
    except KeyError as error:
        raise ValueError(f"cell: {panel.cell}: there is no factor {error}") from error
    if not _NAME.fullmatch(name):
        raise ValueError(f"cell: {name!r} is no name of a folder")
    variables = {key: str(value) for key, value in settings.items() if key.isupper()}
    options = panel.options | {k: v for k, v in settings.items() if not k.isupper()}
    options |= panel.forced | from_factors | {"seed": seed}
    for what, names, allowed in (
        ("settings", [*variables, *options], recipe_options.TRAINING),
        ("score", list(panel.score or {}), recipe_options.SCORING),
    ):
        _check_names(names, f"{panel.name}: {what}", SET_BY_SWEEPS[what], allowed)
    return Cell(name, panel, options, variables, panel.score, [CellPlace(panel.name, keys, seed)])


def _check_names(
    names: Iterable[str], place: str, variables: frozenset[str], options: frozenset[str]
) -> None:
    """Raise ValueError for what a definition may not set."""
    for name in names:
        if name.startswith("recipe."):
            continue  # checked where a config takes it
        if not name.isupper():
            recipe_options.check(name, place, options)
        elif name not in variables:
            raise ValueError(f"{place}: {name}: a sweep may set {', '.join(sorted(variables))}")


def choose(cells: list[Cell], patterns: str | None) -> list[Cell]:
    """Choose the cells whose name matches one of several shell patterns, separated by spaces;
    ValueError for a pattern that no name matches.
    """
    wanted = ["*"] if patterns is None else patterns.split()
    for pattern in wanted:
        if not any(fnmatch.fnmatch(cell.name, pattern) for cell in cells):
            names = ", ".join(cell.name for cell in cells[:4]) + (", ..." if len(cells) > 4 else "")
            raise ValueError(f"--only (ONLY) {pattern}: there is no such cell among {names}")
    return [c for c in cells if any(fnmatch.fnmatch(c.name, pattern) for pattern in wanted)]


def refuse_lost(sweep: Sweep, words: Sequence[str], cells: Sequence[Cell]) -> None:
    """Raise ValueError for a word of the command line that has no effect on one of these cells."""
    for word in words:
        missed = [cell.name for cell in cells if not _has(cell, sweep, word)]
        if missed:
            raise ValueError(
                f"{word} has no effect on {listed(missed)} of {sweep.name}: their own factors or "
                "score decide. Choose other cells with --only (ONLY), give a factor one value, or "
                "name the factor itself"
            )


def _has(cell: Cell, sweep: Sweep, word: str) -> bool:
    """Return True if a cell is trained and scored as a word of the command line says."""
    key, value = configs.parse_override(word)
    if key == "score":
        return True
    if key.startswith("score."):
        return (cell.score or {}).get(key.removeprefix("score.")) == str(value)

    def is_set(options: Mapping[str, Value]) -> bool:
        return all(paper.key(cell.options.get(o)) == paper.key(v) for o, v in options.items())

    factors = [factor for factor in (*cell.panel.factors, *sweep.factors) if factor.name == key]
    if not factors:
        return is_set({key: value})
    texts = word.partition("=")[2].split(",")
    return any(is_set(factors[0].options(configs.parse_value(t))) for t in texts if t.strip())
