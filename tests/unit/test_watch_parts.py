"""Parts of the divergence watch: unigram level, NaN detector, good states, precision, options."""

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fairseq_deepnet.divergence import good_states, precision
from fairseq_deepnet.divergence.detectors import ENOUGH, Unigram
from fairseq_deepnet.divergence.events import Kind
from fairseq_deepnet.divergence.nan_report import NanReport
from fairseq_deepnet.divergence.watch import Judge, Watch


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


def test_processes_that_disagree_without_a_nan_are_no_divergence() -> None:
    text = "Fatal error: gradients are inconsistent between workers.\nrank   0 = {}\nrank   1 = 2.0"
    assert not NanReport.blames_numbers(FloatingPointError(text.format("1.0")))
    assert NanReport.blames_numbers(FloatingPointError(text.format("nan")))
    assert NanReport.blames_numbers(FloatingPointError("Minimum loss scale reached (0.0001)"))


def checkpoint(path: Path, update: int, resumable: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {"model": {}, "optimizer_history": [{"num_updates": update}]}
    if resumable:
        state["last_optimizer_state"] = {}
        state["extra_state"] = {"train_iterator": {}}
    torch.save(state, path)


def test_the_good_state_is_the_newest_whose_parameters_were_still_well(tmp_path: Path) -> None:
    checkpoint(tmp_path / "good_states" / "update_80.pt", 80)
    checkpoint(tmp_path / "good_states" / "update_100.pt", 100)
    checkpoint(tmp_path / "checkpoint_3_90.pt", 90)
    checkpoint(tmp_path / "checkpoint_best.pt", 95, resumable=False)
    (tmp_path / "checkpoint_last.pt").write_bytes(b"half a file")
    start = good_states.Start(0, 0.0)
    hundred, eighty = (tmp_path / "good_states" / f"update_{update}.pt" for update in (100, 80))
    assert good_states.newest(tmp_path, 102, start) == (100, hundred)
    assert good_states.newest(tmp_path, 101, start) == (90, tmp_path / "checkpoint_3_90.pt")
    assert good_states.newest(tmp_path, 82, start) == (80, eighty)
    assert good_states.newest(tmp_path, 81, start) is None


def test_what_another_training_left_in_the_folder_is_no_good_state(tmp_path: Path) -> None:
    for update in (40, 49_000):
        checkpoint(tmp_path / "good_states" / f"update_{update}.pt", update)
        checkpoint(tmp_path / f"checkpoint_1_{update}.pt", update)
    begun = time.time() + 60
    good_states.begin(tmp_path, 40)
    assert [path.name for path in (tmp_path / "earlier_1").iterdir()] == ["update_49000.pt"]
    resumed, fresh = good_states.Start(40, begun), good_states.Start(0, begun)
    assert good_states.newest(tmp_path, 50_000, fresh) is None
    found = good_states.newest(tmp_path, 50_000, resumed)
    assert found is not None
    assert found[0] == 40


def test_what_came_after_the_good_state_is_moved_and_nothing_is_deleted(tmp_path: Path) -> None:
    for update in (80, 100):
        checkpoint(tmp_path / "good_states" / f"update_{update}.pt", update)
        checkpoint(tmp_path / f"checkpoint_1_{update}.pt", update)
    checkpoint(tmp_path / "crash.pt", 100)
    (tmp_path / "checkpoint_last.pt").write_bytes(b"half a file")
    (tmp_path / "diverged_1").mkdir()
    aside = good_states.free_folder(tmp_path, "diverged", 1)
    assert aside == tmp_path / "diverged_2"
    good_states.set_aside(tmp_path, 80, aside)
    assert {path.name for path in aside.iterdir()} == {
        "update_100.pt",
        "checkpoint_1_100.pt",
        "crash.pt",
        "checkpoint_last.pt",
    }
    assert (tmp_path / "checkpoint_1_80.pt").is_file()
    good_states.set_aside(tmp_path, None, tmp_path / "diverged_3")
    assert {path.name for path in (tmp_path / "diverged_3").iterdir()} == {
        "update_80.pt",
        "checkpoint_1_80.pt",
    }


def test_adams_moments_in_one_row_are_given_back_to_their_parameters() -> None:
    weight, bias = torch.arange(6.0).view(2, 3), torch.tensor([6.0, 7.0])
    row = torch.cat([weight.flatten(), bias])
    held = {
        "state": {0: {"step": 5, "exp_avg": row, "exp_avg_sq": row.half()}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    }
    shapes = [weight.shape, bias.shape]
    found = precision.split(held, shapes)
    assert found["param_groups"] == [{"lr": 0.1, "params": [0, 1]}]
    assert torch.equal(found["state"][0]["exp_avg"], weight)
    assert torch.equal(found["state"][1]["exp_avg_sq"], bias)
    assert found["state"][1]["exp_avg_sq"].dtype == torch.float32
    assert [state["step"] for state in found["state"].values()] == [5, 5]
    # what fits into the optimiser of these parameters
    adam = torch.optim.Adam([nn.Parameter(torch.zeros(shape)) for shape in shapes])
    adam.load_state_dict({**adam.state_dict(), "state": found["state"]})
    assert precision.split(found, shapes) == found  # bf16's are each parameter's already


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


def test_processes_that_disagree_neither_report_nor_stop() -> None:
    error = FloatingPointError("gradients are inconsistent between workers")
    make_judge(None).failed(None, 7, error)
    watch = Watch.__new__(Watch)
    watch.settings = SimpleNamespace(stops=True)  # type: ignore[assignment]
    watch.failed(None, 7, error)
