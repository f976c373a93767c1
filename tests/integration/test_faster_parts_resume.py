"""Trainings begun with fairseq's criterion and optimiser go on with ours, and the other way."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from fairseq.trainer import Trainer

from tests.integration.conftest import SMALL, TRAIN
from tests.support.training import train_here

BEGUN, UPDATES = 5, 20
MODEL = ("--arch=deepnet_transformer", *SMALL, "--dropout=0.1", "--clip-norm=1", "--log-interval=1")
CRITERIONS = ("label_smoothed_cross_entropy", "chunked_label_smoothed_cross_entropy")
OPTIMISERS = ("adam", "fused_adam")


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Loss a token and gradient norm of every update, before fairseq rounds them for its log."""
    seen: list[tuple[float, float]] = []
    log = Trainer._reduce_and_log_stats

    def noted(self: Any, outputs: Any, sample_size: float, grad_norm: Any = None) -> Any:
        if grad_norm is not None:
            loss = sum(float(output["loss"]) for output in outputs)
            seen.append((loss / sample_size, float(grad_norm)))
        return log(self, outputs, sample_size, grad_norm)

    monkeypatch.setattr(Trainer, "_reduce_and_log_stats", noted)
    return seen


@pytest.mark.parametrize("begins", [0, 1], ids=["fairseq begins", "ours begins"])
@pytest.mark.parametrize(
    ("precision", "criterions", "bound"),
    [((), CRITERIONS, 1e-5), (("--bf16",), CRITERIONS[:1] * 2, 1e-3)],
    ids=["fp32", "bf16"],
)
def test_losses_of_20_updates_are_equal_after_a_change(
    tiny_data: Path,
    tmp_path: Path,
    losses: list[tuple[float, float]],
    precision: tuple[str, ...],
    criterions: tuple[str, str],
    bound: float,
    begins: int,
) -> None:
    """In bf16 the optimiser alone changes: the criterion's logits are rounded in another order.

    Its losses are equal to the last bit until one of the fp32 weights, which agree to 1e-7, falls
    on the other side of a half and is rounded to the next bf16 number: one weight then differs by
    0.4 %, and losses of this small model by 1e-4.
    """

    def train(folder: Path, kind: int, updates: int) -> dict[str, Any]:
        parts = (f"--optimizer={OPTIMISERS[kind]}", f"--criterion={criterions[kind]}")
        losses.clear()
        given = (*MODEL, *TRAIN, *precision, *parts, f"--max-update={updates}")
        return train_here(tiny_data, folder, *given)

    train(tmp_path / "0", begins, BEGUN)
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    found = []
    for kind in (0, 1):
        held = train(tmp_path / str(kind), kind, BEGUN + UPDATES)
        assert len(losses) == UPDATES  # it went on, and did not begin anew
        found.append((list(losses), held["last_optimizer_state"]))
    (stock, stock_state), (ours, our_state) = found
    assert ours[0] == pytest.approx(stock[0], rel=1e-6)  # from one checkpoint
    for (loss, norm), (expected, expected_norm) in zip(ours, stock, strict=True):
        assert loss == pytest.approx(expected, rel=bound)
        assert norm == pytest.approx(expected_norm, rel=10 * bound)
    assert stock[0][0] > stock[-1][0]
    assert stock_state["state"].keys() == our_state["state"].keys()
    assert all(
        (one["step"], one.keys()) == (BEGUN + UPDATES, our_state["state"][key].keys())
        for key, one in stock_state["state"].items()
    )
