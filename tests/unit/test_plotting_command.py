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
from fairseq_deepnet.monitoring.quantities import QUANTITIES
from fairseq_deepnet.tools.plotting import images, page
from fairseq_deepnet.tools.plotting.runs import Grid, GridKey, Run, read_runs
from fairseq_deepnet.tools.plotting.series import lines_of
from fairseq_deepnet.tools.training.fallbacks import State
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


def test_a_part_is_chosen_by_name(runs: list[Run]) -> None:
    assert images.draw(runs, "branch_norm").get_suptitle().endswith(": feed-forward")
    chosen = images.draw(runs, "branch_norm", part="encoder_attn")
    assert chosen.get_suptitle().endswith(": cross-attention")
    with pytest.raises(ValueError, match="--part nose: branch_norm was measured of ffn"):
        images.draw(runs, "branch_norm", part="nose")


def test_the_event_of_a_run_is_marked(runs: list[Run]) -> None:
    axes = images.draw(runs, "model_update").axes[0]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "v"] == [60]


def test_the_legend_says_what_the_mark_of_an_event_is(runs: list[Run]) -> None:
    legend = images.draw(runs, "loss").axes[0].get_legend()
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts.count("broken, divergence watch: not finite") == 1


def test_a_bound_is_drawn_with_what_it_bounds(runs: list[Run]) -> None:
    labels = [line.label for line in lines_of(runs, "update_bound")]
    assert labels[:2] == ["deep", "deep, measured model_update"]


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


def test_numbers_are_of_what_is_shown_alone(runs: list[Run], tmp_path: Path) -> None:
    words = ["--show", "branch_norm", "--part", "ffn", "--out", str(tmp_path / "x.csv")]
    assert cli.main(["plot", str(runs[0].folder), *words]) == 0
    rows = list(csv.DictReader((tmp_path / "x.csv").open(encoding="utf-8")))
    assert {(row["quantity"], row["part"]) for row in rows} == {("branch_norm", "ffn")}
    assert {row["layer"] for row in rows if row["of"] == "decoder"} == {"1", "2", "3", "4"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--show", "lr", "--part", "ffn"], "--part ffn: --show lr has no parts"),
        (["--out", "x.html", "--show", "lr"], "--show and --part are for images"),
        (
            ["--out", "x.csv", "--show", "branch_norm", "--part", "nose"],
            "was measured of ffn, self_attn",
        ),
        (["--out", "x.txt"], "must end in one of .png"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(
    runs: list[Run], capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert cli.main(["plot", str(runs[0].folder), "--out", "x.png", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_quantity_that_was_not_measured_is_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "bare")
    (folder / "monitor.jsonl").unlink()
    out = str(tmp_path / "x.png")
    assert cli.main(["plot", str(folder), "--show", "model_update", "--out", out]) == 2
    assert "--monitor-interval N" in capsys.readouterr().err


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


def test_the_page_of_runs_without_records_names_the_remedy(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "bare")
    (folder / "monitor.jsonl").unlink()
    text = page.make(read_runs([folder]))
    assert "--monitor-interval" in text
    assert text.count('id="figure-') == 4


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


def test_runs_of_another_depth_and_with_one_stack_share_a_page(tmp_path: Path) -> None:
    layers: list[dict[str, int]] = [{"decoder": 2}, {"encoder": 4}, {"encoder": 3, "decoder": 7}]
    folders = [make_run(tmp_path / str(n), layers=item) for n, item in enumerate(layers)]
    runs = read_runs(folders)
    assert runs[2].grids[GridKey("gradient_norm", "decoder", "layer")].layers == 7
    assert "figure-gradient_norm" in page.make(runs)
    assert images.draw(runs, "gradient_norm").axes


def test_the_page_names_what_a_run_fell_back_to(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "recovered")
    assert "fell back to" not in page.overview(read_runs([folder]))[0]
    State(1, [{"changes": "lr*0.5 clip-norm=1"}]).write(folder)
    heads, (row,) = page.overview(read_runs([folder]))
    assert row[heads.index("fell back to")] == "lr*0.5 clip-norm=1"
