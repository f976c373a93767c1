"""Data-parallel training: two CPU processes with half the batch each make one process's update."""

from pathlib import Path

import torch

from tests.integration.conftest import SMALL, TRAIN
from tests.support.training import train_here, train_together

# SGD, because Adam's update would not show a gradient of the wrong size.
OPTIONS = ["--arch=deepnet_transformer", *SMALL, *TRAIN, "--optimizer=sgd", "--lr=0.5"]
OPTIONS += ["--dropout=0", "--max-update=3", "--disable-validation"]


def test_two_processes_make_the_update_of_one(tiny_data: Path, tmp_path: Path) -> None:
    alone = train_here(tiny_data, tmp_path / "one", *OPTIONS, "--update-freq=2")
    # fairseq's criterion alone, ours together: the numbers are the same
    ours = "--criterion=chunked_label_smoothed_cross_entropy"
    assert train_together(tiny_data, tmp_path / "two", *OPTIONS, ours) == [0, 0]
    together = torch.load(tmp_path / "two" / "checkpoint_last.pt", weights_only=True)
    for held in (alone, together):
        assert held["optimizer_history"][-1]["num_updates"] == 3
    assert alone["model"].keys() == together["model"].keys()
    for name, value in alone["model"].items():
        torch.testing.assert_close(together["model"][name], value, atol=1e-5, rtol=0, msg=name)
