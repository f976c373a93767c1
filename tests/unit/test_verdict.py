"""What counts as diverged, rule by rule, and what does not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.divergence.verdict import Evidence, smoothed, why_diverged
from fairseq_deepnet.experiments.runs import log_tail, read_evidence
from tests.support.cells import write_config, write_log
from tests.support.runs import make_data

UNIGRAM = 8.33


def curve(*losses: float, interval: int = 10) -> tuple[tuple[int, float], ...]:
    return tuple((interval * number, loss) for number, loss in enumerate(losses, start=1))


LEARNT = Evidence(
    ("done training",),
    train=curve(*(9.0 - 0.1 * number for number in range(20))),
    valid=curve(7.97, 7.62, interval=100),
    warmup=50,
    vocabulary=1024,
    unigram=UNIGRAM,
)


def with_(**changes: Any) -> Evidence:
    return Evidence(**{**vars(LEARNT), **changes})


def test_a_model_that_learns_has_not_diverged() -> None:
    assert why_diverged(LEARNT) is None
    assert why_diverged(Evidence()) is None


@pytest.mark.parametrize(
    "line",
    [
        "FloatingPointError: gradients are Nan/Inf",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        "| Minimum loss scale reached",
    ],
)
def test_fairseq_s_own_verdict_counts_whatever_the_losses_say(line: str) -> None:
    reason = why_diverged(with_(log_tail=("Traceback", line, "after")))
    assert reason is not None
    assert reason.startswith("fairseq gave up after update 200: ")
    assert why_diverged(with_(log_tail=("OutOfMemoryError: CUDA out of memory",))) is None


def test_a_training_that_the_watch_stopped_has_diverged_for_its_reason() -> None:
    line = "fairseq_deepnet: the training diverged at update 12 (gradients have vanished)"
    reason = why_diverged(with_(log_tail=(line,)), crashed=True)
    assert reason == "the training diverged at update 12 (gradients have vanished)"


def test_a_training_that_fell_back_since_has_not_been_given_up() -> None:
    stopped = "fairseq_deepnet: the training diverged at update 12 (gradients have vanished)"
    fell_back = "fallback 1: starting again from update 9 with --lr 0.001"
    assert why_diverged(with_(log_tail=(stopped, fell_back, "done training"))) is None
    assert why_diverged(with_(log_tail=(fell_back, stopped))) is not None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_last_loss_that_is_not_finite_is_divergence_even_in_the_warm_up(loss: float) -> None:
    broken = with_(train=curve(9.0, loss), warmup=4000)
    assert why_diverged(broken) == f"the last training loss, at update 20, is {loss}"
    broken = with_(valid=curve(8.0, loss, interval=100))
    assert why_diverged(broken) == f"the last validation loss, at update 200, is {loss}"
    assert why_diverged(with_(train=curve(9.0, loss, 8.0))) is None


def test_training_losses_are_averaged_over_five_of_the_log_or_half_of_it() -> None:
    assert smoothed(curve(*range(10))) == [(10 * n, n - 3.0) for n in range(5, 11)]
    assert smoothed(curve(9, 7, 5, 3)) == [(20, 8.0), (30, 6.0), (40, 4.0)]
    assert smoothed(curve(9.0, math.nan)) == [(10, 9.0)]
    assert smoothed(()) == []


def test_a_training_loss_that_rose_by_a_bit_and_stayed_up_is_divergence() -> None:
    fallen = [9.0, 8.8, 8.6, 8.4, 8.2, 8.0, 8.0, 8.0, 8.0, 8.0]
    # lowest mean of five 8.0, at update 100
    risen = with_(train=curve(*fallen, *[9.0] * 5))
    assert why_diverged(risen) == (
        "the training loss rose from 8.00 bits a token at update 100 to 9.00 at update 150"
    )
    assert why_diverged(with_(train=curve(*fallen, *[8.99] * 5))) is None
    # up and down again, and one bad interval
    assert why_diverged(with_(train=curve(*fallen, *[12.0] * 5, *[8.5] * 5))) is None
    assert why_diverged(with_(train=curve(*fallen, 12.0))) is None


def test_a_validation_loss_that_rises_while_the_training_loss_falls_is_overfitting() -> None:
    rising = curve(7.0, 6.0, 7.0, interval=100)
    assert why_diverged(with_(valid=rising)) is None
    falling = [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    assert why_diverged(with_(valid=rising, train=curve(*falling, *[3.4] * 5))) is None
    assert why_diverged(with_(valid=rising, train=curve(*falling, *[3.5] * 5))) == (
        "the validation loss rose from 6.00 bits a token at update 200 to 7.00 at update 300"
    )
    assert why_diverged(with_(valid=rising, train=())) is not None
    assert why_diverged(with_(valid=curve(7.0, 6.0, 6.99), train=())) is None


def test_a_rise_is_divergence_even_in_the_warm_up() -> None:
    risen = with_(train=curve(*[8.0] * 5, *[9.5] * 5), warmup=4000)
    assert why_diverged(risen) is not None


def test_a_model_that_knows_only_how_frequent_words_are_has_stalled() -> None:
    # the margin is a tenth of a bit: 8.33 - 0.1
    assert why_diverged(with_(valid=curve(8.5, 8.23, interval=100))) is None
    reason = why_diverged(with_(valid=curve(8.49, 8.42, interval=100)))
    assert reason == (
        "stalled at a validation loss of 8.42 bits a token at update 200; a unigram model has 8.33"
    )


def test_a_model_that_is_slow_and_still_falls_has_not_stalled() -> None:
    # below the level of 8.33, and a tenth lower than in the middle of the run
    assert why_diverged(with_(valid=curve(8.42, 8.30, interval=100))) is None
    assert why_diverged(with_(valid=curve(8.39, 8.30, interval=100))) is not None
    # above the level it may only be on its way there
    assert why_diverged(with_(valid=curve(9.5, 8.34, interval=100))) is not None
    # what it was in the second half does not count
    slow = with_(valid=curve(8.6, 8.31, 8.31, 8.30, interval=100), train=())
    assert why_diverged(slow) is not None
    assert why_diverged(with_(valid=curve(8.30, interval=200))) is not None


def test_without_a_unigram_level_it_is_that_of_equally_likely_symbols() -> None:
    # log2(1024) = 10; the margin is half a bit
    assert why_diverged(with_(unigram=None, valid=curve(9.5))) is None
    reason = why_diverged(with_(unigram=None, valid=curve(9.51)))
    assert reason is not None
    assert reason.endswith("; log2 of 1,024 symbols is 10.00")
    assert why_diverged(with_(unigram=None, vocabulary=None, valid=curve(13.2))) is None


def test_nothing_has_stalled_before_the_end_of_the_warm_up() -> None:
    slow = curve(9.0, 8.9, interval=100)
    assert why_diverged(with_(valid=slow, warmup=201)) is None
    assert why_diverged(with_(valid=slow, warmup=200)) is not None


def test_a_training_that_was_killed_has_not_stalled_but_may_have_diverged() -> None:
    stalled = with_(valid=curve(8.5, 8.4, interval=100))
    assert why_diverged(stalled) is not None
    assert why_diverged(stalled, crashed=True) is None
    assert why_diverged(with_(log_tail=("FloatingPointError",)), crashed=True) is not None
    assert why_diverged(with_(train=curve(9.0, math.nan)), crashed=True) is not None
    assert why_diverged(with_(train=curve(*[8.0] * 5, *[9.5] * 5)), crashed=True) is not None


def test_the_evidence_is_read_off_a_run_folder(tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    data.mkdir()
    (data / "corpus.json").write_text(
        json.dumps({"source": "de", "target": "en"}), encoding="utf-8"
    )
    (data / "dict.en.txt").write_text("a 1\nb 1\nc 1\n", encoding="utf-8")
    write_config(run, data=data, warmup_updates=4000)
    write_log(run, {100: 9.0, 200: 8.0}, ending="the end\n")
    found = read_evidence(run)
    assert (found.updates, found.valid_loss, found.train_loss) == (200, 6.5, None)
    assert found.valid == ((100, 7.5), (200, 6.5))
    assert (found.warmup, found.vocabulary, found.unigram) == (4000, 3 + 4, None)
    assert found.log_tail[-1] == "the end"


def test_the_unigram_level_comes_from_the_run_s_data(tmp_path: Path) -> None:
    run, data = tmp_path / "run", make_data(tmp_path / "data")
    write_config(run, data=data)
    write_log(run, {100: 9.0})
    found = read_evidence(run)
    assert found.unigram is not None
    assert found.vocabulary is not None
    assert 0 < found.unigram < math.log2(found.vocabulary)


def test_a_criterion_that_logs_no_nll_is_judged_by_its_loss(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_log(tmp_path, {100: 9.0})
    log = tmp_path / "train.log"
    log.write_text(
        log.read_text(encoding="utf-8").replace("valid_nll_loss", "valid_ppl"), encoding="utf-8"
    )
    assert read_evidence(tmp_path).valid == ((100, 9.0),)


def test_a_run_without_a_log_gives_no_evidence(tmp_path: Path) -> None:
    assert read_evidence(tmp_path) == Evidence()


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)), encoding="utf-8")
    assert log_tail(log, 2) == ("line 998", "line 999")
    assert log_tail(tmp_path / "none") == ()


def test_what_an_earlier_training_in_the_same_log_came_to_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    start = "2026-01-01 00:00:00 | INFO | fairseq_cli.train | {'_name': None, 'common': {}}\n"
    log.write_text(
        f"{start}FloatingPointError: gradients are Nan/Inf\n{start}done training\n",
        encoding="utf-8",
    )
    assert log_tail(log) == (start.strip(), "done training")
    log.write_text("no start in sight\ndone training\n", encoding="utf-8")
    assert log_tail(log) == ("no start in sight", "done training")
