"""Sweep definitions and their cells: names, settings, overrides, new schemes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.cli import words_of
from fairseq_deepnet.experiments import sweep
from fairseq_deepnet.experiments.grid import FOLDER, Cell, choose, expand, load_sweep, override
from fairseq_deepnet.files import ROOT
from fairseq_deepnet.schemes import PostLN
from fairseq_deepnet.tools import configs
from tests.support.models import Schemes

SWEEPS = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def cells_of(name: str, *words: str, seeds: tuple[int, ...] = (1,)) -> list[Cell]:
    return expand(override(load_sweep(name), words), seeds)


def by_name(name: str, *words: str, **more: object) -> dict[str, Cell]:
    return {cell.name: cell for cell in cells_of(name, *words, **more)}  # type: ignore[arg-type]


def options(cell: Cell) -> dict[str, configs.Value]:
    return cell.resolve().options


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a sweep definition outside configs/."""
    file = tmp_path / "small.yaml"
    file.write_text(
        "config: multi30k\n"
        "cell: '{scheme}-{lr}'\n"
        "factors:\n"
        "  scheme: {set: residual-scheme, values: [deepnorm, pre-ln]}\n"
        "  lr: {set: lr, values: [1e-3, 2e-3]}\n"
        "settings: {scheme: {pre-ln: {dropout: 0.3, PRECISION: fp32}}}\n"
        "# end\n",
        encoding="utf-8",
    )
    return file


def test_a_newly_registered_scheme_joins_a_comparison_of_all(schemes: Schemes) -> None:
    before = list(by_name("fig6"))
    schemes["unheard-of"] = type("Unheard", (PostLN,), {"name": "unheard-of"})
    after = list(by_name("fig6"))
    assert after == [*before, *(f"unheard-of_{depth}l" for depth in range(10, 101, 10))]
    assert str(options(by_name("table1")["r-fixup_18l"])["lr"]) == "5e-4"


def test_figure_7_changes_one_factor_at_a_time_and_equal_cells_are_one_run() -> None:
    fig7 = by_name("fig7")
    assert list(fig7) == [
        *("lr5e-4", "lr1e-3", "lr1.5e-3", "batch64", "batch256"),
        *("width512", "width768", "width1024"),
    ]
    assert [(place["panel"], place["values"]) for place in fig7["lr1.5e-3"].places] == [
        ("lr", {"lr": "1.5e-3"}),
        ("batch", {"batch": "128"}),
    ]
    wide = options(fig7["width768"])
    assert (wide["decoder-ffn-embed-dim"], wide["encoder-attention-heads"]) == (3072, 12)
    # table 6 for the widths, table 5 for the others
    assert (float(str(wide["clip-norm"])), float(str(wide["lr"]))) == (1.0, 5e-4)
    assert float(str(options(fig7["batch256"])["lr"])) == 1.5e-3


@pytest.mark.parametrize("name", SWEEPS)
def test_fairseq_has_every_option_of_every_panel(name: str) -> None:
    first = {cell.places[0]["panel"]: cell for cell in reversed(cells_of(name))}
    for cell in first.values():
        configs.check_options(cell.resolve())


def test_a_factor_s_name_replaces_its_values_and_other_words_are_options(small: Path) -> None:
    chosen = by_name(
        str(small), "lr=5e-4,3e-3", "max-update=7", "scheme=pre-ln", "recipe.data=elsewhere"
    )
    assert list(chosen) == ["pre-ln-5e-4", "pre-ln-3e-3"]
    config = chosen["pre-ln-3e-3"].resolve()
    assert (config.options["max-update"], config.options["dropout"]) == (7, 0.3)
    assert config.recipe["data"] == "elsewhere"
    assert float(str(config.options["lr"])) == 3e-3
    assert chosen["pre-ln-3e-3"].train == {"PRECISION": "fp32"}


def test_the_command_line_turns_scoring_on_and_off() -> None:
    words = ("score=true", "score.BEAM=4", "scheme=deepnorm", "depth=6")
    (cell,) = cells_of("compare_methods", *words)
    assert cell.score == ["--beam", "4"]
    assert cells_of("compare_methods")[0].score is None
    assert cells_of("table1", "score=false")[0].score is None
    assert "score" not in options(cell)
    assert cells_of("compare_methods", *words[1::-1])[0].score == ["--beam", "4"]
    with pytest.raises(ValueError, match="does not score its cells; add score=true"):
        cells_of("compare_methods", "score.BEAM=4")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("score=4", "score is true or false; score.BEAM=4 sets an option"),
        ("seed=7", "seed: use SEEDS="),
        ("scheme", "not of the form key=value"),
        ("scheme=deepnrom", "residual scheme deepnrom is unknown; choose one of"),
        ("lr=1e-3,", "lr: a value is missing"),
        ("lr=", "lr: a value is missing"),
    ],
)
def test_an_invalid_override_is_refused(small: Path, word: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cells_of(str(small), word)


def test_each_seed_is_a_separate_run_and_seed_1_has_no_suffix(small: Path) -> None:
    seeded = by_name(str(small), "lr=1e-3", seeds=(1, 2))
    names = ["deepnorm-1e-3", "pre-ln-1e-3"]
    assert list(seeded) == [*names, *(f"{name}.seed2" for name in names)]
    assert [options(cell)["seed"] for cell in seeded.values()] == [1, 1, 2, 2]
    assert seeded["pre-ln-1e-3.seed2"].places[0]["seed"] == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("config: multi30k\n", "", "small.yaml: missing or unknown keys: config; a panel has cell"),
        ("config:", "confg: x\nconfig:", "small.yaml: missing or unknown keys: confg"),
        ("set: lr, ", "", "small.yaml: main: lr=1e-3 is unknown"),
        (", values: [1e-3, 2e-3]", "", "small.yaml: factors: lr: expected a list `values`"),
        ("set: lr", "sets: lr", "small.yaml: factors: lr: expected a list `values`"),
        ("settings: {scheme", "settings: {depth", "settings: unknown factors: depth"),
        ("settings: {scheme: {pre-ln", "settings: {scheme: {pre_ln", "scheme has no value pre_ln"),
        ("{scheme}-{lr}", "{scheme}-{depth}", "small.yaml: main: 'depth'"),
        ("{scheme}-{lr}", "{scheme}/{lr}", "'deepnorm/1e-3' is not a valid folder name"),
        ("config: multi30k", "[", "not a valid sweep"),
        ("# end", "score: true", "small.yaml: score: expected options of deepnet evaluate"),
        ("dropout: 0.3", "seed: 3", "small.yaml: main: seed: use SEEDS=1,2"),
        ("# end", "factors: {}", "small.yaml: factors: at least one factor is needed"),
        ("# end", "panels: {lr sweep: {}}", "'lr sweep': a name cannot contain spaces"),
    ],
)
def test_an_invalid_definition_is_an_error_with_file_and_key(
    small: Path, old: str, new: str, message: str
) -> None:
    small.write_text(small.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        cells_of(str(small))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("settings: {scheme: {pre-ln: {PATH: /strange}}}", "main: settings: PATH is not allowed"),
        ("settings: {scheme: {pre-ln: {user-dir: /x}}}", "no file may set user-dir"),
        ("options: {log-file: /strange}", "no file may set log-file"),
        (
            "options: {distributed-init-method: file:///x}",
            "no file may set distributed-init-method",
        ),
        ("score: {BASH_ENV: /strange}", "main: score: BASH_ENV is not allowed"),
        ("score: {results-path: /strange}", "no file may set results-path"),
    ],
)
def test_a_definition_sets_only_allowed_options(line: str, message: str, small: Path) -> None:
    text = re.sub("(?m)^settings.*$", line, small.read_text(encoding="utf-8"))
    small.write_text(text, encoding="utf-8")
    sweep = load_sweep(str(small))
    with pytest.raises(ValueError, match=message):
        expand(sweep)


def chosen(only: str | None, name: str, *words: str) -> list[Cell]:
    return choose(cells_of(name, *words), only)


PRINTED = sorted(
    match[0]
    for page in (ROOT / "docs").rglob("*.md")
    for match in re.finditer(
        r"(?:[A-Z]+=(?:'[^']*'|\S+) )*bash scripts/sweep\.sh (?!FILE)(?:[^`#)\n\\]|\\\n)*",
        page.read_text(encoding="utf-8"),
    )
)
"""Commands in the documentation that run a sweep."""


@pytest.mark.parametrize("command", PRINTED)
def test_a_command_in_the_documentation_selects_cells(command: str) -> None:
    words = shlex.split(command.replace("\\\n", ""))
    start = words.index("bash")
    variables = dict(word.split("=", 1) for word in words[:start])
    name, *overrides = words[start + 2 :]
    parser = cli.Parser()
    sweep.add_arguments(parser)
    args = parser.parse([*words_of(parser, variables), name, *overrides])
    cells = sweep.choose_cells(args, load_sweep(name))
    assert cells


@pytest.mark.parametrize("word", ["norms=none", "freeze-norms=none"])
def test_an_override_reaches_a_panel_that_sets_the_option_itself(word: str) -> None:
    (cell,) = chosen("deepnorm_500l", "depth", word)
    assert options(cell)["freeze-norms"] == "none"
    assert options(*chosen("deepnorm_500l", "depth"))["freeze-norms"] == "both"


@pytest.mark.parametrize("name", ["methods_6l", "depth"])
def test_a_schedule_as_long_as_the_run_follows_max_update(name: str) -> None:
    for cell in cells_of(name, "max-update=9"):
        assert options(cell)["total-num-update"] == (2400 if "n_500l" in cell.name else 9)


def test_cells_that_differ_only_in_speed_are_separate(small: Path) -> None:
    text = small.read_text(encoding="utf-8").replace("set: lr", "set: num-workers")
    small.write_text(text.replace("1e-3, 2e-3", "0, 1"), encoding="utf-8")
    assert list(by_name(str(small), "scheme=pre-ln")) == ["pre-ln-0", "pre-ln-1"]


def test_an_option_that_a_factor_sets_is_refused() -> None:
    with pytest.raises(ValueError, match="a factor sets encoder-layers; the factors are depth, lr"):
        cells_of("fair", "encoder-layers=9")


def test_only_takes_several_patterns_that_must_all_match(small: Path) -> None:
    cells = cells_of(str(small))
    assert [cell.name for cell in choose(cells, "pre-* *-1e-3")] == [
        *("deepnorm-1e-3", "pre-ln-1e-3", "pre-ln-2e-3")
    ]
    with pytest.raises(ValueError, match=r"x\* matches none of the cells"):
        choose(cells, "pre-* x*")
