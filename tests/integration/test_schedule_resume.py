"""A schedule resumed at the start of an epoch has the last validation's result."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import SMALL, TRAIN
from tests.support.training import train_here

# 200 sentences make 5 updates per epoch; the last checkpoint is from the fourth epoch
UPDATES = 16
COMMON = (
    *("--arch=deepnet_transformer", *SMALL, *TRAIN, "--max-tokens=400"),
    *(f"--max-update={UPDATES}", f"--save-interval-updates={UPDATES}"),
)
# no validation improves on the first
PLATEAU = ("--lr-scheduler=reduce_lr_on_plateau", "--lr-shrink=0.5", "--lr=1e-7")


@pytest.mark.parametrize(
    "schedule",
    [
        ("--lr-scheduler=inverse_sqrt", "--warmup-updates=4"),
        ("--lr-scheduler=polynomial_decay", "--total-num-update=20"),
        (*PLATEAU, "--lr-patience=0"),
        (*PLATEAU, "--lr-patience=1"),
    ],
    ids=["inverse_sqrt", "polynomial_decay", "plateau", "plateau, patient"],
)
def test_the_best_validation_and_its_effects_are_restored(
    tiny_data: Path, tmp_path: Path, schedule: tuple[str, ...]
) -> None:
    def schedule_at_the_end(folder: Path, *more: str) -> tuple[Any, float]:
        state = train_here(tiny_data, folder, *COMMON, *schedule, *more)
        (group,) = state["last_optimizer_state"]["param_groups"]
        return state["optimizer_history"][-1]["lr_scheduler_state"], group["lr"]

    whole, part = tmp_path / "whole", tmp_path / "part"
    expected = schedule_at_the_end(whole)
    part.mkdir()
    shutil.copy(whole / "checkpoint3.pt", part / "checkpoint_last.pt")
    assert schedule_at_the_end(part) == expected
    if schedule[-1] == "--lr-patience=1":
        assert expected[1] == 0.5e-7
        more = "--lr=4e-7", f"--max-update={UPDATES + 1}"
        assert schedule_at_the_end(part, *more)[1] == pytest.approx(2e-7)
