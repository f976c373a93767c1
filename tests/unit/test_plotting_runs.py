"""What is read of a run folder, however it was left."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fairseq_deepnet.divergence.events import Event, Finding, Kind, read
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import QUANTITIES, Level
from fairseq_deepnet.tools.plotting.runs import GridKey, distinct_names, read_run, read_runs
from fairseq_deepnet.tools.scores import read_scores
from tests.support.monitored import add_events, add_score, make_run


def test_every_quantity_is_read_with_its_sides_and_layers(tmp_path: Path) -> None:
    (run,) = read_runs([make_run(tmp_path / "a", layers={"encoder": 3, "decoder": 5})])
    assert {key.quantity for key in run.grids} == set(QUANTITIES)
    for key, grid in run.grids.items():
        by_layer = QUANTITIES[key.quantity].level is Level.PART
        assert grid.layers == ({"encoder": 3, "decoder": 5}[key.side] if by_layer else 1)
        assert grid.updates.tolist() == list(range(10, 210, 10))
        assert grid.given.all()


def test_layers_are_counted_from_the_input(tmp_path: Path) -> None:
    def change(record: records.Record) -> None:
        record["values"]["gradient_norm"]["decoder"]["layer"] = [1.0, 2.0, 3.0]

    (run,) = read_runs([make_run(tmp_path / "a", [5], {"decoder": 3}, change=change)])
    grid = run.grids[GridKey("gradient_norm", "decoder", "layer")]
    assert grid.values.tolist() == [[1.0, 2.0, 3.0]]


def test_a_layer_left_out_is_no_number_and_nan_is_one_that_broke(tmp_path: Path) -> None:
    def change(record: records.Record) -> None:
        record["values"]["branch_norm"]["decoder"]["ffn"] = [None, math.nan, math.inf]

    (run,) = read_runs([make_run(tmp_path / "a", [5], {"decoder": 3}, change=change)])
    grid = run.grids[GridKey("branch_norm", "decoder", "ffn")]
    assert grid.given.tolist() == [[False, True, True]]
    assert np.isnan(grid.values[0, :2]).all()
    assert grid.values[0, 2] == math.inf


def test_a_run_that_was_not_monitored_has_its_log(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    (folder / records.NAME).unlink()
    run = read_run(folder, "a")
    assert not run.grids
    assert set(run.metrics) == {"loss", "nll_loss", "lr", "gnorm"}


def test_runs_of_one_name_are_told_apart_by_their_parents(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name) for name in ("seed1/deep", "seed2/deep", "seed2/plain")]
    assert distinct_names(paths) == ["seed1/deep", "seed2/deep", "seed2/plain"]
    assert distinct_names(paths[1:]) == ["deep", "plain"]


VANISHED = Finding(
    Kind.VANISHED, 2, "gradients are gone", {"decoder": (1, 13, 18)}, {"lowest": {"decoder": 1e-9}}
)
EVENT = Event(VANISHED, 12, "no warm-up", {"update": 1, "loss": 9.5}, "stop", 1)


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    add_events(tmp_path, EVENT.record(), {**EVENT.record(), "update": 40, "ended": True})
    first, second = read(tmp_path / "divergence.jsonl")
    assert first == EVENT
    assert (second.is_end, second.update, second.finding.started) == (True, 40, 2)
    assert second.finding.kind is Kind.VANISHED


def test_all_scores_of_a_run_are_read_and_a_broken_file_is_passed_over(tmp_path: Path) -> None:
    add_score(tmp_path, 31.25)
    (tmp_path / "scores" / "test.b.json").write_text('{"perplexity": 9.5}', encoding="utf-8")
    (tmp_path / "scores" / "test.c.json").write_text('{"bleu": ', encoding="utf-8")
    (tmp_path / "scores" / "test.d.txt").write_text("a hypothesis\n", encoding="utf-8")
    found = {score.name: score.values for score in read_scores(tmp_path)}
    assert found == {
        "test.checkpoint_best.beam5.lenpen1": {"bleu": 31.25, "chrf": 62.5},
        "test.b": {"perplexity": 9.5},
    }
