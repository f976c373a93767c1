"""Detectors of the divergence watch, on hand-written series."""

import math
import random

import pytest

from fairseq_deepnet.divergence.detectors import (
    CONFIRMED,
    EARLY,
    LOW_RANK,
    STALL_WINDOW,
    VANISHED,
    LossScale,
    LossSpike,
    RankCollapse,
    Stalled,
    VanishedGradients,
    vanished_region,
)
from fairseq_deepnet.divergence.events import Kind

# Decoder layers 1 to 18 in the paper's Fig. 4(d), read at 1, 5, 10 and 15 to 18, and interpolated
# geometrically between these layers.
WARMUP = [0.003 * (0.30 / 0.003) ** (i / 14) for i in range(15)] + [0.40, 0.54, 0.81]
NO_WARMUP = [1e-9] * 14 + [0.003, 0.013, 0.054, 0.20]


def feed(spike: LossSpike, losses: list[float]) -> list[int]:
    """Return the updates at which the detector reports a spike."""
    updates = []
    for update, loss in enumerate(losses, 1):
        spike.add(update, loss)
        if spike.finding is not None:
            updates.append(update)
    return updates


def falling(updates: int, noise: float) -> list[float]:
    """Return losses from 13 bits to 6, as in training with small batches."""
    draw = random.Random(1)
    return [6 + 7 * math.exp(-update / 60) + draw.gauss(0, noise) for update in range(updates)]


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.6, 1.0])
def test_neither_the_initial_fall_nor_the_noise_of_batches_is_a_spike(noise: float) -> None:
    losses = falling(2000, noise)
    losses[200] += 50  # one or two bad batches are no spike
    losses[202] += 50
    assert feed(LossSpike(), losses) == []


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.6])
def test_a_spike_is_reported_within_five_updates_and_dated_to_its_start(noise: float) -> None:
    spike = LossSpike()
    losses = [*falling(500, noise), *(loss + 4 for loss in falling(20, noise)[-20:])]
    assert 501 <= feed(spike, losses)[0] <= 505
    assert spike.finding is not None
    assert spike.finding.kind is Kind.LOSS_SPIKE
    assert spike.finding.started == 501


@pytest.mark.parametrize(
    "risen",
    [
        [*[6.0] * 60, *[12.0] * 5],
        [*[6.0] * 5, *[12.0] * 5],
        [*[6.0] * 60, *(6 + update / 100 for update in range(300))],
    ],
    ids=["at once", "in the first updates", "slowly"],
)
def test_a_spike_ends_once_the_loss_is_within_half_a_bit_of_its_earlier_value(
    risen: list[float],
) -> None:
    for after, is_over in ((6.45, True), (6.55, False)):
        spike = LossSpike()
        assert feed(spike, [*risen, *[after] * 5])
        assert (spike.finding is None) is is_over


def test_a_slow_rise_by_one_bit_is_reported_although_no_update_is_conspicuous() -> None:
    spike = LossSpike()
    updates = feed(spike, [6.0] * 100 + [6 + 0.005 * update for update in range(600)])
    assert 300 < updates[0] < 360
    assert spike.finding is not None
    assert 50 < spike.finding.started <= 101


def test_a_loss_that_explodes_in_the_first_updates_needs_no_window() -> None:
    assert feed(LossSpike(), [13.0, 13.1, 13.2, 13.0, 13.1, 13.2, 13.1, 13.0]) == []
    assert feed(LossSpike(), [13.0, 14.0, *[13 + 2 * EARLY] * 6])[0] == 6


def stall(stalled: Stalled, losses: list[float], level: float | None, start: int = 1) -> None:
    for update, loss in enumerate(losses, start):
        stalled.add(update, loss)
        stalled.judge(level)


def test_a_model_that_stays_at_the_unigram_level_after_warm_up_has_stalled() -> None:
    stalled = Stalled(warmup=100)
    losses = [8.35 - update / 1e5 for update in range(99 + STALL_WINDOW)]  # falls too slowly
    stall(stalled, losses, 8.4)
    assert stalled.finding is None  # the window after warm-up is not full
    stall(stalled, [8.35], 8.4, 100 + STALL_WINDOW)
    assert stalled.finding is not None
    assert stalled.finding.kind is Kind.STALLED
    assert stalled.finding.started == 101
    assert "8.35" in stalled.finding.what


def test_a_model_below_the_unigram_level_has_learnt_and_never_stalls() -> None:
    stalled = Stalled(warmup=0)
    stall(stalled, [8.2] * STALL_WINDOW, 8.4)
    assert stalled.learnt
    stall(stalled, [8.4] * 2 * STALL_WINDOW, 8.4, STALL_WINDOW + 1)
    assert stalled.finding is None


def test_a_slow_model_or_an_unknown_level_is_no_stall() -> None:
    slow = [12 - 0.01 * update for update in range(300)]
    for losses, level in ((slow, 8.4), ([8.4] * 3 * STALL_WINDOW, None)):
        stalled = Stalled(warmup=0)
        stall(stalled, losses, level)
        assert stalled.finding is None
        assert not stalled.learnt


def test_in_the_papers_post_ln_gradients_vanish_only_without_warm_up() -> None:
    assert vanished_region(WARMUP) is None
    assert vanished_region(NO_WARMUP) == (1, 14, 18)


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param([0.02] * 100, id="deepnorm: even"),
        pytest.param([0.0] * 18, id="no gradient at all"),
        pytest.param([1e-6, 1e-6, 1.0], id="too few layers"),
        pytest.param([1.0, 1.0, 1e-9, 1.0, 1.0], id="one disabled branch"),
        pytest.param([1.0, 0.1, 1e-3, 1e-5, 1e-7], id="small gradients at the top"),
        pytest.param([math.nan] * 4 + [1.0], id="not finite"),
        pytest.param([None, 0.5, None, 0.6, 0.5, 0.7], id="layers skipped by LayerDrop"),
    ],
)
def test_gradients_that_have_not_vanished(layers: list[float | None]) -> None:
    assert vanished_region(layers) is None


def test_vanished_gradients_are_reported_at_the_third_check_and_dated_after_the_last_good() -> None:
    vanished = VanishedGradients()
    bad = [VANISHED / 10, 1e-3, 0.1, 1.0]
    vanished.add(10, {"decoder": [0.1] * 4, "encoder": [0.1] * 4})
    for look in range(CONFIRMED - 1):
        vanished.add(20 + look, {"decoder": bad, "encoder": [0.1] * 4})
        assert vanished.suspected == look + 1
        assert vanished.finding is None
    vanished.add(22, {"decoder": bad, "encoder": [0.1] * 4})
    assert vanished.finding is not None
    assert vanished.finding.started == 11
    assert vanished.finding.layers == {"decoder": (1, 2, 4)}
    assert "decoder layers 1-2 of 4" in vanished.finding.what
    vanished.add(26, {"decoder": [5 * VANISHED, 1e-3, 0.1, 1.0], "encoder": [0.1] * 4})
    assert vanished.finding is not None
    vanished.add(30, {"decoder": [0.1] * 4, "encoder": [0.1] * 4})
    assert vanished.finding is None


def test_an_encoder_has_collapsed_until_its_rank_is_twice_the_limit() -> None:
    collapse = RankCollapse()
    collapse.add(10, [20.0, 9.0, LOW_RANK])
    collapse.add(11, [20.0, math.nan, math.nan])  # the next update will fail
    assert collapse.finding is None
    collapse.add(20, [20.0, 1.9, LOW_RANK - 0.1])
    assert collapse.finding is not None
    assert (collapse.finding.started, collapse.finding.layers) == (11, {"encoder": (2, 3, 3)})
    collapse.add(30, [20.0, 9.0, 2 * LOW_RANK - 0.1])
    assert collapse.finding is not None
    collapse.add(40, [20.0, 9.0, 2 * LOW_RANK])
    assert collapse.finding is None


def scales(values: list[float], minimum: float = 1e-4, settled: int = 30) -> LossScale:
    scale = LossScale(minimum)
    for update in range(1, settled + 1):
        scale.add(update, values[0], updated=True)
    for value in values:
        scale.add(31, value, updated=False)
    return scale


def test_a_loss_scale_that_is_halved_seven_times_or_is_near_its_minimum_has_collapsed() -> None:
    halved = [128.0 / 2**step for step in range(8)]
    assert scales(halved[:7]).finding is None
    assert scales(halved, settled=18).finding is None  # the initial scale was too high
    assert scales([8.0, 4.0], minimum=0.25).finding is None
    assert scales([8.0, 2.0], minimum=0.25).finding is not None
    finding = scales(halved).finding
    assert finding is not None
    assert finding.kind is Kind.LOSS_SCALE
    assert finding.started == 31


def test_a_loss_scale_that_falls_and_recovers_is_healthy() -> None:
    assert scales([128.0, 64.0, 128.0, 64.0, 32.0, 64.0] * 100).finding is None
