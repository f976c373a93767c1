"""What counts as diverged, rule by rule, and what does not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fairseq_deepnet.sweeps.divergence import Evidence, gather, why_diverged
from tests.support.cells import write_config, write_log

LEARNT = Evidence(
    ("done training",),
    train_loss=3.0,
    valid_loss=3.1,
    updates=8000,
    warmup=4000,
    vocabulary=1024,
    bleu=29.0,
)


def with_(**changes: object) -> Evidence:
    return Evidence(**{**vars(LEARNT), **changes})  # type: ignore[arg-type]


def test_a_model_that_translates_has_not_diverged() -> None:
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
    assert reason.startswith("fairseq gave up: ")
    assert why_diverged(with_(log_tail=("OutOfMemoryError: CUDA out of memory",))) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_last_loss_that_is_not_finite_is_divergence_even_in_the_warm_up(loss: float) -> None:
    assert why_diverged(with_(train_loss=loss, updates=10)) == f"the last training loss is {loss}"
    assert why_diverged(with_(valid_loss=loss)) == f"the last validation loss is {loss}"


def test_a_loss_near_that_of_equally_likely_symbols_is_divergence() -> None:
    # log2(1024) = 10; the margin is half a bit
    assert why_diverged(with_(valid_loss=9.5)) is None
    reason = why_diverged(with_(valid_loss=9.51))
    assert reason is not None
    assert "log2 of 1,024 symbols is 10.00" in reason
    assert why_diverged(with_(valid_loss=13.2)) is not None
    assert why_diverged(with_(valid_loss=13.2, vocabulary=None)) is None


def test_no_translation_at_all_is_divergence() -> None:
    assert why_diverged(with_(bleu=0.99)) == "test BLEU is 0.99, below 1"
    assert why_diverged(with_(bleu=1.0)) is None
    # figure 6 shows Post-LN's 4.2 as a number
    assert why_diverged(with_(bleu=4.2)) is None


def test_losses_and_bleu_do_not_count_before_the_end_of_the_warm_up() -> None:
    assert why_diverged(with_(valid_loss=13.2, bleu=0.0, updates=3999)) is None
    assert why_diverged(with_(bleu=0.0, updates=4000)) is not None


def test_the_evidence_is_read_off_a_run_folder(tmp_path: Path) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    data.mkdir()
    (data / "corpus.json").write_text(json.dumps({"source": "de", "target": "en"}))
    (data / "dict.en.txt").write_text("a 1\nb 1\nc 1\n")
    write_config(run, warmup_updates=4000)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("data/none", str(data)))
    write_log(run, {100: 9.0, 200: 8.0}, ending="the end\n")
    found = gather(run, bleu=12.0)
    assert (found.updates, found.valid_loss, found.train_loss) == (200, 6.5, None)
    assert (found.warmup, found.vocabulary, found.bleu) == (4000, 3 + 4, 12.0)
    assert found.log_tail[-1] == "the end"


def test_a_run_without_a_log_gives_no_evidence(tmp_path: Path) -> None:
    assert gather(tmp_path) == Evidence()
