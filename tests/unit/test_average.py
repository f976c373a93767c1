"""Averages of checkpoints: hand-computed means, and checkpoints of different models."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet import cli
from fairseq_deepnet.checkpoints import load_checkpoint, num_updates, save_checkpoint
from fairseq_deepnet.save_dir import repair_last
from fairseq_deepnet.tools.trained_model import average_checkpoints, last_checkpoints


def state(updates: int, model: dict[str, torch.Tensor], **arguments: Any) -> dict[str, Any]:
    """Return the relevant parts of a fairseq checkpoint."""
    named = {"arch": "deepnet_transformer", "encoder_layers": 2, "dropout": 0.1, **arguments}
    return {
        "args": None,
        "cfg": {"model": Namespace(**named), "task": {"data": "somewhere"}},
        "model": model,
        "optimizer_history": [{"num_updates": updates}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": {"state": torch.ones(2)},
    }


def write(folder: Path, updates: int, **tensors: torch.Tensor) -> Path:
    path = folder / f"checkpoint_1_{updates}.pt"
    save_checkpoint(state(updates, tensors), path)
    return path


def test_the_mean_of_three_checkpoints_without_overflow(tmp_path: Path) -> None:
    values = torch.tensor([[1.0, 2.0], [2.0, 4.0], [6.0, 0.0]])
    big = torch.tensor([60_000.0, 1.0], dtype=torch.float16)  # largest finite value: 65,504
    paths = [write(tmp_path, i, w=w, big=big, n=torch.tensor(i)) for i, w in enumerate(values)]
    average_checkpoints(paths, tmp_path / "a.pt")
    state = load_checkpoint(tmp_path / "a.pt")
    means = state["model"]
    assert (int(means["n"]), num_updates(state)) == (2, 2)  # of the last checkpoint
    assert means["w"].tolist() == [3.0, 2.0]
    assert means["big"].dtype == torch.float16
    assert torch.equal(means["big"], big)


def test_the_last_checkpoints_are_sorted_by_updates_without_duplicates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for updates in (20, 100, 3):
        write(tmp_path, updates, w=torch.ones(1))
    others = {"checkpoint2": 110, "checkpoint_last": 110, "checkpoint_2_100": 100}
    for name, updates in {**others, "checkpoint_best": 999, "average_5": 999}.items():
        save_checkpoint(state(updates, {"w": torch.ones(1)}), tmp_path / f"{name}.pt")
    names = [path.name for path in last_checkpoints(tmp_path, 3)]
    assert names == ["checkpoint_1_20.pt", "checkpoint_2_100.pt", "checkpoint2.pt"]
    output = tmp_path / "mean.pt"
    assert cli.main(["average", str(tmp_path), "--last=3", f"--out={output}"]) == 0
    assert load_checkpoint(output)["averaged"] == names
    assert cli.main(["average", str(tmp_path), f"--out={output}"]) == 2
    assert "--last N" in capsys.readouterr().err
    with pytest.raises(ValueError, match="has 4 checkpoints of different updates, not 5"):
        last_checkpoints(tmp_path, 5)
    save_checkpoint(state(120, {"w": torch.ones(1)}), last := tmp_path / "checkpoint_last.pt")
    assert last_checkpoints(tmp_path, 2) == [tmp_path / "checkpoint2.pt", last]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (state(2, {"v": torch.ones(2)}), r"b\.pt is a different model .*: v is \(2,\), not None"),
        (state(2, {"w": torch.ones(3)}), r"w is \(3,\), not \(2,\)"),
        (state(2, {"w": torch.ones(2)}, encoder_layers=3), "encoder_layers is 3, not 2"),
        (state(2, {"w": torch.ones(2)}, arch="transformer"), "arch is 'transformer'"),
        (state(2, {"w": torch.ones(2)}, source_lang="en"), "source_lang is 'en'"),
        (state(2, {"w": torch.ones(2)}, dictionary_record={"source": "0"}), "dictionary_record is"),
        (
            state(2, {"w": torch.ones(2)}, residual_record={"alphas": {"encoder": 1.4}}),
            r"residual_record is .*1\.4.*, not None",
        ),
    ],
)
def test_checkpoints_of_different_models_are_refused(
    tmp_path: Path, second: dict[str, Any], message: str
) -> None:
    save_checkpoint(state(1, {"w": torch.ones(2)}), tmp_path / "a.pt")
    save_checkpoint(second, tmp_path / "b.pt")
    with pytest.raises(ValueError, match=message):
        average_checkpoints([tmp_path / "a.pt", tmp_path / "b.pt"], tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_a_damaged_last_checkpoint_is_replaced_by_the_latest_that_can_be_resumed(
    tmp_path: Path,
) -> None:
    for updates in (10, 20):
        write(tmp_path, updates, w=torch.ones(1))
    last = write(tmp_path, 40, w=torch.ones(1)).rename(tmp_path / "checkpoint_last.pt")
    without = {**state(30, {"w": torch.ones(1)}), "last_optimizer_state": None}
    save_checkpoint(without, tmp_path / "checkpoint_1_30.pt")
    assert repair_last(tmp_path) is None
    last.write_bytes(last.read_bytes()[:500])
    assert repair_last(tmp_path) == tmp_path / "checkpoint_1_20.pt"
    assert num_updates(load_checkpoint(last)) == 20


def test_infinite_weights_are_not_averaged_and_failures_leave_no_file(tmp_path: Path) -> None:
    paths = [write(tmp_path, 10, w=torch.ones(1)), write(tmp_path, 20, w=torch.tensor([math.inf]))]
    with pytest.raises(ValueError, match=r"checkpoint_1_20\.pt: w is not finite"):
        average_checkpoints(paths, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="Not a regular file"):
        average_checkpoints(paths[:1], tmp_path)
    assert not list(tmp_path.parent.glob(f".*{tmp_path.name}*"))
