"""Parts of the divergence watch: unigram level, cause, checkpoints from before."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_deepnet.divergence.detectors import ENOUGH, Unigram
from fairseq_deepnet.divergence.events import Circumstances, Event, Kind, likely_cause
from fairseq_deepnet.divergence.watch import Judge, newest_before, not_finite

POST_LN = Circumstances(
    scheme="post-ln",
    depth=18,
    lr=1e-3,
    warmup=0,
    precision="fp32",
    clip=0.0,
    adam_eps=1e-8,
    frozen="none",
)
VANISHED = Event(Kind.VANISHED, 2, "gradients have vanished", {"decoder": (1, 14, 18)})


def cause(event: Event = VANISHED, **changes: object) -> str:
    return likely_cause(event, dataclasses.replace(POST_LN, **changes))  # type: ignore[arg-type]


def test_deep_post_ln_without_warm_up_is_told_as_the_paper_tells_it() -> None:
    text = cause()
    for part in (
        "the model update exploded without warm-up, at a learning rate of 0.001",
        "LayerNorm's inputs grew",
        "about sqrt(d)/|x|, vanishes in decoder layers 1-14 of 18",
        "plain Post-LN",
        "lower --lr",
        "--warmup-updates",
        "--residual-scheme deepnorm",
    ):
        assert part in text


def test_deepnorm_is_not_told_to_use_deepnorm() -> None:
    text = cause(scheme="deepnorm")
    assert "--residual-scheme" not in text
    assert "plain Post-LN" not in text


def test_a_deep_stack_is_told_of_adams_epsilon() -> None:
    assert "or raise --adam-eps to 0.0001." in cause(scheme="deepnorm", adam_eps=1e-8)
    for changes in ({"adam_eps": 1e-4}, {"adam_eps": None}):
        assert "--adam-eps" not in cause(scheme="deepnorm", **{"adam_eps": 1e-8, **changes})
    assert "--adam-eps" not in cause(adam_eps=1e-8)  # plain Post-LN: not tried


def test_frozen_norms_are_proposed_where_they_are_known_to_help() -> None:
    assert "or start again with --freeze-norms both." in cause(scheme="deepnorm", depth=50)
    for changes in ({"depth": 18}, {"frozen": "both"}, {"scheme": "pre-ln"}):
        assert "--freeze-norms" not in cause(**{"scheme": "deepnorm", "depth": 50, **changes})
    assert "--freeze-norms" not in cause(depth=50)  # plain Post-LN: not tried


def test_every_kind_has_a_cause_that_ends_as_a_sentence() -> None:
    for kind in Kind:
        text = cause(dataclasses.replace(VANISHED, kind=kind))
        assert text.endswith(".")
        assert "--lr" in text


def test_an_event_is_one_record_and_one_readable_line() -> None:
    good = {"update": 1, "loss": 12.65, "nll_loss": 12.6, "gnorm": 4.1, "lr": 1e-3}
    event = dataclasses.replace(VANISHED, update=12, cause=cause(), last_good=good)
    record = event.record()
    assert record["update"] == 12
    assert record["layers"] == {"decoder": (1, 14, 18)}
    assert record["last_good"] == good
    assert str(event).startswith(
        "divergence at update 12: gradients have vanished; it began at update 2. Last good, at"
        " update 1: loss 12.7, nll_loss 12.6, gnorm 4.1, lr 0.001. Likely cause: the model update"
    )
    assert "Last good" not in str(dataclasses.replace(event, last_good={}))


def test_norms_of_an_update_that_failed_tell_only_whether_they_are_finite() -> None:
    norms: dict[str, list[float | None]] = {
        "encoder": [512.0, None],
        "decoder": [float("inf"), math.nan, 1.0],
    }
    finding = not_finite(FloatingPointError("gradients are Nan/Inf"), 25, norms)
    assert finding.started == 25
    assert finding.layers == {"decoder": (1, 2, 3)}
    assert "no finite gradient in decoder layers 1-2 of 3" in finding.what


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


def test_a_training_that_ends_with_an_error_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """fairseq's trainer is left by way of `end`, which has nothing more to report."""
    reported = []
    judge = Judge.__new__(Judge)
    judge.over, judge.due, judge.current = False, None, {}
    judge._norms = dict  # type: ignore[method-assign]
    monkeypatch.setattr(judge, "_report", lambda update, found: reported.append(list(found)))
    judge.failed(None, 7, FloatingPointError("NaN detected: loss"))
    judge.end(None, 7, False)
    assert reported == [[Kind.NOT_FINITE]]
