"""A resumed run in half precision equals the uninterrupted run bit for bit."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.errors import ConfigurationError
from tests.integration.conftest import HALF_PRECISION, SMALL, TRAIN
from tests.support.models import slow_but
from tests.support.training import assert_same_checkpoints, train_here, train_together

STOP, UPDATES = 5, 9
# the loss scale overflows at first and doubles after every third update
SCALE = ("--fp16-init-scale=4194304", "--fp16-scale-window=3")
COMMON = (
    *("--arch=deepnet_transformer", *SMALL, *TRAIN, "--dropout=0.1", "--clip-norm=1"),
    *("--max-tokens=80", "--disable-validation", f"--save-interval-updates={STOP}"),
)
Losses = list[tuple[float, float]]

pytestmark = pytest.mark.usefixtures("cpu_as_gpu")


def train(data: Path, folder: Path, updates: int, *options: str) -> dict[str, Any]:
    """Train for `updates` updates within one epoch and return the checkpoint."""
    return train_here(data, folder, *COMMON, *options, f"--max-update={updates}")


def interrupt(whole: Path, folder: Path) -> Path:
    """Create a folder as after the first STOP updates of the run in `whole`."""
    folder.mkdir()
    shutil.copy(whole / f"checkpoint_1_{STOP}.pt", folder / "checkpoint_last.pt")
    return folder


@pytest.mark.parametrize("optimizer", slow_but(("fused_adam",), ("adam", "fused_adam")))
@pytest.mark.parametrize("way", HALF_PRECISION)
def test_a_resumed_run_equals_the_uninterrupted_run(
    tiny_data: Path, tmp_path: Path, losses: Losses, way: str, optimizer: str
) -> None:
    options = (*HALF_PRECISION[way], f"--optimizer={optimizer}", *(SCALE if "fp16" in way else ()))
    expected = train(tiny_data, tmp_path / "whole", UPDATES, *options)
    rest = losses[STOP - UPDATES :]
    losses.clear()
    part = interrupt(tmp_path / "whole", tmp_path / "part")
    resumed = train(tiny_data, part, UPDATES, *options)
    assert losses == rest
    assert_same_checkpoints(resumed, expected)
    assert ("fp32_params" in resumed["last_optimizer_state"]) == ("without" not in way)


def test_two_processes_resume_exactly_and_both_reject_another_scheme(
    tiny_data: Path, tmp_path: Path
) -> None:
    """Rank 0 sends the checkpoint's state and its errors to the other rank."""
    words = [*COMMON, "--bf16", "--optimizer=fused_adam", f"--max-update={UPDATES}"]
    assert train_together(tiny_data, tmp_path / "whole", *words) == [0, 0]
    part = interrupt(tmp_path / "whole", tmp_path / "part")
    assert train_together(tiny_data, part, *words) == [0, 0]
    assert train_together(tiny_data, part, *words, "--residual-scheme=post-ln") == [2, 2]
    expected, resumed = (
        torch.load(folder / "checkpoint_last.pt", weights_only=True)
        for folder in (tmp_path / "whole", part)
    )
    assert_same_checkpoints(resumed, expected)
    for rank in (0, 1):
        refusal = (part / f"refused_{rank}").read_text(encoding="utf-8")
        assert "was trained with deepnorm(2L-2L" in refusal


@pytest.mark.parametrize("how", ["--reset-optimizer", "--finetune-from-model"])
def test_without_optimiser_state_the_fp32_weights_are_the_models(
    tiny_data: Path, tmp_path: Path, how: str
) -> None:
    before = train(tiny_data, tmp_path / "begun", STOP, "--bf16")
    path = tmp_path / "begun" / "checkpoint_last.pt"
    arguments = (f"{how}={path}",) if "finetune" in how else (how, f"--restore-file={path}")
    after = train(tiny_data, tmp_path / "after", STOP + 1, "--bf16", "--lr=1e-30", *arguments)
    name = "encoder.layers.0.fc1.weight"
    rounded = before["model"][name]
    assert any(
        torch.equal(master, rounded) for master in after["last_optimizer_state"]["fp32_params"]
    )


def test_fp32_training_resumes_from_rounded_weights_and_vice_versa(
    tiny_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    still = ("--reset-optimizer", "--lr=1e-30")
    for first, then in ((), ("--bf16",)), (("--bf16",), ()):
        folder = tmp_path / f"begun{len(first)}"
        before = train(tiny_data, folder, STOP, *first)
        with pytest.raises(ConfigurationError, match=r"does not match; keep .* precision"):
            train(tiny_data, folder, STOP + 1, *then)
        after = train(tiny_data, folder, STOP + 1, *then, *still)
        for name, weights in before["model"].items():
            assert torch.equal(after["model"][name], weights.bfloat16().float()), name
    assert not [line for line in caplog.messages if "fp32 weights" in line]
