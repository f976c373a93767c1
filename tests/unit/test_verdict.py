"""The rule for diverged runs, by losses and by events of the divergence watch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.experiments.results import Points, Run
from fairseq_deepnet.tools.configs import Config

FALLING = [(update, 9.0 - update / 50) for update in range(10, 210, 10)]


def why(
    folder: Path, train: Points, valid: Points, crashed: bool = False, **more: Any
) -> str | None:
    """Return why a run diverged; `more` sets its warm-up and unigram loss."""
    config = Config("x", {"warmup-updates": more.pop("warmup", 0)}, {})
    return Run(folder, config, train_nll=train, valid_nll=valid, **more).why_diverged(crashed)


def report(run: Path, *events: dict[str, Any]) -> None:
    lines = [
        {"update": 120, "started": 100, "what": "the loss spiked", "policy": "warn"} | event
        for event in events
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (run / "divergence.jsonl").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_last_loss_that_is_not_finite_is_divergence(tmp_path: Path, loss: float) -> None:
    for losses in (([*FALLING, (210, loss)], []), (FALLING, [(100, 5.0), (200, loss)])):
        assert f"is {loss}" in str(why(tmp_path, *losses))
    assert why(tmp_path, [(10, loss), *FALLING[1:]], []) is None
    assert why(tmp_path, [], []) is None


@pytest.mark.parametrize("kind", ["not_finite", "loss_spike", "stalled", "loss_scale"])
def test_an_event_that_lasts_to_the_end_is_divergence(tmp_path: Path, kind: str) -> None:
    report(tmp_path, {"kind": kind})
    assert why(tmp_path, FALLING, []) == "the loss spiked, at update 120"
    report(tmp_path, {"kind": kind}, {"kind": kind, "update": 150, "ended": True})
    assert why(tmp_path, FALLING, []) is None
    report(tmp_path, {"kind": kind}, {"kind": kind, "ended": True}, {"kind": kind, "update": 180})
    assert why(tmp_path, FALLING, []) == "the loss spiked, at update 180"


def test_vanished_gradients_and_successful_fallbacks_are_not_divergence(tmp_path: Path) -> None:
    report(tmp_path, {"kind": "vanished_gradients"})
    assert why(tmp_path, FALLING, []) is None
    report(tmp_path, {"kind": "vanished_gradients", "policy": "stop"})
    assert why(tmp_path, FALLING, [], crashed=True) is not None
    report(tmp_path, {"kind": "loss_spike", "policy": "stop"})
    assert why(tmp_path, FALLING, [], crashed=True) is not None
    assert why(tmp_path, FALLING, []) is None
    history = [{"change": "lr*0.5", "from_update": 90}]
    (tmp_path / "fallback.json").write_text(json.dumps({"history": history}), encoding="utf-8")
    assert why(tmp_path, FALLING, [], crashed=True) is None  # the next attempt had no event


@pytest.mark.parametrize(
    ("losses", "stalled"),
    [
        ([(100, 8.4), (200, 8.3)], True),  # within 0.1 of the unigram loss
        ([(100, 8.4), (200, 8.22)], False),  # lower by more than 0.1
        ([(100, 8.4), (200, 8.32)], True),
        ([(50, 9.0), (100, 8.36), (200, 8.31)], True),  # it fell only before
        ([(100, 8.5), (200, 8.31)], False),  # slightly lower, and falling
        ([(100, 8.8), (200, 8.5)], True),  # falling, but higher
    ],
)
def test_a_model_no_better_than_unigrams_has_stalled(
    tmp_path: Path, losses: list[tuple[int, float]], stalled: bool
) -> None:
    reason = why(tmp_path, FALLING, losses, warmup=50, unigram=8.33)
    assert (reason is not None) == stalled
    if stalled:
        assert f"stalled at a validation loss of {losses[-1][1]:.2f}" in str(reason)
    # the rule does not apply during warm-up, without a unigram loss, or after a crash
    assert why(tmp_path, FALLING, losses, warmup=400, unigram=8.33) is None
    assert why(tmp_path, FALLING, losses, warmup=50) is None
    assert why(tmp_path, FALLING, losses, True, unigram=8.33) is None
