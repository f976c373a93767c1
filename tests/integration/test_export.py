"""A model that fairseq trained, exported, in fairseq without this plugin and in CTranslate2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import load_checkpoint, model_arguments
from tests.integration.conftest import SMALL, TRAIN, RunCommand
from tests.support.training import train_here

BEAM = ["--beam", 3, "--max-len-b", 10, "--cpu"]
EVERY = ["--required-batch-size-multiple", 1]  # else fairseq by itself loses the last sentences


@pytest.fixture(scope="module")
def checkpoint(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deep enough for alpha to matter; BLEU leaves arrays in it that torch would not load."""
    folder = tmp_path_factory.mktemp("trained")
    options = ["--arch", "deepnet_transformer", *SMALL, *TRAIN, "--decoder-layers=4"]
    options += ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 3}']
    train_here(tiny_data, folder, *options, "--max-update=6", "--lr=0.01")
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def exported(checkpoint: Path) -> Path:
    output = checkpoint.with_name("stock.pt")
    assert cli.main(["export", str(checkpoint), "--to", "fairseq", "--out", str(output)]) == 0
    return output


def hypotheses(printed: str) -> dict[int, tuple[float, str]]:
    """What fairseq-generate found for each sentence: score and words."""
    lines = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", printed, re.MULTILINE)
    return {int(number): (float(score), words) for number, score, words in lines}


def test_stock_fairseq_translates_with_it_as_the_plugin_does_with_ours(
    checkpoint: Path, exported: Path, tiny_data: Path, run_command: RunCommand, project_root: Path
) -> None:
    plugin = project_root / "fairseq_deepnet"
    found = []
    for options in (["--path", checkpoint, "--user-dir", plugin], ["--path", exported]):
        command = ["fairseq-generate", tiny_data, *BEAM, *EVERY, *options]
        done = run_command(*command, cwd=checkpoint.parent)
        assert done.returncode == 0, done.stderr
        found.append(hypotheses(done.stdout))
    ours, stock = found
    assert sorted(ours) == sorted(stock) == list(range(12))
    for number, (score, words) in ours.items():
        assert stock[number][1] == words
        assert stock[number][0] == pytest.approx(score, abs=1e-3)


def test_stock_fairseq_trains_on_from_it(
    exported: Path, tiny_data: Path, run_command: RunCommand, tmp_path: Path
) -> None:
    options = ["--arch", "transformer", *SMALL, *TRAIN, "--decoder-layers=4", "--max-update=1"]
    options += ["--finetune-from-model", exported, "--save-dir", tmp_path, "--lr=1e-9"]
    done = run_command("fairseq-train", tiny_data, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    held = load_checkpoint(tmp_path / "checkpoint_last.pt")
    name = "encoder.layers.0.fc2.weight"
    assert torch.allclose(held["model"][name], load_checkpoint(exported)["model"][name], atol=1e-6)
    assert getattr(model_arguments(held), "arch", None) == "transformer"
