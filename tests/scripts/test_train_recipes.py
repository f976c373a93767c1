"""The training recipes, scripts/train_*.sh: what they plan, make and pass on."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.cli import variable_of
from fairseq_deepnet.tools.training import train
from tests.support.runs import make_data
from tests.support.shell import ROOT, FakeBin, run_script

RECIPES = sorted(path.name for path in (ROOT / "scripts").glob("train_*.sh"))
PAPERS = {"train_iwslt14.sh": 4000, "train_opus100.sh": 524_288, "train_wmt17.sh": 524_288}
"""Tokens an update, arXiv 2203.00555, appendix D."""


def preprocess(recipe: str) -> str:
    """The script that makes a recipe's data."""
    return recipe.replace("train_", "preprocess_")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "corpus")


def option(call: list[str], name: str) -> str:
    """The last value of an option: it wins."""
    return call[len(call) - call[::-1].index(name)]


class DryRun:
    """Runs a recipe with DRY_RUN=1 up to `deepnet train`, and that in this process, for its speed.

    Afterwards `plan` holds what was said, `commands` the command lines as lists of words.
    """

    def __init__(
        self, fakes: FakeBin, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.fakes, self.capsys, self.patch = fakes, capsys, patch
        # a dry run calls none of these
        self.forbidden = ("fairseq-train", "fairseq-preprocess", "torchrun", "srun", "sbatch")
        for command in self.forbidden:
            fakes.add(command)
        self.environment = fakes.folder / "environment"
        fakes.add("deepnet", f'env -0 >"{self.environment}"')
        train.add_arguments(parser := cli.Parser())
        self.variables = set(map(variable_of, parser._option_string_actions))

    def __call__(self, recipe: str, *options: str, **env: str) -> None:
        result = run_script(recipe, *options, env={"DRY_RUN": "1", **env}, path=self.fakes.path())
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        assert not any(self.fakes.calls(command) for command in self.forbidden)
        (words,) = self.fakes.calls("deepnet")
        for line in self.environment.read_text(encoding="utf-8").split("\0")[:-1]:
            name, _, value = line.partition("=")
            if name in self.variables:
                self.patch.setenv(name, value)
        assert cli.main(words) == 0
        caught = self.capsys.readouterr()
        self.plan = caught.err
        lines = caught.out.splitlines()
        self.commands = [shlex.split(line) for line in lines if line[0] != "#"]


@pytest.fixture
def dry_run(
    fake_bin: FakeBin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> DryRun:
    return DryRun(fake_bin, capsys, monkeypatch)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_dry_run_shows_plan_and_commands_and_writes_nothing(
    recipe: str, dry_run: DryRun, tmp_path: Path
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    variables = {"DATA": str(data), "RUN": str(run), "GPUS": "8", "NODES": "4"}
    variables |= {"DEPTH": "12", "SEED": "7", "SCHEME": "pre-ln"}
    dry_run(recipe, "--dropout", "0.25", **variables)
    assert [path.name for path in tmp_path.iterdir()] == ["fakes"]
    missing = f"no training data in {data}: build it with `bash scripts/{preprocess(recipe)}`"
    assert missing in dry_run.plan
    assert ("12L-12L, pre-ln") in dry_run.plan
    assert "32 GPUs (4 nodes of 8), bf16, torchrun" in dry_run.plan
    assert f"{PAPERS.get(recipe, 0):,} tokens per update" in dry_run.plan or recipe not in PAPERS
    (command,) = dry_run.commands
    assert command[:4] == ["torchrun", "--nproc-per-node=8", "--nnodes=4", "--node-rank=0"]
    assert command[command.index("fairseq-train") + 1] == str(data)
    assert option(command, "--distributed-world-size") == "32"
    assert (option(command, "--seed"), option(command, "--dropout")) == ("7", "0.25")
    assert option(command, "--residual-scheme") == "pre-ln"
    assert option(command, "--save-dir") == str(run / "checkpoints")


class Recipe:
    """Runs a recipe with a `bash` that records scripts/train.sh and the preprocessing instead."""

    def __init__(self, fakes: FakeBin, folder: Path) -> None:
        self.fakes = fakes
        self.folder = folder
        fakes.add("bash", f'env >"{folder}/environment"')

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

    def environment(self, name: str) -> str | None:
        """A variable of the last script that the recipe started."""
        for line in (self.folder / "environment").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}="):
                return line.partition("=")[2]
        return None


@pytest.fixture
def recipe(fake_bin: FakeBin, tmp_path: Path) -> Recipe:
    return Recipe(fake_bin, tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_missing_data_are_made_before_training_and_present_data_are_used(
    recipe: Recipe, name: str
) -> None:
    result = recipe(name, SEED="5")
    assert result.returncode == 0, result.stderr
    assert [call[0] for call in recipe.calls] == [preprocess(name), "train.sh"]
    assert "building it" in result.stderr
    (recipe.folder / "corpus.json").touch()
    recipe(name)
    assert [call[0] for call in recipe.calls[2:]] == ["train.sh"]
    assert recipe.environment("DATA") == str(recipe.folder)


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
