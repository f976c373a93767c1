"""Two CPU processes with half of the batch each perform the updates of one process."""

import functools
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fairseq import checkpoint_utils

from fairseq_deepnet import trainer
from tests.integration.conftest import SMALL, TRAIN
from tests.support.training import train_here, train_together

# SGD, because Adam's update would not show a gradient of the wrong size.
OPTIONS = ["--arch=deepnet_transformer", *SMALL, *TRAIN, "--optimizer=sgd", "--lr=0.5"]
OPTIONS += ["--dropout=0", "--max-tokens=240", "--max-update=3", "--disable-validation"]


def test_two_processes_make_the_updates_of_one(tiny_data: Path, tmp_path: Path) -> None:
    # an epoch has 7 batches: in its second update, one process has a batch and an empty one
    alone = train_here(tiny_data, tmp_path / "one", *OPTIONS, "--update-freq=4")
    # one process uses fairseq's criterion and two use ours, which computes the same numbers
    ours = ["--criterion=chunked_label_smoothed_cross_entropy", "--update-freq=2"]
    assert train_together(tiny_data, tmp_path / "two", *OPTIONS, *ours) == [0, 0]
    together = torch.load(tmp_path / "two" / "checkpoint_last.pt", weights_only=True)
    for state in (alone, together):
        assert state["optimizer_history"][-1]["num_updates"] == 3
    torch.testing.assert_close(together["model"], alone["model"], atol=1e-5, rtol=0)


def slow_disk(rank: int) -> None:
    """Make rank 0 write and read checkpoints for longer than collectives wait for it."""
    for name in ("init_process_group", "new_group"):
        short = functools.partial(getattr(dist, name), timeout=timedelta(seconds=10))
        setattr(dist, name, short)
    if rank == 0:
        save, load = trainer.save_with_retries, checkpoint_utils.load_checkpoint_to_cpu

        def slow_save(*args: Any) -> None:
            time.sleep(12)
            save(*args)

        def slow_load(*args: Any, **kwargs: Any) -> Any:
            time.sleep(12)
            return load(*args, **kwargs)

        trainer.save_with_retries = slow_save
        checkpoint_utils.load_checkpoint_to_cpu = slow_load


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["legacy_ddp", "fully_sharded"])
def test_processes_wait_longer_for_a_checkpoint_than_for_a_collective(
    backend: str, tiny_data: Path, tmp_path: Path
) -> None:
    words = [*OPTIONS, f"--ddp-backend={backend}", "--no-epoch-checkpoints"]
    for last in (1, 2):  # the second run starts with the checkpoint of the first
        ended = train_together(tiny_data, tmp_path, *words, f"--max-update={last}", begin=slow_disk)
        assert ended == [0, 0]
