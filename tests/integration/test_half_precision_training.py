"""--fp16 and --bf16 with our criterion and optimiser against fairseq's, including overflows."""

import itertools
from pathlib import Path

import pytest
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler

from fairseq_deepnet.errors import ConfigurationError
from tests.integration.conftest import HALF_PRECISION, SMALL, TRAIN
from tests.support.models import slow_but
from tests.support.training import train_here

UPDATES = 20
MODEL = ("--arch=deepnet_transformer", *SMALL, "--dropout=0.1", "--clip-norm=1", "--log-interval=1")
STOCK = ("--criterion=label_smoothed_cross_entropy", "--optimizer=adam")
OURS = ("--criterion=chunked_label_smoothed_cross_entropy", "--optimizer=fused_adam")


@pytest.fixture
def scales(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the loss scale at each check for overflow."""
    seen: list[float] = []
    look = DynamicLossScaler.check_overflow

    def noted(self: DynamicLossScaler, norm: float) -> None:
        seen.append(self.loss_scale)
        look(self, norm)

    monkeypatch.setattr(DynamicLossScaler, "check_overflow", noted)
    return seen


def assert_alike(
    losses: list[tuple[float, float]], expected: list[tuple[float, float]], bound: float
) -> None:
    assert len(losses) == len(expected) == UPDATES
    for (loss, norm), (expected_loss, wanted_norm) in zip(losses, expected, strict=True):
        assert loss == pytest.approx(expected_loss, rel=bound)
        assert norm == pytest.approx(wanted_norm, rel=10 * bound)
    assert losses[-1][0] < losses[0][0]


@pytest.mark.usefixtures("cpu_as_gpu")
@pytest.mark.parametrize("way", slow_but(("fp16", "bf16"), HALF_PRECISION))
def test_losses_and_overflows_follow_fairseqs_within_rounding(
    tiny_data: Path,
    tmp_path: Path,
    losses: list[tuple[float, float]],
    scales: list[float],
    way: str,
) -> None:
    """Rounding differs by 2e-5 in fp16 and 2e-4 in bf16 (Multi30k, width 64).

    The initial loss scale is far too high, so it is halved until gradients fit, and later doubled.
    """
    is_fp16 = "fp16" in way
    high = ("--fp16-init-scale=16777216", "--fp16-scale-window=8") if is_fp16 else ()
    runs, looks = [], []
    for name, parts in (("stock", STOCK), ("ours", OURS)):
        losses.clear()
        scales.clear()
        arguments = (
            *MODEL,
            *TRAIN,
            *parts,
            *HALF_PRECISION[way],
            *high,
            f"--max-update={UPDATES}",
            "--no-save",
        )
        with pytest.raises(FileNotFoundError):  # --no-save leaves no checkpoint to return
            train_here(tiny_data, tmp_path / name, *arguments)
        runs.append(list(losses))
        looks.append(list(scales))
    assert_alike(*runs, 1e-4 if is_fp16 else 1e-3)
    assert looks[0] == looks[1]
    if is_fp16:
        assert len(looks[0]) > UPDATES + 5
        assert any(after > before for before, after in itertools.pairwise(looks[0]))


def test_fp16_without_a_gpu_is_an_error(tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--fp16 needs a GPU"):
        train_here(tiny_data, tmp_path, *MODEL, *TRAIN, "--fp16", "--max-update=1")
