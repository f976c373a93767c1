"""A model trained with this plugin is exported to fairseq without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from tests.integration.conftest import SMALL, TRAIN, RunCommand
from tests.support.shell import ROOT
from tests.support.training import train_here

BEAM = ["--beam", 3, "--max-len-b", 10, "--cpu"]
EVERY = ["--required-batch-size-multiple", 1]  # stock fairseq would skip the last sentences


def test_stock_fairseq_translates_like_the_plugin(
    tiny_data: Path, tmp_path: Path, run_command: RunCommand
) -> None:
    """The checkpoint contains arrays with BLEU counts, which torch does not load by default."""
    options = ["--arch", "deepnet_transformer", *SMALL, *TRAIN, "--decoder-layers=4"]
    options += ["--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 3}']
    train_here(tiny_data, tmp_path, *options, "--max-update=6", "--lr=0.01")
    checkpoint, exported = tmp_path / "checkpoint_last.pt", tmp_path / "stock.pt"
    assert cli.main(["export", str(checkpoint), "--to", "fairseq", "--out", str(exported)]) == 0
    results = []
    plugin = ["--user-dir", ROOT / "fairseq_deepnet"]
    for words in (["--path", checkpoint, *plugin], ["--path", exported]):
        command = ["fairseq-generate", tiny_data, *BEAM, *EVERY, *words]
        process = run_command(*command, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        lines = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", process.stdout, re.MULTILINE)
        results.append({int(number): (float(score), text) for number, score, text in lines})
    ours, stock = results
    assert sorted(ours) == sorted(stock) == list(range(12))
    for number, (score, words) in ours.items():
        assert stock[number][1] == words
        assert stock[number][0] == pytest.approx(score, abs=1e-3)
