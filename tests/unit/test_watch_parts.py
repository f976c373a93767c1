"""Parts of the divergence watch: unigram level, likely cause, and earlier checkpoints."""

import dataclasses
import math
from argparse import Namespace
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_deepnet.divergence.detectors import ENOUGH, Unigram
from fairseq_deepnet.divergence.events import Event, Kind, likely_cause, read
from fairseq_deepnet.divergence.watch import Judge, newest_before, not_finite
from tests.support.runs import make_checkpoint

POST_LN = {
    "residual_scheme": "post-ln",
    "decoder_layers": 18,
    "lr": [1e-3],
    "fp16": False,
    "clip_norm": 0.0,
    "adam_eps": 1e-8,
    "freeze_norms": "none",
}
VANISHED = Event(Kind.VANISHED, 2, "gradients have vanished", {"decoder": (1, 14, 18)})


def cause(event: Event = VANISHED, **changes: object) -> str:
    return likely_cause(event, Namespace(**{**POST_LN, **changes}))


def test_a_remedy_is_proposed_only_where_it_has_been_measured() -> None:
    deep = {"residual_scheme": "deepnorm", "decoder_layers": 50}
    for remedy, exclusions in {
        "--adam-eps": [{"adam_eps": 1e-4}, {"residual_scheme": "post-ln"}],
        "--freeze-norms": [{"decoder_layers": 18}, {"freeze_norms": "both"}],
        "--warmup-updates": [],
    }.items():
        assert remedy in cause(**deep)
        for exclusion in exclusions:
            assert remedy not in cause(**{**deep, **exclusion})
    assert "--residual-scheme" not in cause(**deep)
    assert "after 50 updates of warm-up" in cause(warmup_steps=50)  # tri_stage


def test_every_kind_has_a_cause_that_ends_as_a_sentence() -> None:
    for kind in Kind:
        text = cause(dataclasses.replace(VANISHED, kind=kind))
        assert "--lr" in text
        assert text.endswith(".")


def test_a_failed_update_names_the_layers_with_non_finite_gradients() -> None:
    norms: dict[str, list[float | None]] = {
        "encoder": [512.0, None],
        "decoder": [float("inf"), math.nan, 1.0],
    }
    event = not_finite(FloatingPointError("gradients are Nan/Inf"), 25, norms)
    assert event.started == 25
    assert event.layers == {"decoder": (1, 2, 3)}
    assert "no finite gradient in decoder layers 1-2 of 3" in event.what


def test_the_unigram_level_of_equally_frequent_symbols_is_their_logarithm() -> None:
    dictionary = Dictionary()
    for symbol in "abcd":
        dictionary.add_symbol(symbol)
    unigram = Unigram(dictionary)
    target = torch.tensor([[4, 5, 6, 7], [4, 5, 1, 1], [6, 7, 1, 1]])
    batch: list[Any] = [{"target": target}, {}, None, {"target": None}]
    for _ in range(2 * ENOUGH // 4):
        assert unigram.level() is None
        unigram.add(batch)
    tokens = 8 * (2 * ENOUGH // 4)
    # K symbols are equally frequent among N tokens; the correction is (K - 1) / 2N nats
    assert unigram.level() == pytest.approx(2 + 3 / (2 * tokens * math.log(2)))


def test_the_newest_earlier_checkpoint_was_tested_by_an_update_if_possible(tmp_path: Path) -> None:
    for update in (80, 90, 100):
        make_checkpoint(tmp_path / f"checkpoint_3_{update}.pt", update)
    without_optimiser = {"model": {}, "optimizer_history": [{"num_updates": 95}]}
    torch.save(without_optimiser, tmp_path / "checkpoint_best.pt")
    (tmp_path / "checkpoint_last.pt").write_bytes(b"half a file")
    expected = {102: 100, 101: 90, 91: 80, 82: 80, 81: 80, 80: None}
    for started, update in expected.items():
        file = tmp_path / f"checkpoint_3_{update}.pt"
        assert newest_before(tmp_path, started) == (None if update is None else (update, file))


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Return a judge without a model."""
    judge = Judge.__new__(Judge)
    judge.args, judge.file, judge.attempt = Namespace(**POST_LN), tmp_path / "events.jsonl", 0
    judge.has_ended, judge.due, judge.current, judge.healthy = False, None, {}, deque()
    judge.unigram = judge.monitor = None
    return judge


def test_a_finding_and_its_recovery_are_each_reported_once(judge: Judge) -> None:
    judge.healthy.extend({"update": update} for update in (1, 9))
    for update in (12, 13):
        judge._report(update, {VANISHED.kind: VANISHED})
    judge._report(20, {})
    first, second = read(judge.file)
    assert (first.update, first.ended, first.last_good) == (12, False, {"update": 1})
    assert first.cause == cause()
    assert second == dataclasses.replace(first, update=20, ended=True)


def test_a_problem_may_outlast_a_restart(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = {"loss": 9.0}  # with label smoothing
    monkeypatch.setattr("fairseq_deepnet.divergence.watch.logged", lambda *_: logged)
    values = {"before": 5.0}
    judge._report(90, {Kind.LOSS_SPIKE: Event(Kind.LOSS_SPIKE, 88, values=values)})
    judge.loaded(Namespace(cfg=Namespace(common=Namespace(min_loss_scale=1.0))), 100)
    assert judge.due is not None  # if the run now stops, it stops because of the earlier warning
    for update in range(101, 130):
        logged["nll_loss"] = 8.0 if update < 110 else 4.9
        judge._read(update)
        judge._report(update, {f.kind: f for f in [judge.spike.finding] if f})
    assert [(e.update, e.ended) for e in read(judge.file)] == [(90, False), (112, True)]


def test_a_new_run_drops_the_fallbacks_of_a_discarded_one(judge: Judge) -> None:
    """Otherwise, its own first fallback would resume with the old event and stop at once."""
    trainer = Namespace(cfg=Namespace(common=Namespace(min_loss_scale=1.0)))
    for judge.attempt in (0, 1):
        judge.current = {}
        judge._report(31, {VANISHED.kind: VANISHED})
    judge.loaded(trainer, 20)
    assert [event.attempt for event in read(judge.file)] == [0]
    judge._report(31, {VANISHED.kind: VANISHED})
    judge.attempt = 0  # fallback.json and the checkpoints were removed
    judge.loaded(trainer, 0)
    assert not read(judge.file)


def test_an_error_of_fairseq_is_reported_once(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq's trainer calls `end` while it unwinds."""
    monkeypatch.setattr(judge, "_norms", dict)
    stall = dataclasses.replace(VANISHED, kind=Kind.STALLED, started=4)
    judge._report(5, {stall.kind: stall, VANISHED.kind: VANISHED})
    judge.failed(None, 7, FloatingPointError("inconsistent gradients between processes"))
    judge.failed(None, 7, FloatingPointError("NaN detected: loss"))
    judge.end(None, 7, False)
    _, earliest, last = read(judge.file)
    assert (last.kind, last.started) == (Kind.NOT_FINITE, earliest.started)
    assert judge.due == earliest  # the run rolls back to a checkpoint before it
    judge.loaded(Namespace(cfg=Namespace(common=Namespace(min_loss_scale=1.0))), 5)
    assert judge.due == earliest
