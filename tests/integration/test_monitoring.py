"""--monitor-interval in fairseq-train itself: files, log and TensorBoard; and no number changed."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fairseq_deepnet.monitoring.records import QUANTITIES
from tests.integration.conftest import SMALL, TRAIN
from tests.support.training import logged, train_here, train_together

BASE = ["--arch=deepnet_transformer", *SMALL, *TRAIN, "--disable-validation", "--dropout=0.1"]
WATCHED = ["--monitor-interval=1"]
JSON = ["--log-format=json", "--log-interval=1"]


def records_of(save_dir: Path) -> list[dict[str, Any]]:
    text = (save_dir / "monitor.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def updates_of(save_dir: Path) -> list[int]:
    return [record["update"] for record in records_of(save_dir)]


def assert_same_checkpoints(plain: dict[str, Any], watched: dict[str, Any]) -> None:
    """Parameters and the optimiser's moments; these tell of every gradient."""
    assert plain["model"].keys() == watched["model"].keys()
    for name, value in plain["model"].items():
        assert torch.equal(watched["model"][name], value), name
    states = [held["last_optimizer_state"]["state"] for held in (plain, watched)]
    assert states[0].keys() == states[1].keys()
    for key, moments in states[0].items():
        for name, value in moments.items():
            assert torch.equal(torch.as_tensor(states[1][key][name]), torch.as_tensor(value)), name


# Nothing changes


def test_two_processes_write_one_record_and_change_nothing(tiny_data: Path, tmp_path: Path) -> None:
    words = [*BASE, "--optimizer=sgd", "--lr=0.5", "--dropout=0", "--max-update=8"]
    for name, more in (("plain", ["--on-divergence=off"]), ("watched", WATCHED)):
        assert train_together(tiny_data, tmp_path / name, *words, *more) == [0, 0]
    held = [
        torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)
        for name in ("plain", "watched")
    ]
    assert_same_checkpoints(*held)
    assert updates_of(tmp_path / "watched") == list(range(1, 9))
    # Gradients are those of both processes: what one makes of the same batches in one update.
    train_here(tiny_data, tmp_path / "one", *words, *WATCHED, "--update-freq=2", "--max-update=2")
    for alone, together in zip(
        records_of(tmp_path / "one"), records_of(tmp_path / "watched"), strict=False
    ):
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        for side, parts in alone["values"]["gradient_norm"].items():
            for part, row in parts.items():
                expected = pytest.approx(row, rel=2e-3)
                assert together["values"]["gradient_norm"][side][part] == expected, (side, part)
        for name in ("model_update", "step_update", "update_bound"):
            assert together["values"][name] == pytest.approx(alone["values"][name], rel=2e-3)


# Going on


def interrupted(data: Path, save_dir: Path, *words: str) -> None:
    """Train 8 updates, and lose what came after the checkpoint of the fifth."""
    train_here(data, save_dir, *BASE, *words, "--max-update=8", "--save-interval-updates=5")
    shutil.copy(save_dir / "checkpoint_1_5.pt", save_dir / "checkpoint_last.pt")


def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    tiny_data: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_here(tiny_data, whole, *BASE, *WATCHED, "--max-update=12", "--save-interval-updates=5")
    interrupted(tiny_data, killed, *WATCHED)
    file = killed / "monitor.jsonl"
    assert updates_of(killed) == list(range(1, 9))
    file.write_text(
        file.read_text(encoding="utf-8")[:-30], encoding="utf-8"
    )  # in the middle of a line
    train_here(tiny_data, killed, *BASE, *WATCHED, "--max-update=12")
    assert updates_of(killed) == list(range(1, 13))
    for one, other in zip(records_of(whole), records_of(killed), strict=True):
        assert one == other  # accumulated updates and bounds too, from the first theta_0
    assert "update_bound" in records_of(killed)[-1]["values"]


# Units


@pytest.mark.parametrize("precision", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_gradients_are_in_the_units_of_fairseqs_own_norm(
    precision: tuple[str, ...], tiny_data: Path, tmp_path: Path
) -> None:
    """All parameters lie in a layer or in the one table of words."""
    words = [*BASE, *precision, "--update-freq=2", "--max-update=3"]
    held = train_here(tiny_data, tmp_path, *words, *WATCHED)
    outside = [name for name in held["model"] if ".layers." not in name]
    assert {name for name in outside if not name.endswith(("version", "_float_tensor"))} == {
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "decoder.output_projection.weight",
    }
    for record in records_of(tmp_path):
        sides = record["values"]["gradient_norm"].values()
        norms = [norm for parts in sides for norm in parts["layer"]]
        norms.append(record["values"]["embedding_gradient_norm"]["decoder"])
        assert math.hypot(*norms) == pytest.approx(record["gnorm"], rel=1e-2 if precision else 1e-4)


# Where it is seen


def test_what_a_record_tells_stands_in_log_and_tensorboard_too(
    tiny_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [*BASE, *JSON, "--max-update=4", "--monitor-interval=2"]
    with caplog.at_level("INFO"):
        train_here(tiny_data, tmp_path, *words, f"--tensorboard-logdir={tmp_path / 'tb'}")
    lines = [r.getMessage() for r in caplog.records if r.name == "train_inner"]
    records = records_of(tmp_path)
    assert [record["update"] for record in records] == [2, 4]
    assert set(records[0]["values"]) == set(QUANTITIES)
    assert logged(lines, "lr")[1::2] == [pytest.approx(record["lr"]) for record in records]
    for name in ("loss", "nll_loss", "gnorm"):
        shown = [pytest.approx(value, abs=1e-3) for value in logged(lines, name)[1::2]]
        assert [record[name] for record in records] == shown, name
    events = EventAccumulator(str(tmp_path / "tb" / "monitor"), size_guidance={"scalars": 0})
    events.Reload()
    tags = set(events.Tags()["scalars"])
    for name in QUANTITIES:
        assert any(tag == name or tag.startswith(f"{name}/") for tag in tags), name
    points = [(point.step, point.value) for point in events.Scalars("model_update")]
    assert points == [
        (record["update"], pytest.approx(record["values"]["model_update"])) for record in records
    ]
    top = events.Scalars("gradient_norm/decoder/layer/0002")
    rows = [record["values"]["gradient_norm"]["decoder"]["layer"] for record in records]
    assert [point.value for point in top] == [pytest.approx(row[-1]) for row in rows]
