"""Parts of the divergence watch: unigram level, NaN detector, checkpoints from before."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.divergence.detectors import ENOUGH, Unigram
from fairseq_deepnet.divergence.events import Kind
from fairseq_deepnet.divergence.nan_report import NanReport
from fairseq_deepnet.divergence.watch import Judge, newest_before


def test_the_unigram_level_of_equally_frequent_words_is_their_logarithm() -> None:
    unigram = Unigram(symbols=12, pad=1)
    assert unigram.level() is None
    target = torch.tensor([[4, 5, 6, 7], [4, 5, 1, 1], [6, 7, 1, 1]])
    for _ in range(2000):
        unigram.add([{"target": target}, {}, None, {"target": None}])
    assert unigram.level() == pytest.approx(2.0, abs=1e-3)


def test_the_unigram_level_waits_for_enough_tokens_and_corrects_for_few() -> None:
    unigram = Unigram(symbols=4, pad=0)
    unigram.add([{"target": torch.tensor([[1, 2] * (ENOUGH - 1)])}])
    assert unigram.level() is None
    unigram.add([{"target": torch.tensor([[1, 2]])}])
    # (K - 1) / 2N nats: 1 / 40, and the entropy of two equally frequent symbols is 1 bit
    assert unigram.level() == pytest.approx(1 + 1 / (2 * 2 * ENOUGH * 0.6931472))


def test_the_first_module_that_fairseq_names_and_the_layers_are_told() -> None:
    report = NanReport()
    logger = logging.getLogger("fairseq.nan_detector")
    shape = "shape: torch.Size([3, 4])"
    try:
        logger.warning(
            "Inf detected in output of decoder.layers.2.fc1, %s, forward input max", shape
        )
        logger.warning("NaN detected in output of decoder.layers.3, %s, forward", shape)
        logger.warning("NaN detected in output of decoder.output_projection, %s, backward", shape)
    finally:
        logger.removeHandler(report)
    nan = float("nan")
    finding = report.finding(
        FloatingPointError("gradients are Nan/Inf"),
        30,
        {"encoder": [1.0, 2.0], "decoder": [1.0, nan, nan, None]},
        [25],
    )
    assert finding.started == 25
    assert finding.layers == {"decoder": (2, 3, 4)}
    assert "Inf comes first from decoder.layers.2.fc1 in the forward pass" in finding.what


def checkpoint(path: Path, update: int, resumable: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {"model": {}, "optimizer_history": [{"num_updates": update}]}
    if resumable:
        state["last_optimizer_state"] = {}
        state["extra_state"] = {"train_iterator": {}}
    torch.save(state, path)


def test_the_newest_checkpoint_from_before_was_tested_by_an_update_if_possible(
    tmp_path: Path,
) -> None:
    for update in (80, 90, 100):
        checkpoint(tmp_path / f"checkpoint_3_{update}.pt", update)
    checkpoint(tmp_path / "checkpoint_best.pt", 95, resumable=False)
    (tmp_path / "checkpoint_last.pt").write_bytes(b"half a file")
    expected = {102: 100, 101: 90, 91: 80, 82: 80, 81: 80, 80: None}
    for started, update in expected.items():
        found = newest_before(tmp_path, started)
        file = tmp_path / f"checkpoint_3_{update}.pt"
        assert found == (None if update is None else (update, file))


def make_judge(report: Any) -> Judge:
    judge = Judge.__new__(Judge)
    judge.over, judge.due, judge.known, judge.nan_report = False, None, {}, report
    judge._norms = dict  # type: ignore[method-assign]
    return judge


def test_a_training_that_ends_with_an_error_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """fairseq's trainer is left by way of `end`, which has nothing more to say."""
    reported = []
    report = NanReport()
    report.detach()
    judge = make_judge(report)
    monkeypatch.setattr(judge, "_report", lambda update, found: reported.append(list(found)))
    judge.failed(None, 7, FloatingPointError("NaN detected: loss"))
    judge.end(None, 7, False)
    assert reported == [[Kind.NOT_FINITE]]
