"""`deepnet plot`: what an image shows, what the page holds, and what is refused."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape
from plotly.offline import get_plotlyjs

from fairseq_deepnet import cli
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import QUANTITIES
from fairseq_deepnet.tools.plotting import images, page
from fairseq_deepnet.tools.plotting.runs import Grid, Run, read_runs
from tests.support.monitored import add_events, make_run
from tests.support.slow import slow_but


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    deep = make_run(folder / "deep", layers={"encoder": 3, "decoder": 4})
    broken = make_run(folder / "broken", range(5, 105, 5), growth=3.0, broken_from=60)
    event = {"update": 62, "kind": "not_finite", "started": 60, "cause": "lr"}
    add_events(broken, event, {**event, "update": 70, "ended": True})
    return read_runs([deep, broken])


def test_an_image_of_a_quantity_by_layer_has_a_heat_map_a_run_and_side(runs: list[Run]) -> None:
    figure = images.draw(runs, "gradient_norm")
    titles = [axes.get_title() for axes in figure.axes]
    for name in ("deep", "broken"):
        assert f"{name}, encoder" in titles
        assert f"{name}, decoder" in titles
    maps = [axes.collections[0] for axes in figure.axes if axes.get_title().startswith("deep")]
    others = [axes.collections[0] for axes in figure.axes if axes.get_title().startswith("broken")]
    assert len({(item.norm.vmin, item.norm.vmax) for item in maps + others}) == 1


@pytest.mark.parametrize(
    "show",
    slow_but(("lr", "model_update", "branch_norm"), images.SHOWN),
)
def test_everything_that_can_be_shown_is_drawn(runs: list[Run], tmp_path: Path, show: str) -> None:
    out = tmp_path / "x.png"
    folders = [str(run.folder) for run in runs]
    assert cli.main(["plot", *folders, "--show", show, "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_numbers_are_those_that_were_logged_and_measured(runs: list[Run], tmp_path: Path) -> None:
    out = tmp_path / "new" / "x.csv"
    folders = [str(run.folder) for run in runs]
    assert cli.main(["plot", *folders, "--show", "all", "--out", str(out)]) == 0
    with out.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    found = {tuple(row.values())[:-1]: float(row["value"]) for row in rows}
    assert len(found) == len(rows)
    wanted: dict[tuple[str, ...], float] = {}
    for run in runs:
        for record in records.read(run.folder / records.NAME):
            update, values = str(record["update"]), record["values"]
            key = (run.name, "model_update", "", "", "", update)
            wanted[key] = float(values["model_update"])
            for side, parts in values["gradient_norm"].items():
                for part, layers in parts.items():
                    for layer, value in enumerate(layers, 1):
                        key = (run.name, "gradient_norm", side, part, str(layer), update)
                        wanted[key] = float(value)
        log = (run.folder / "train.log").read_text(encoding="utf-8")
        for line in (line for line in log.splitlines() if "| valid |" in line):
            record = json.loads(line.split(" | ")[-1])
            key = (run.name, "nll_loss", "valid", "", "", record["valid_num_updates"])
            wanted[key] = float(record["valid_nll_loss"])
    assert {key[1] for key in wanted} == {"model_update", "gradient_norm", "nll_loss"}
    read = [found[key] for key in wanted]
    np.testing.assert_array_equal(read, list(wanted.values()))  # nan is nan


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--show", "lr", "--part", "ffn"], "--part ffn: --show lr has no parts"),
        (["--out", "x.html", "--show", "lr"], "--show and --part are for images"),
        (
            ["--out", "x.csv", "--show", "branch_norm", "--part", "nose"],
            "was measured of ffn, self_attn",
        ),
        (["--out", "x.txt"], "must end in .png"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(
    runs: list[Run], capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert cli.main(["plot", str(runs[0].folder), "--out", "x.png", *words]) == 2
    assert told in capsys.readouterr().err


def test_the_page_holds_each_quantity_with_unit_meaning_and_the_papers_figure(
    runs: list[Run],
) -> None:
    text = page.make(runs, "a <title>")
    assert "<h1>a &lt;title&gt;</h1>" in text
    assert "not finite: recovered" in text
    for name, quantity in QUANTITIES.items():
        assert f'id="figure-{name}"' in text
        assert quantity.unit in text
        assert escape(quantity.source) in text
        assert escape(quantity.meaning.partition("`")[0][1:]) in text
    assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="', text)  # it needs no network


def test_a_page_of_deep_and_long_runs_stays_small(runs: list[Run]) -> None:
    updates = np.arange(1, 1001)
    values = np.random.default_rng(1).lognormal(size=(1000, 100))
    long = Grid(updates, values, np.ones_like(values, dtype=bool))
    grids = {key: long if key.part else grid for key, grid in runs[0].grids.items()}
    text = page.make([Run("long", runs[0].folder, grids=grids)])
    assert len(grids) > 35
    assert len(text) - len(get_plotlyjs()) < 12e6


def test_a_name_cannot_end_the_script_that_holds_it(runs: list[Run]) -> None:
    name = "</script><img src=x onerror=fail(1)>"
    text = page.make([Run(name, runs[0].folder, runs[0].metrics)])
    assert name not in text
    assert "<img src=x" not in text
