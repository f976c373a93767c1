"""A training in half precision that is resumed is the uninterrupted one, bit for bit."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.conftest import SMALL, TRAIN
from tests.support.slow import slow_but
from tests.support.training import train_here, train_together

BEGUN, UPDATES = 5, 9
WAYS = {
    "bf16": ("--bf16",),
    "fp16, one flat row": ("--fp16",),
    "fp16": ("--fp16", "--fp16-no-flatten-grads"),
    "fp16 without fp32 weights": ("--fp16", "--memory-efficient-fp16"),
    "bf16 without fp32 weights": ("--memory-efficient-bf16",),
}
# a loss scale that overflows at first and is doubled after every third update
SCALE = ("--fp16-init-scale=4194304", "--fp16-scale-window=3")
COMMON = (
    *("--arch=deepnet_transformer", *SMALL, *TRAIN, "--dropout=0.1", "--clip-norm=1"),
    *("--max-tokens=80", "--disable-validation", f"--save-interval-updates={BEGUN}"),
)
Losses = list[tuple[float, float]]


@pytest.fixture(autouse=True)
def _a_cpu_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fairseq's fp16 do without a GPU, as in test_half_precision_training."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)


def train(data: Path, folder: Path, updates: int, *options: str) -> dict[str, Any]:
    """The checkpoint after `updates` updates, within one epoch."""
    return train_here(data, folder, *COMMON, *options, f"--max-update={updates}")


def interrupted(whole: Path, folder: Path) -> Path:
    """A folder as it was when the training in `whole` had made BEGUN updates."""
    folder.mkdir()
    shutil.copy(whole / f"checkpoint_1_{BEGUN}.pt", folder / "checkpoint_last.pt")
    return folder


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All that is held in a tree of dicts and lists, by path."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from leaves(part, f"{name}/{index}")
    else:
        yield name, value


def assert_equal(found: Any, expected: Any) -> None:
    ours, theirs = dict(leaves(found)), dict(leaves(expected))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        same = torch.equal(ours[name], value) if torch.is_tensor(value) else ours[name] == value
        assert same, name


@pytest.mark.parametrize("optimizer", slow_but(("fused_adam",), ("adam", "fused_adam")))
@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_training_is_the_uninterrupted_one(
    tiny_data: Path, tmp_path: Path, losses: Losses, way: str, optimizer: str
) -> None:
    options = (*WAYS[way], f"--optimizer={optimizer}", *(SCALE if "fp16" in way else ()))
    expected = train(tiny_data, tmp_path / "whole", UPDATES, *options)
    rest = losses[BEGUN - UPDATES :]
    losses.clear()
    part = interrupted(tmp_path / "whole", tmp_path / "part")
    resumed = train(tiny_data, part, UPDATES, *options)
    assert losses == rest
    for key in ("model", "last_optimizer_state"):
        assert_equal(resumed[key], expected[key])
    assert ("fp32_params" in resumed["last_optimizer_state"]) == ("without" not in way)


def test_two_processes_resume_exactly_and_both_refuse_another_scheme(
    tiny_data: Path, tmp_path: Path
) -> None:
    """What rank 0 reads, and what it finds wrong, goes to the other too."""
    words = [*COMMON, "--bf16", "--optimizer=fused_adam", f"--max-update={UPDATES}"]
    assert train_together(tiny_data, tmp_path / "whole", *words) == [0, 0]
    part = interrupted(tmp_path / "whole", tmp_path / "part")
    assert train_together(tiny_data, part, *words) == [0, 0]
    assert train_together(tiny_data, part, *words, "--residual-scheme=post-ln") == [2, 2]
    expected, resumed = (
        torch.load(folder / "checkpoint_last.pt", weights_only=True)
        for folder in (tmp_path / "whole", part)
    )
    for key in ("model", "last_optimizer_state"):
        assert_equal(resumed[key], expected[key])
    for rank in (0, 1):
        refusal = (part / f"refused_{rank}").read_text(encoding="utf-8")
        assert "was trained with deepnorm(2L-2L" in refusal


@pytest.mark.parametrize("how", ["--reset-optimizer", "--finetune-from-model"])
def test_without_the_optimisers_state_weights_are_those_of_the_model(
    tiny_data: Path, tmp_path: Path, how: str
) -> None:
    begun = train(tiny_data, tmp_path / "begun", BEGUN, "--bf16")
    path = tmp_path / "begun" / "checkpoint_last.pt"
    given = (f"{how}={path}",) if "finetune" in how else (how, f"--restore-file={path}")
    after = train(tiny_data, tmp_path / "after", BEGUN + 1, "--bf16", "--lr=1e-30", *given)
    name = "encoder.layers.0.fc1.weight"
    rounded = begun["model"][name]
    assert any(torch.equal(held, rounded) for held in after["last_optimizer_state"]["fp32_params"])


def test_a_training_in_fp32_goes_on_from_the_rounded_weights_and_the_other_way(
    tiny_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    still = ("--reset-optimizer", "--lr=1e-30")
    for first, then in ((), ("--bf16",)), (("--bf16",), ()):
        folder = tmp_path / f"begun{len(first)}"
        begun = train(tiny_data, folder, BEGUN, *first)
        after = train(tiny_data, folder, BEGUN + 1, *then, *still)
        for name, weights in begun["model"].items():
            assert torch.equal(after["model"][name], weights.bfloat16().float()), name
    assert not [line for line in caplog.messages if "fp32 weights" in line]
