"""The paper's analysis figures from artificial runs: points, tables and images."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.experiments import paper
from fairseq_deepnet.experiments.analysis import OWN_NAMES, UPDATES, Plot, make, window
from fairseq_deepnet.experiments.grid import expand, load_sweep
from fairseq_deepnet.experiments.results import read_runs
from fairseq_deepnet.monitoring import records
from tests.support.cells import write_cell
from tests.support.shell import Refused


def by_layer(*values: float) -> dict[str, Any]:
    """Return a quantity for every part of both sides, with doubled values for the encoder."""
    parts = ("layer", "self_attn", "encoder_attn", "ffn")
    return {
        "decoder": {part: list(values) for part in parts},
        "encoder": {part: [2 * v for v in values] for part in parts if part != "encoder_attn"},
    }


def write_run(
    folder: Path, cell: str, sweep: str, values: dict[str, str], updates: int = 3, **options: Any
) -> Path:
    """Write a cell with the measurements of updates u = 1, 2, ...

    The model update is u / 10. Layers 1, 2 and 3 have gradients u, 2u and 3u, and LayerNorm inputs
    20 + u, 21 + u and 22 + u.
    """
    seed = options.pop("seed", 1)
    factor = options.pop("factor", 1.0)
    name = cell if seed == 1 else f"{cell}.seed{seed}"
    settings = {
        "encoder_layers": 3,
        "decoder_layers": 3,
        "max_update": updates,
        "lr": 5e-4,
    } | options
    run = write_cell(
        folder, name, sweep, values, options=settings, seed=seed, losses={10: 9.0, 20: 8.0}
    )
    for update in range(1, updates + 1):
        values_ = {
            "model_update": factor * update / 10,
            "gradient_norm": by_layer(*(factor * update * layer for layer in (1, 2, 3))),
            "layer_norm_input": by_layer(*(19 + update + layer for layer in (1, 2, 3))),
        }
        for side in values_["layer_norm_input"].values():
            side["ffn"] = [10 * value for value in side["ffn"]]
        records.append(run / records.NAME, {"update": update, "loss": 9.0, "values": values_})
    return run


@pytest.fixture
def fig4(tmp_path: Path) -> Path:
    for cell in ("post-ln_no-warmup", "post-ln_warmup", "post-ln-init_warmup"):
        scheme = cell.rpartition("_")[0]
        write_run(tmp_path / "fig4", cell, "fig4", {"scheme": scheme})
    return tmp_path / "fig4"


def panels_of(figure: str, folder: Path, updates: str = "1-2") -> dict[str, Plot]:
    plots = make(figure, read_runs([folder]), window(updates))
    return {plot.name: plot for plot in plots}


def points(panel: Plot, key: str) -> dict[float, float | None]:
    frame = panel.frame[panel.frame["line"] == key].dropna(subset=["ours"])
    return dict(zip(frame["x"], frame["ours"], strict=True))


def test_updates_and_epochs_are_counted_from_zero(fig4: Path) -> None:
    panel = panels_of("fig4", fig4)["fig4a"]
    assert points(panel, "post-ln_warmup") == pytest.approx({0: 0, 1: 0.1, 2: 0.2, 3: 0.3})
    assert points(panels_of("fig3c", fig4)["fig3c"], "post-ln_warmup") == {0: 9.0, 1: 8.0}


def test_layer_norm_inputs_belong_to_the_iteration_before_their_update(fig4: Path) -> None:
    panels = panels_of("fig4", fig4)
    # update 1: decoder 21, 22, 23 and encoder twice that: the mean is 33
    assert points(panels["fig4c"], "post-ln_warmup") == pytest.approx({0: 33, 1: 34.5, 2: 36})
    assert points(panels["fig4b"], "post-ln_warmup") == pytest.approx({0: 330, 1: 345, 2: 360})


def test_gradients_of_decoder_layers_are_averaged_over_the_requested_updates(fig4: Path) -> None:
    panel = panels_of("fig4", fig4, "2-9")["fig4d"]
    assert points(panel, "post-ln_no-warmup") == pytest.approx({1: 2.5, 2: 5, 3: 7.5})
    assert "mean of updates 2 to 3" in panel.title  # the last measured update


def test_figure_3a_has_only_runs_with_warm_up_and_the_top_six_layers(tmp_path: Path) -> None:
    folder = tmp_path / "fig4"
    for cell in ("post-ln_warmup", "post-ln_no-warmup"):
        run = write_run(folder, cell, "fig4", {"scheme": "post-ln"}, decoder_layers=18)
        deep = {"gradient_norm": by_layer(*range(1, 19))}
        (run / records.NAME).unlink()
        records.append(run / records.NAME, {"update": 1, "values": deep})
    (panel,) = panels_of("fig3a", folder).values()
    assert [key for key, *_ in panel.lines()] == ["post-ln_warmup"]
    assert points(panel, "post-ln_warmup") == {float(n): float(n) for n in range(13, 19)}


def test_figure_3b_has_the_last_decoder_layer_at_each_depth(tmp_path: Path) -> None:
    for depth in (24, 6):
        values = {"scheme": "post-ln", "depth": str(depth)}
        write_run(tmp_path / "r", f"post-ln_{depth}l", "fig3b", values, decoder_layers=depth)
    (panel,) = panels_of("fig3b", tmp_path / "r", "2").values()
    assert points(panel, "post-ln") == {6: 6.0, 24: 6.0}  # update 2, layer 3
    assert panel.columns == [6, 24]


def test_figure_5_averages_over_seeds(tmp_path: Path) -> None:
    for seed, factor in ((1, 1.0), (2, 3.0), (3, 8.0)):
        for depth in (6, 100):
            values = {"scheme": "deepnorm", "depth": str(depth)}
            more = {"decoder_layers": depth, "seed": seed, "factor": factor}
            write_run(tmp_path / "r", f"deepnorm_{depth}l", "fig5", values, **more)
    panels = panels_of("fig5", tmp_path / "r", "2")
    assert points(panels["fig5"], "deepnorm")[6] == pytest.approx(0.8)
    row = panels["fig5"].frame.set_index("x").loc[6]
    assert (row["seeds"], row["lowest"], row["highest"]) == pytest.approx((3, 0.2, 1.6))


def test_a_run_that_ended_within_the_updates_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for depth, updates in ((6, 5), (18, 2)):
        values = {"scheme": "deepnorm", "depth": str(depth)}
        write_run(tmp_path, f"deepnorm_{depth}l", "fig5", values, updates)
    panels_of("fig5", tmp_path, "1-5")
    assert capsys.readouterr().err.endswith("deepnorm_18l recorded 2 of the 5 updates\n")


def test_a_missing_quantity_is_an_error_with_the_command_that_records_it(tmp_path: Path) -> None:
    write_cell(tmp_path / "r", "post-ln_6l", "fig5", {"scheme": "post-ln", "depth": "6"})
    with pytest.raises(ValueError, match=r"fig5: none .* `deepnet sweep fig5`, or .* --updates"):
        panels_of("fig5", tmp_path / "r")


def test_the_command_prints_ours_above_the_paper_s_and_writes_csv_and_image(
    fig4: Path, tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert "fig4d" in refused("analysis", "fig4", fig4, "--out", out)  # without updates 26-30
    assert "5-1 contains no update" in refused("analysis", "fig4", fig4, "--updates", "5-1")
    words = ["analysis", "fig4", str(fig4), "--out", str(out), "--updates", "1"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:8]] for line in printed.splitlines()]
    assert ["Post-LN, warm-up", "ours", "0", "0.1", "0.2", "0.3", "-"] in rows
    assert ["", "paper", "≈0", "-", "-", "-", "≈0.55"] in rows
    assert "paper fig4a: digitised (≈), figure 4(a)" in printed
    assert (out / "fig4.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((out / "fig4.csv").open(encoding="utf-8")))
    here = [row for row in rows if (row["panel"], row["line"]) == ("fig4a", "post-ln_warmup")]
    assert [row["paper"] for row in here if row["x"] in ("0", "4")] == ["0", "0.55"]
    assert next(row for row in here if row["x"] == "2")["ours"] == "0.2"


@pytest.mark.parametrize("name", ["fig3b", "fig3c", "fig4", "fig5"])
def test_a_sweep_s_cells_are_the_rows_of_its_figure_and_record_enough_updates(name: str) -> None:
    sweep = load_sweep(name)
    cells = expand(sweep)
    figure = {"fig4": "fig4a"}.get(name, name)
    keys = {
        cell.name if name in ("fig3c", "fig4") else cell.name.rpartition("_")[0] for cell in cells
    }
    assert set(paper.table(figure).rows) <= keys <= set(paper.table(figure).rows) | set(OWN_NAMES)
    for cell in cells:
        options = cell.resolve().options
        assert (cell.train.get("PRECISION"), str(options["lr"])) == (
            None if name == "fig3c" else "fp32",
            "5e-4",
        )
        assert name == "fig3c" or window(UPDATES[name])[-1] <= options["max-update"]
