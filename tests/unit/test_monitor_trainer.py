"""What observers of a trainer are told, and when; options and records of the monitor."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.trainer import Trainer

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.quantities import QUANTITIES, parse_quantities
from fairseq_deepnet.monitoring.trainer import Observer, gradient_scale, observe
from tests.support.rig import Rig


class Diary(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def begin(self, trainer: Any, update: int, samples: Any) -> None:
        self.told.append(("begin", update, len(samples)))

    def gradients(self, trainer: Any, update: int) -> None:
        self.told.append(("gradients", update))

    def end(self, trainer: Any, update: int, made: bool) -> None:
        self.told.append(("end", update, made))

    def loaded(self, trainer: Any, update: int) -> None:
        self.told.append(("loaded", update))

    def failed(self, trainer: Any, update: int, error: FloatingPointError) -> None:
        self.told.append(("failed", update, str(error)))


class FakeTrainer:
    """Makes, fails or tries again; `outcomes` says which, for each try."""

    def __init__(self, *outcomes: str) -> None:
        self.outcomes = list(outcomes)
        self.updates = 0

    def get_num_updates(self) -> int:
        return self.updates

    def clip_grad_norm(self, clip_norm: float) -> float:
        return clip_norm

    def load_checkpoint(self, file: str) -> str:
        self.updates = 7
        return file

    def train_step(self, samples: list[int]) -> str | None:
        outcome = self.outcomes.pop(0)
        if outcome == "out of memory":
            return None
        self.clip_grad_norm(1.0)
        if outcome == "broken":
            raise FloatingPointError("gradients are Nan/Inf")
        if outcome == "overflow":  # fairseq's --amp: the same batch at once
            return self.train_step(samples)
        if outcome == "made":
            self.updates += 1
        return outcome


def told(*outcomes: str) -> list[tuple[Any, ...]]:
    """What an observer is told of these tries."""
    trainer, diary = FakeTrainer(*outcomes), Diary()
    observe(trainer, [diary])
    while trainer.outcomes:
        try:
            trainer.train_step([1, 2])
        except FloatingPointError:
            assert outcomes[-1] == "broken"
    return diary.told


def test_an_update_is_told_in_its_order() -> None:
    one = [("begin", 1, 2), ("gradients", 1), ("end", 1, True)]
    two = [("begin", 2, 2), ("gradients", 2), ("end", 2, True)]
    assert told("made", "made") == [*one, *two]


def test_a_try_without_an_update_has_the_number_of_the_next() -> None:
    failed = [("begin", 1, 2), ("gradients", 1), ("end", 1, False)]
    made = [("begin", 1, 2), ("gradients", 1), ("end", 1, True)]
    assert told("scale too high", "made") == [*failed, *made]
    assert told("out of memory") == [failed[0], failed[2]]


def test_an_update_that_was_tried_again_within_ends_once() -> None:
    found = told("overflow", "overflow", "made")
    assert [entry for entry in found if entry[0] == "end"] == [("end", 1, True)]
    assert found[-1][0] == "end"


def test_fairseqs_giving_up_is_told_before_the_end() -> None:
    assert told("broken")[2:] == [("failed", 1, "gradients are Nan/Inf"), ("end", 1, False)]


def test_an_observer_that_fails_is_off_and_the_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Observer):
        detached = 0

        def begin(self, trainer: Any, update: int, samples: Any) -> None:
            raise OSError("disk full")

        def detach(self) -> None:
            self.detached += 1

    trainer, diary, broken = FakeTrainer("made", "made"), Diary(), Broken()
    observe(trainer, [broken, diary])
    trainer.train_step([1])
    trainer.train_step([1])
    assert [told for told in diary.told if told[0] == "end"] == [("end", 1, True), ("end", 2, True)]
    assert broken.detached == 1
    assert caplog.text.count("Broken has failed and is off from here on") == 1


def test_a_loaded_checkpoint_is_told_with_its_updates_and_handed_on() -> None:
    trainer, diary = FakeTrainer(), Diary()
    observe(trainer, [diary])
    assert trainer.load_checkpoint("file") == "file"
    assert diary.told == [("loaded", 7)]


def test_gradients_are_unscaled_as_each_optimiser_of_fairseq_scales_them() -> None:
    assert gradient_scale(SimpleNamespace()) == 1
    assert gradient_scale(SimpleNamespace(_multiply_factor=torch.tensor(0.25))) == 0.25
    scaler = SimpleNamespace(get_scale=lambda: 128.0)
    amp = SimpleNamespace(_grad_scaler=scaler, scaler=scaler)
    assert gradient_scale(amp) == 1 / 128


def test_trainers_of_other_models_have_no_instruments(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--monitor-interval=1")
    assert "train_step" in vars(rig.trainer)
    vars(rig.cfg.model).pop("residual_scheme")  # fairseq's own archs have none
    other = Trainer(rig.cfg, rig.task, rig.model, rig.trainer.criterion)
    assert not {"train_step", "clip_grad_norm", "load_checkpoint"} & set(vars(other))


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--monitor-interval=-1",), "--monitor-interval -1: give updates, or 0 for never"),
        (("--monitor=model_updates",), "unknown model_updates; choose all or some of gradient"),
        (("--monitor-interval=2", "--monitor=,"), "--monitor ','"),
        (
            ("--monitor=gradient_norm",),
            "--monitor gradient_norm measures nothing without --monitor-interval; give the updates",
        ),
        (
            ("--monitor-interval=1", "--monitor=update_bound", "--residual-scheme=pre-ln"),
            "--residual-scheme pre-ln has no update_bound (docs/monitoring.md); leave it out",
        ),
        (
            (
                "--monitor-interval=1",
                "--monitor=step_update,step_bound,layer_norm_input",
                "--residual-scheme=rezero",
            ),
            "--residual-scheme rezero has no step_bound, layer_norm_input (docs/monitoring.md)",
        ),
    ],
    ids=["interval", "unknown", "empty", "no-interval", "no-bound", "no-norm"],
)
def test_bad_options_name_themselves_and_the_remedy(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refused:  # one line: tests of fairseq's commands
        Rig(tmp_path, *options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_quantities_are_named_once_and_all_means_all() -> None:
    assert parse_quantities("step_update, branch_norm,step_update") == (
        "step_update",
        "branch_norm",
    )
    assert parse_quantities("all") == parse_quantities("branch_norm,all") == tuple(QUANTITIES)


# Records


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = {"update": 3, "loss": 7.125, "values": {"model_update": 0.5}}
    record["values"]["gradient_norm"] = {"encoder": {"layer": [0.25, None, 2e-30]}}
    records.append(tmp_path / "new" / records.NAME, record)
    assert list(records.read(tmp_path / "new" / records.NAME)) == [record]


def test_numbers_that_are_not_finite_are_words_of_strict_json(tmp_path: Path) -> None:
    file = tmp_path / records.NAME
    inf = float("inf")
    records.append(file, {"update": 1, "values": {"a": float("nan"), "b": [inf, -inf, 1.0]}})

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    line = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    assert line["values"] == {"a": "nan", "b": ["inf", "-inf", 1.0]}
    (found,) = records.read(file)
    assert found["values"]["a"] != found["values"]["a"]
    assert found["values"]["b"] == [inf, -inf, 1.0]


def test_later_records_and_half_a_line_go_when_a_run_goes_on(tmp_path: Path) -> None:
    file = tmp_path / records.NAME
    assert records.keep_until(file, 5) == 0
    for update in range(1, 5):
        records.append(file, {"update": update, "values": {"model_update": 0.1 * update}})
    whole = file.read_text(encoding="utf-8").splitlines(keepends=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write('{"update": 5, "values": {"model_up')
    assert [record["update"] for record in records.read(file)] == [1, 2, 3, 4]
    assert records.keep_until(file, 4) == 4
    assert file.read_text(encoding="utf-8") == "".join(whole)
    assert records.keep_until(file, 2) == 2
    records.append(file, {"update": 3, "values": {}})
    assert [record["update"] for record in records.read(file)] == [1, 2, 3]
