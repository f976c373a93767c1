"""Training curves: what is read from fairseq's log, and the image that is drawn."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import pytest

from fairseq_deepnet.divergence.events import Event, Finding, Kind
from fairseq_deepnet.tools.plotting import images, plot
from fairseq_deepnet.tools.plotting.runs import LOGGED, Curves, Grid, Run, read_metrics
from fairseq_deepnet.tools.plotting.series import scale_of

HEAD = "2024-05-01 12:00:00 | INFO | "


def line(kind: str, update: int, loss: float | str) -> str:
    prefix = "valid_" if kind == "valid" else ""
    record = {
        f"{prefix}loss": str(loss),
        f"{prefix}nll_loss": "1.25",
        f"{prefix}num_updates": str(update),
    }
    return f"{HEAD}{kind} | {json.dumps(record)}\n"


def make_run(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "train.log").write_text(
        f"{HEAD}fairseq_cli.train | {{'_name': None}}\n" + "".join(lines), encoding="utf-8"
    )
    return folder


def read(run: Path, metric: str = "loss") -> Curves:
    return read_metrics(run, (metric,))[metric]


def draw(*words: str) -> int:
    parser = argparse.ArgumentParser()
    plot.add_arguments(parser)
    return plot.run(parser.parse_args(list(words)))


def test_train_and_valid_lines_are_read_and_others_are_not(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "a",
        line("train_inner", 20, 8.5),
        line("valid", 20, 8.25),
        line("train", 20, 99),
        line("train_inner", 40, 7.5),
    )
    found = read(run)
    assert found.train == [(20, 8.5), (40, 7.5)]
    assert found.valid == [(20, 8.25)]
    assert read(run, "nll_loss").train[0] == (20, 1.25)


def test_a_resumed_run_counts_once_and_a_line_cut_short_is_passed_over(tmp_path: Path) -> None:
    cut = line("train_inner", 60, 6)[:-20]
    run = make_run(
        tmp_path / "a", line("train_inner", 20, 9), cut + "}\n", line("train_inner", 20, 8)
    )
    assert read(run).train == [(20, 8.0)]


def test_what_a_run_gave_up_when_it_went_back_is_not_read(tmp_path: Path) -> None:
    given_up = [line("train_inner", u, u) for u in (100, 200, 300, 400)]
    given_up += [line("valid", u, u) for u in (400,)]
    again = [line("valid", 200, 7), line("train_inner", 250, 6), line("train_inner", 300, 5)]
    found = read(make_run(tmp_path / "a", *given_up, *again))
    assert found.train == [(100, 100.0), (200, 200.0), (250, 6.0), (300, 5.0)]
    assert found.valid == [(200, 7.0)]


def test_a_loss_that_is_not_finite_is_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", line("train_inner", 20, "nan"), line("train_inner", 40, "inf"))
    (_, first), (_, second) = read(run).train
    assert math.isnan(first)
    assert math.isinf(second)
    assert draw(str(run), "--out", str(tmp_path / "x.png")) == 0


def test_runs_are_drawn_into_a_png(tmp_path: Path) -> None:
    names = ("deepnorm", "post-ln")
    lines = (line("train_inner", 20, 9), line("train_inner", 40, 8), line("valid", 40, 8))
    runs = [str(make_run(tmp_path / n, *lines)) for n in names]
    out = tmp_path / "figures" / "curves.png"
    assert draw(*runs, "--out", str(out), "--title", "both") == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in out.parent.iterdir()] == ["curves.png"]


def test_axes_have_units_and_the_legend_names_the_runs(tmp_path: Path) -> None:
    points = Curves([(20, 9.0), (400, 8.0)], [(400, 8.5)])
    run = Run("mine", tmp_path, metrics={"loss": points})
    figure = images.draw([run], head="a title")
    (axes,) = figure.axes
    assert figure.get_suptitle() == "a title"
    assert axes.get_xscale() == "log"
    assert axes.get_ylabel() == LOGGED["loss"]
    assert "bits per token" in axes.get_ylabel()
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["mine, train", "mine, valid"]


def grid_of(values: list[list[float]], step: int = 10) -> Grid:
    array = np.array(values, dtype=np.float64)
    updates = step * np.arange(1, len(values) + 1)
    return Grid(updates, array, np.ones_like(array, dtype=bool))


def test_colours_are_logarithmic_where_values_span_a_decade() -> None:
    assert scale_of([np.array([0.1, 5.0])]).is_log
    assert not scale_of([np.array([1.0, 9.0])]).is_log
    assert not scale_of([np.array([-1.0, 100.0])]).is_log


def test_panels_share_one_scale_that_a_single_explosion_does_not_stretch() -> None:
    calm = np.linspace(1, 100, 1000)
    scale = scale_of([calm, np.array([1e30, math.inf, math.nan])])
    assert scale.high == pytest.approx(99, abs=1)
    assert scale.low == pytest.approx(2, abs=1)


def test_a_thinned_heat_map_keeps_the_updates_around_an_event() -> None:
    grid = grid_of([[1.0]] * 1000)
    event = Event(Finding(Kind.LOSS_SPIKE, 5003, ""), 5005, "", {}, "warn", 0)
    thinned = grid.thin(50, [event])
    assert len(thinned.updates) <= 55
    assert {10, 5000, 5010, 5020, 10000} <= set(thinned.updates.tolist())
    assert len(grid.thin(2000).updates) == 1000
