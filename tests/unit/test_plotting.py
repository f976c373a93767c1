"""`deepnet plot`: the contents of run folders, images and the page."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from plotly.offline import get_plotlyjs

from fairseq_deepnet import cli
from fairseq_deepnet.divergence.events import Event, Kind, read
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import QUANTITIES
from fairseq_deepnet.tools.plotting import images, page
from fairseq_deepnet.tools.plotting.runs import (
    LOGGED,
    Key,
    Run,
    Series,
    read_metrics,
    read_run,
    read_runs,
    scale_of,
)
from tests.support.shell import Refused

HEAD = "2024-05-01 12:00:00 | INFO | "


def make_run(
    folder: Path,
    updates: Sequence[int] = range(10, 210, 10),
    layers: dict[str, int] | None = None,
    broken_from: int = 10**9,
    change: Callable[[records.Record], object] = lambda record: None,
) -> Path:
    """Write train.log and monitor.jsonl, with nan from update `broken_from` on.

    `change` edits each record before it is written.
    """
    folder.mkdir(parents=True)
    layers = layers or {"encoder": 6, "decoder": 6}
    for update in updates:
        size = math.nan if update >= broken_from else 1 + update / 100
        stacks = {
            side: {part: [size * 3.0**layer for layer in range(depth)] for part in ("layer", "ffn")}
            for side, depth in layers.items()
        }
        levels = {"model": size, "side": dict.fromkeys(layers, size), "layer and part": stacks}
        values = {name: copy.deepcopy(levels[row.level]) for name, row in QUANTITIES.items()}
        record = {"update": update, "values": values, **dict.fromkeys(LOGGED, size)}
        change(record)
        records.append(folder / records.NAME, record)
    lines = [line(kind, update, 9) for update in updates for kind in ("train_inner", "valid")]
    (folder / "train.log").write_text("".join(lines), encoding="utf-8")
    return folder


def add_events(folder: Path, *events: dict[str, Any]) -> None:
    for event in events:
        records.append(folder / "divergence.jsonl", event)


def line(kind: str, update: int, loss: float | str) -> str:
    prefix = "valid_" if kind == "valid" else ""
    record = {f"{prefix}{name}": str(loss) for name in LOGGED}
    record[f"{prefix}num_updates"] = str(update)
    return f"{HEAD}{kind} | {json.dumps(record)}\n"


def test_the_log_is_read(tmp_path: Path) -> None:
    """Repeated updates are replaced, and points after a return to an earlier update dropped."""
    lines = [
        *(line("train_inner", update, update) for update in (100, 200, 300)),
        line("train", 300, 99),
        line("valid", 300, 300),
        line("valid", 400, 6)[:-20] + "}\n",
        line("valid", 200, 7),
        line("train_inner", 200, 8),
        line("train_inner", 250, "inf"),
    ]
    (tmp_path / "train.log").write_text("".join(lines), encoding="utf-8")
    assert read_metrics(tmp_path, ("loss",)) == {
        ("loss", "train"): [(100, 100.0), (200, 8.0), (250, math.inf)],
        ("loss", "valid"): [(200, 7.0)],
    }


def test_every_quantity_is_read_with_sides_and_layers(tmp_path: Path) -> None:
    (run,) = read_runs([make_run(tmp_path / "a", layers={"encoder": 3, "decoder": 5})])
    assert {key.quantity for key in run.series} == {*QUANTITIES, "loss", "nll_loss", "lr", "gnorm"}
    for key, series in run.series.items():
        by_layer = key.quantity in QUANTITIES and QUANTITIES[key.quantity].level == "layer and part"
        assert series.values.shape[1] == ({"encoder": 3, "decoder": 5}[key.side] if by_layer else 1)
        if key.quantity in QUANTITIES:
            assert series.updates.tolist() == list(range(10, 210, 10))
            assert np.isfinite(series.values).all()


def test_missing_values_are_nan_and_values_that_are_not_finite_are_inf(tmp_path: Path) -> None:
    def change(record: records.Record) -> None:
        record["values"]["branch_norm"]["decoder"]["ffn"] = [1.0, None, math.nan, -math.inf]

    (run,) = read_runs([make_run(tmp_path / "a", [5], {"decoder": 4}, change=change)])
    values = run.series[Key("branch_norm", "decoder", "ffn")].values
    np.testing.assert_array_equal(values, [[1.0, math.nan, math.inf, math.inf]])


def test_either_a_log_or_measurements_suffice(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name) for name in "ab"]
    (folders[0] / records.NAME).unlink()
    (folders[1] / "train.log").unlink()
    for folder in folders:
        assert len(read_run(folder, "a").series[Key("loss", "train")].updates) == 20
    (folders[0] / "train.log").unlink()
    with pytest.raises(ValueError, match=r"no train\.log and no monitor\.jsonl"):
        read_run(folders[0], "a")
    (folders[0] / "train.log").touch()
    with pytest.raises(ValueError, match="no progress lines"):
        read_run(folders[0], "a")


def test_runs_with_equal_names_are_distinguished_by_their_parents(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name, [5]) for name in ("seed1/deep", "seed2/deep", "seed2/plain")]
    assert [run.name for run in read_runs(paths)] == ["seed1/deep", "seed2/deep", "seed2/plain"]
    (tmp_path / "seed2" / "report.md").touch()  # a sweep's folder with runs and other files
    assert [run.name for run in read_runs(sorted(tmp_path.glob("seed2/*")))] == ["deep", "plain"]


def test_events_survive_writing_and_reading(tmp_path: Path) -> None:
    layers, values = {"decoder": (1, 13, 18)}, {"lowest": {"decoder": 1e-9}}
    good = {"update": 1, "loss": 9.5}
    event = Event(Kind.VANISHED, 2, "gone", layers, values, 12, "no warm-up", good, "stop", 1)
    record = dataclasses.asdict(event)
    add_events(tmp_path, record, {**record, "update": 40, "ended": True})
    first, second = read(tmp_path / "divergence.jsonl")
    assert first == event
    assert (second.ended, second.update, second.started) == (True, 40, 2)
    assert second.kind is Kind.VANISHED


def test_a_scale_is_logarithmic_over_a_decade_and_ignores_a_single_explosion() -> None:
    assert scale_of([np.array([0.1, 5.0])]).is_log
    assert not scale_of([np.array([1.0, 9.0])]).is_log
    assert not scale_of([np.array([-1.0, 100.0])]).is_log
    scale = scale_of([np.linspace(1, 100, 1000), np.array([1e30, math.inf, math.nan])])
    assert scale.high == pytest.approx(99, abs=1)
    assert scale.low == pytest.approx(2, abs=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    deep = make_run(folder / "deep", layers={"encoder": 3, "decoder": 4})
    broken = make_run(folder / "broken", range(5, 105, 5), broken_from=60)
    event = {"update": 62, "kind": "not_finite", "started": 60, "cause": "lr"}
    add_events(broken, event, {**event, "update": 70, "ended": True})
    return read_runs([deep, broken])


def test_an_image_has_a_title_units_and_run_names(runs: list[Run]) -> None:
    figure = images.draw(runs[:1], head="a title")
    (axes,) = figure.axes
    assert figure.get_suptitle() == "a title"
    assert axes.get_ylabel() == "training objective (bits per token)"
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["deep, train", "deep, valid"]


def test_an_image_by_layer_has_a_heat_map_per_run_and_side_with_one_scale(runs: list[Run]) -> None:
    *maps, _ = images.draw(runs, "gradient_norm").axes
    names = [f"{run}, {side}" for run in ("deep", "broken") for side in ("encoder", "decoder")]
    assert [axes.get_title() for axes in maps] == names
    scales = [axes.collections[0].norm for axes in maps]
    assert len({(norm.vmin, norm.vmax) for norm in scales}) == 1


@pytest.mark.parametrize("updates", [[4], [4, 6, 20]])
def test_the_axis_of_a_heat_map_covers_events_and_ends_at_the_last_measurement(
    tmp_path: Path, updates: list[int]
) -> None:
    (run,) = read_runs([make_run(tmp_path / "a", updates)])
    run.events.append(Event(Kind.VANISHED, 2))
    for axes in images.draw([run], "gradient_norm").axes[:2]:
        assert axes.get_xlim()[1] == updates[-1]
    for axis in page._layers([run], "gradient_norm", "layer", 60).select_xaxes():
        assert (axis.title.text, *axis.range) == ("updates", 2, updates[-1])


@pytest.mark.parametrize("show", ["lr", "model_update", "branch_norm"])
def test_an_image_is_written(runs: list[Run], tmp_path: Path, show: str) -> None:
    out = tmp_path / "new" / "x.png"
    folders = [str(run.folder) for run in runs]
    assert cli.main(["plot", *folders, "--show", show, "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in out.parent.iterdir()] == ["x.png"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "x.html", "--show", "lr"], "--show is only for images"),
        (["--out", "x.txt"], "must end in .png"),
    ],
)
def test_an_option_without_effect_is_refused(
    runs: list[Run], words: list[str], message: str, refused: Refused
) -> None:
    assert message in refused("plot", runs[0].folder, *words)


def test_the_page_shows_each_quantity_with_unit_meaning_and_source(runs: list[Run]) -> None:
    text = page.make(runs, "a <title>")
    assert "<h1>a &lt;title&gt;</h1>" in text
    assert "not finite: recovered" in text
    for name, quantity in QUANTITIES.items():
        assert f'id="{name}"' in text
        assert quantity.unit in text
        assert escape(quantity.source) in text
        assert escape(quantity.meaning.partition("`")[0][1:]) in text
    assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="', text)  # no network is needed


def test_a_page_of_a_long_deep_run_is_small_and_contains_the_updates_around_events(
    runs: list[Run],
) -> None:
    updates = np.arange(10, 10_010, 10)
    long = Series(updates, np.random.default_rng(1).lognormal(size=(1000, 100)))
    event = Event(Kind.LOSS_SPIKE, 5003, update=5005)
    thinned = page.thin(long, 50, [event]).updates.tolist()
    assert len(thinned) <= 55
    assert {10, 5000, 5010, 5020, 10000} <= set(thinned)
    series = {key: long if key.part else values for key, values in runs[0].series.items()}
    text = page.make([Run("long", runs[0].folder, series)])
    assert len(text) - len(get_plotlyjs()) < 12e6


def test_run_names_are_escaped(runs: list[Run]) -> None:
    name = "</script><img src=x onerror=fail(1)>"
    series = {key: values for key, values in runs[0].series.items() if key.quantity == "loss"}
    text = page.make([Run(name, runs[0].folder, series)])
    assert "<img src=x" not in text
