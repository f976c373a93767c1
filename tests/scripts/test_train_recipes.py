"""The training recipes, scripts/train_*.sh: preprocessing and the arguments of train.sh."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.shell import ROOT, FakeBin

RECIPES = sorted(path.name for path in (ROOT / "scripts").glob("train_*.sh"))


def option(call: list[str], name: str) -> str:
    """Return the last value of an option, which overrides earlier values."""
    return call[len(call) - call[::-1].index(name)]


class Recipe:
    """Runs a recipe with a `bash` that records scripts/train.sh and the preprocessing instead."""

    def __init__(self, fakes: FakeBin, folder: Path) -> None:
        self.fakes, self.folder = fakes, folder
        fakes.add("bash", f'echo "$RUN $DATA" >"{folder}/places"')

    def __call__(self, name: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", str(ROOT / "scripts" / name), *options],
            env={**os.environ, "PATH": self.fakes.path(), "DATA": str(self.folder), **env},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    @property
    def calls(self) -> list[list[str]]:
        return [[Path(call[0]).name, *call[1:]] for call in self.fakes.calls("bash")]


@pytest.fixture
def recipe(fake_bin: FakeBin, tmp_path: Path) -> Recipe:
    return Recipe(fake_bin, tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_missing_data_are_built_before_training_and_present_data_are_used(
    recipe: Recipe, name: str
) -> None:
    result = recipe(name, SEED="5", SCHEME="pre-ln", DEPTH="12")
    assert result.returncode == 0, result.stderr
    assert [call[0] for call in recipe.calls] == [name.replace("train_", "preprocess_"), "train.sh"]
    call = recipe.calls[-1]
    assert (option(call, "--seed"), option(call, "--residual-scheme")) == ("5", "pre-ln")
    run, data = (recipe.folder / "places").read_text(encoding="utf-8").split()
    assert data == str(recipe.folder)
    assert Path(run).parent == ROOT / "runs"
    assert run.endswith("_pre-ln_seed5")
    assert "12l" in run
    (recipe.folder / "dict.en.txt").touch()  # as fairseq-preprocess writes it
    recipe(name)
    assert [call[0] for call in recipe.calls[2:]] == ["train.sh"]


@pytest.mark.parametrize("name", RECIPES)
def test_other_languages_have_their_own_data_and_run(recipe: Recipe, name: str) -> None:
    env = {"SRC": "fr", "TGT": "nl", "LANGS": "fr nl", "DATA": ""}
    result = recipe(name, **env, NODES="2")  # nodes would wait for the data
    assert "-nl SRC=fr TGT=nl LANGS=fr\\ nl bash scripts/preprocess_" in result.stderr
    recipe(name, **env, DRY_RUN="1")
    for place in (recipe.folder / "places").read_text(encoding="utf-8").split():
        assert "fr-nl" in Path(place).name


@pytest.mark.parametrize("name", RECIPES)
def test_data_that_exist_are_trained_in_the_chosen_languages(recipe: Recipe, name: str) -> None:
    (recipe.folder / "corpus.json").touch()
    recipe(name, SRC="fr", TGT="nl", LANGS="fr nl")
    (call,) = recipe.calls
    if "opus" in name:
        assert option(call, "--lang-pairs") == "fr-en,en-fr,nl-en,en-nl"
    else:
        assert (option(call, "--source-lang"), option(call, "--target-lang")) == ("fr", "nl")


@pytest.mark.parametrize(
    ("name", "env", "config"),
    [
        ("train_multi30k.sh", {}, "multi30k"),
        ("train_iwslt14.sh", {}, "iwslt14"),
        ("train_wmt17.sh", {}, "wmt17_base"),
        ("train_wmt17.sh", {"SCHEME": "rezero"}, "wmt17_base_nonorm"),
        ("train_wmt17.sh", {"SIZE": "large-512"}, "wmt17_large"),
        ("train_wmt17.sh", {"SIZE": "large-1024"}, "wmt17_large_1024"),
        ("train_opus100.sh", {}, "opus100"),
        ("train_opus100.sh", {"DEPTH": "500"}, "opus100_1000"),
    ],
)
def test_the_config_follows_from_size_scheme_and_depth(
    recipe: Recipe, name: str, env: dict[str, str], config: str
) -> None:
    (recipe.folder / "corpus.json").touch()
    recipe(name, "--lr", "1", **env)
    (call,) = recipe.calls
    assert call[:2] == ["train.sh", config]
    assert (ROOT / "configs" / f"{config}.yaml").is_file()
    depth = env.get("DEPTH", "100" if "opus" in name else "18")
    assert (option(call, "--encoder-layers"), option(call, "--decoder-layers")) == (depth, depth)
    assert call[-2:] == ["--lr", "1"]
