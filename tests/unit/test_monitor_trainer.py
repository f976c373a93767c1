"""What observers of a trainer are told, and when; options and records of the monitor."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairseq_deepnet.errors import ConfigurationError
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.observers import Observer, gradient_scale
from fairseq_deepnet.trainer import DeepNetTrainer
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


def told(monkeypatch: pytest.MonkeyPatch, folder: Path, *outcomes: str) -> list[tuple[Any, ...]]:
    """Return what an observer is notified of in these attempts of fairseq's."""
    rig, diary = Rig(folder), Diary()
    rig.trainer.observers = [diary]
    coming = list(outcomes)

    def train_step(trainer: Any, samples: Any, raise_oom: bool = False) -> None:
        outcome = coming.pop(0)
        if outcome != "out of memory":
            trainer.clip_grad_norm(0.0)
        if outcome == "made":
            trainer.set_num_updates(trainer.get_num_updates() + 1)

    monkeypatch.setattr(DeepNetTrainer.__base__, "train_step", train_step)
    while coming:
        rig.trainer.train_step([1, 2])
    return diary.told


def test_an_update_is_told_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = [("begin", 1, 2), ("gradients", 1), ("end", 1, True)]
    two = [("begin", 2, 2), ("gradients", 2), ("end", 2, True)]
    assert told(monkeypatch, tmp_path, "made", "made") == [*one, *two]


def test_an_attempt_without_an_update_has_the_number_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = [("begin", 1, 2), ("gradients", 1), ("end", 1, False)]
    made = [("begin", 1, 2), ("gradients", 1), ("end", 1, True)]
    assert told(monkeypatch, tmp_path, "scale too high", "made") == [*failed, *made]
    assert told(monkeypatch, tmp_path, "out of memory") == [failed[0], failed[2]]


def test_an_observer_that_fails_is_off_and_the_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Observer):
        detached = 0

        def begin(self, trainer: Any, update: int, samples: Any) -> None:
            raise OSError("disk full")

        def detach(self) -> None:
            self.detached += 1

    rig, diary, broken = Rig(tmp_path), Diary(), Broken()
    rig.trainer.observers = [broken, diary]
    rig.update()
    rig.update()
    ends = [event for event in diary.told if event[0] == "end"]
    assert ends == [("end", 1, True), ("end", 2, True)]
    assert broken.detached == 1
    assert caplog.text.count("Broken has failed and is switched off") == 1


def test_gradients_are_unscaled_as_each_optimiser_of_fairseq_scales_them() -> None:
    assert gradient_scale(SimpleNamespace()) == 1
    assert gradient_scale(SimpleNamespace(_multiply_factor=torch.tensor(0.25))) == 0.25


@pytest.mark.parametrize("option", ["--amp", "--store-ema", "--use-sharded-state"])
def test_options_that_are_not_supported_are_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"not supported: {option}"):
        Rig(tmp_path, option)


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--monitor-interval=-1",), "--monitor-interval -1: give updates, or 0 for never"),
        (
            ("--monitor-interval=2", "--monitor=model_updates"),
            "unknown model_updates; choose all or some of gradient",
        ),
        (("--monitor-interval=2", "--monitor=,"), "--monitor ','"),
        (("--monitor=gradient_norm",), "--monitor gradient_norm needs --monitor-interval"),
    ],
    ids=["interval", "unknown", "empty", "no-interval"],
)
def test_bad_options_name_themselves_and_the_remedy(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refused:  # one line: tests of fairseq's commands
        Rig(tmp_path, *options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


# Records


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
    records.keep_until(file, 5)
    assert not file.exists()
    for update in range(1, 5):
        records.append(file, {"update": update, "values": {"model_update": 0.1 * update}})
    whole = file.read_text(encoding="utf-8").splitlines(keepends=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write('{"update": 5, "values": {"model_up')
    assert [record["update"] for record in records.read(file)] == [1, 2, 3, 4]
    records.keep_until(file, 4)
    assert file.read_text(encoding="utf-8") == "".join(whole)
    records.keep_until(file, 2)
    records.append(file, {"update": 3, "values": {}})
    assert [record["update"] for record in records.read(file)] == [1, 2, 3]
