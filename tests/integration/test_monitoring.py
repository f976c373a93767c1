"""--monitor-interval in fairseq-train: records, TensorBoard, and unchanged numbers."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fairseq_deepnet.monitoring.records import QUANTITIES
from tests.integration.conftest import SMALL, TRAIN
from tests.support.training import assert_same_checkpoints, logged, train_here, train_together

BASE = ["--arch=deepnet_transformer", *SMALL, *TRAIN, "--disable-validation", "--dropout=0.1"]
MONITORED = ["--monitor-interval=1"]


def records_of(save_dir: Path) -> list[dict[str, Any]]:
    text = (save_dir / "monitor.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_two_processes_write_one_record_and_change_nothing(tiny_data: Path, tmp_path: Path) -> None:
    words = [*BASE, "--optimizer=sgd", "--lr=0.5", "--dropout=0", "--max-update=8"]
    for name, more in (("plain", ["--on-divergence=off"]), ("monitored", MONITORED)):
        assert train_together(tiny_data, tmp_path / name, *words, *more) == [0, 0]
    checkpoints = [
        torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)
        for name in ("plain", "monitored")
    ]
    assert_same_checkpoints(*checkpoints)
    together = records_of(tmp_path / "monitored")
    assert [record["update"] for record in together] == list(range(1, 9))
    # One process computes the same gradients from the same batches with --update-freq 2.
    single = [*words, *MONITORED, "--update-freq=2", "--max-update=2"]
    train_here(tiny_data, tmp_path / "single", *single)
    for expected, record in zip(records_of(tmp_path / "single"), together, strict=False):
        assert record["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        for side, parts in expected["values"]["gradient_norm"].items():
            for part, row in parts.items():
                norms = record["values"]["gradient_norm"][side][part]
                assert norms == pytest.approx(row, rel=2e-3), (side, part)
        for name in ("model_update", "step_update", "update_bound"):
            assert record["values"][name] == pytest.approx(expected["values"][name], rel=2e-3)


@pytest.mark.parametrize("precision", [[], ["--bf16"]], ids=["fp32", "bf16"])
def test_a_records_numbers_are_those_of_log_and_tensorboard(
    precision: list[str], tiny_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [*BASE, *precision, "--log-format=json", "--log-interval=1", "--update-freq=2"]
    words += ["--max-update=4", "--monitor-interval=2", f"--tensorboard-logdir={tmp_path / 'tb'}"]
    with caplog.at_level("INFO"):
        train_here(tiny_data, tmp_path, *words)
    lines = [r.getMessage() for r in caplog.records if r.name == "train_inner"]
    records = records_of(tmp_path)
    assert [record["update"] for record in records] == [2, 4]
    assert set(records[0]["values"]) == set(QUANTITIES)
    assert logged(lines, "lr")[1::2] == [pytest.approx(record["lr"]) for record in records]
    for name in ("loss", "nll_loss", "gnorm"):
        numbers = [pytest.approx(value, abs=1e-3) for value in logged(lines, name)[1::2]]
        assert [record[name] for record in records] == numbers, name
    for record in records:  # all parameters are in a layer or in the shared table
        sides = record["values"]["gradient_norm"].values()
        norms = [norm for parts in sides for norm in parts["layer"]]
        norms.append(record["values"]["embedding_gradient_norm"]["decoder"])
        assert math.hypot(*norms) == pytest.approx(record["gnorm"], rel=1e-2 if precision else 1e-4)
    events = EventAccumulator(str(tmp_path / "tb" / "monitor"), size_guidance={"scalars": 0})
    events.Reload()
    assert {tag.partition("/")[0] for tag in events.Tags()["scalars"]} == set(QUANTITIES)
    points = events.Scalars("gradient_norm/decoder/layer/0002")
    assert [point.step for point in points] == [2, 4]
    rows = [record["values"]["gradient_norm"]["decoder"]["layer"] for record in records]
    assert [point.value for point in points] == [pytest.approx(row[-1]) for row in rows]
