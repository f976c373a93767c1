"""Run folders as tables, the paper's and our own: every number checked by hand."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairseq_deepnet import cli, ended
from fairseq_deepnet.experiments import results
from fairseq_deepnet.experiments.report import Report, make
from fairseq_deepnet.experiments.tables import MEASURES
from fairseq_deepnet.tools.evaluation.directions import summarise
from fairseq_deepnet.tools.scores import read_directions
from tests.support.cells import SIGNATURE, write_cell, write_config, write_log, write_score

Rows = list[dict[str, Any]]
OPTIONS = {"max_update": 200, "lr": "1e-3", "max_tokens": 1000, "warmup_updates": 50}


def report_of(*folders: Path) -> Report:
    runs = [results.read_run(run) for folder in folders for run in results.find_runs(folder)]
    return make(results.table_of(runs))


def rows_of(*folders: Path) -> Rows:
    lines = pd.concat(report_of(*folders).entries).to_csv(float_format="%.6g")
    return pd.read_csv(io.StringIO(lines), dtype=str, keep_default_na=False).to_dict("records")


def text_of(*folders: Path) -> str:
    return "\n".join(report_of(*folders).texts)


def line_of(start: str, *folders: Path) -> list[str]:
    """Return the cells of the first row that starts with this."""
    lines = text_of(*folders).splitlines()
    line = next(line for line in lines if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def entry(rows: Rows, row: str, column: str, table: str | None = None) -> dict[str, Any]:
    (match,) = [
        item
        for item in rows
        if (item["row"], item["column"]) == (row, column) and table in (None, item["table"])
    ]
    return match


def numbers(item: dict[str, Any]) -> tuple[str, str, str, str]:
    return item["ours"], item["paper"], item["delta"], item["status"]


# The paper's tables.


@pytest.fixture
def table1(tmp_path: Path) -> Path:
    folder = tmp_path / "table1"
    for scheme, depth, status, bleu in (
        ("deepnorm", "6", "done", 27.25),
        ("deepnorm", "18", "done", 29.0),
        ("post-ln", "18", "diverged", None),
        ("post-ln", "50", "diverged", 0.25),
        ("pre-ln", "6", "failed", None),
        ("pre-ln", "18", "unfinished", None),
        ("post-ln-init", "6", "done", 26.0),
    ):
        name = f"{scheme}_{depth}l"
        values = {"scheme": scheme, "depth": depth}
        write_cell(folder, name, "table1", values, status, bleu=bleu, reason=f"why {name}")
    return folder


def test_table_1_cell_by_cell(table1: Path) -> None:
    rows = rows_of(table1)
    assert numbers(entry(rows, "deepnorm", "6")) == ("27.25", "27.8", "-0.55", "done")
    assert numbers(entry(rows, "deepnorm", "18")) == ("29", "28.8", "0.2", "done")
    assert numbers(entry(rows, "deepnorm", "50")) == ("", "29.0", "", "missing")
    assert numbers(entry(rows, "post-ln", "18")) == ("", "diverged", "", "diverged")
    assert numbers(entry(rows, "post-ln", "50")) == ("", "diverged", "", "diverged")
    assert numbers(entry(rows, "pre-ln", "6")) == ("", "27.0", "", "failed")
    assert numbers(entry(rows, "pre-ln", "18")) == ("", "28.1", "", "unfinished")
    assert numbers(entry(rows, "post-ln-init", "6")) == ("26", "", "", "done")
    assert numbers(entry(rows, "r-fixup", "50")) == ("", "27.7", "", "missing")
    assert len(rows) == 11 * 4
    assert entry(rows, "deepnorm", "6")["measure"] == "bleu"
    assert entry(rows, "deepnorm", "6")["runs"] == "deepnorm_6l"


def test_table_1_as_markdown(table1: Path) -> None:
    assert line_of("scheme", table1)[:2] == ["scheme", "depth 6"]
    assert line_of("DeepNet", table1)[1:] == ["27.2 [27.8]", "29.0 [28.8]", "- [29.0]", "- [28.9]"]
    post_ln = ["- [28.1]", "diverged [diverged]", "diverged [diverged]", "- [diverged]"]
    assert line_of("Vanilla Post-LN", table1)[1:] == post_ln
    text = text_of(table1)
    assert f"{SIGNATURE}, test set, 1,000 sentences, beam 5" in text
    assert "in brackets: arXiv 2203.00555, table 1: tokenised BLEU" in text
    assert "pre-ln_6l: why pre-ln_6l" in text
    assert "deepnorm_6l: why" not in text


def test_the_paper_s_kind_of_bleu_is_shown_where_a_score_has_it(table1: Path) -> None:
    run = table1 / "deepnorm_6l"
    write_score(run, 27.25, bleu_tokenised=28.0, bleu_tokenised_signature="multi-bleu")
    assert numbers(entry(rows_of(table1), "deepnorm", "6")) == ("28", "27.8", "0.2", "done")
    text = text_of(table1)
    assert "scored, deepnorm_6l: multi-bleu, test set" in text
    assert f"scored, deepnorm_18l, post-ln-init_6l, post-ln_50l: {SIGNATURE}" in text


def test_a_number_of_an_unfinished_run_is_in_no_table(tmp_path: Path) -> None:
    values = {"scheme": "deepnorm", "depth": "6"}
    write_cell(tmp_path / "fig7", "lr5e-4", "fig7", {"lr": "5e-4"}, "unfinished", panel="lr")
    rows = rows_of(tmp_path / "fig7")
    assert numbers(entry(rows, "5e-4", "100000")) == ("", "", "", "unfinished")
    run = write_cell(tmp_path / "table1", "deepnorm_6l", "table1", values, bleu=20.0)
    (run / "result.json").unlink()
    assert numbers(entry(rows_of(tmp_path / "table1"), "deepnorm", "6"))[0] == ""


def test_seeds_are_averaged_with_their_deviation(tmp_path: Path) -> None:
    folder = tmp_path / "table1"
    for seed, bleu in ((1, 27.0), (2, 28.0), (3, 30.0)):
        values = {"scheme": "deepnorm", "depth": "6"}
        write_cell(folder, f"deepnorm_6l.seed{seed}", "table1", values, bleu=bleu, seed=seed)
    item = entry(rows_of(folder), "deepnorm", "6")
    # mean 85 / 3; squared deviations 16/9 + 1/9 + 25/9 = 42/9, over 2, root
    assert float(item["ours"]) == pytest.approx(85 / 3, abs=1e-4)
    assert float(item["deviation"]) == pytest.approx(math.sqrt(42 / 9 / 2), abs=1e-5)
    assert item["seeds"] == "3"
    assert "28.3 ±1.5" in text_of(folder)


def test_figure_6_shows_digitised_values_as_such(tmp_path: Path) -> None:
    folder = tmp_path / "fig6"
    write_cell(folder, "pre-ln_30l", "fig6", {"scheme": "pre-ln", "depth": "30"}, bleu=28.0)
    rows = rows_of(folder)
    assert numbers(entry(rows, "pre-ln", "30")) == ("28", "28.2", "-0.2", "done")
    assert entry(rows, "rezero", "100")["paper"] == "27.8"
    assert "read off the paper's plot" in text_of(folder)


def test_figure_7_reads_validation_losses_at_the_paper_s_updates(tmp_path: Path) -> None:
    folder = tmp_path / "fig7"
    losses = {5000: 4.30, 7000: 4.2, 10000: 4.0, 20000: 3.95, 30000: 3.9}
    both = [
        {"panel": "lr", "values": {"lr": "1.5e-3"}, "seed": 1},
        {"panel": "batch", "values": {"batch": "128"}, "seed": 1},
    ]
    write_cell(folder, "lr1.5e-3", "fig7", {}, places=both, losses=losses)
    write_cell(folder, "width512", "fig7", {"width": "512"}, panel="width", losses={2: 9.75})
    rows = rows_of(folder)
    assert numbers(entry(rows, "1.5e-3", "5000")) == ("4.3", "4.14", "0.16", "done")
    assert numbers(entry(rows, "1.5e-3", "30000")) == ("3.9", "3.89", "0.01", "done")
    assert numbers(entry(rows, "128", "5000")) == ("4.3", "4.15", "0.15", "done")
    assert numbers(entry(rows, "5e-4", "10000")) == ("", "4.1", "", "missing")
    # the last update of a shorter run has its own column
    assert numbers(entry(rows, "512", "5000")) == ("", "4.49", "", "done")
    assert numbers(entry(rows, "512", "2")) == ("9.75", "", "", "done")
    assert {row["table"] for row in rows} == {"fig7-lr", "fig7-batch", "fig7-width"}


def write_directions(run: Path, bleus: dict[str, tuple[float, bool]]) -> None:
    folder = run / "scores" / "test.checkpoint_best.beam5.lenpen1"
    folder.mkdir(parents=True)
    for direction, (bleu, zero_shot) in bleus.items():
        content = {"direction": direction, "bleu": bleu, "chrf": 40.0, "bleu_signature": SIGNATURE}
        content |= {"zero_shot": zero_shot, "lines": 500}
        content |= {"split": "test", "beam": 5, "lenpen": 1.0}
        (folder / f"{direction}.json").write_text(json.dumps(content), encoding="utf-8")
    summarise(folder, read_directions(folder))


def test_table_2_averages_directions_and_figure_8_fits_the_law(tmp_path: Path) -> None:
    folder = tmp_path / "table2"
    place = "scores/test.checkpoint_best.beam5.lenpen1"
    # a run that diverged is no point of the law
    for depth, shift, status in (
        ("12", 0.0, "done"),
        ("1000", 6.0, "done"),
        ("200", -19.0, "diverged"),
    ):
        values = {"depth": depth}
        run = write_cell(folder, f"depth{depth}", "table2", values, status, score=place)
        scores = {"de-en": (30.0, False), "fr-en": (26.0, False), "en-de": (20.0, False)}
        scores |= {"en-fr": (24.0, False), "de-fr": (3.0, True)}
        write_directions(run, {key: (bleu + shift, zero) for key, (bleu, zero) in scores.items()})
    rows = rows_of(folder)
    # depth 12: X-En (30 + 26) / 2, En-X (20 + 24) / 2, average of all four; zero-shot is in neither
    assert numbers(entry(rows, "12", "x-en", "table2")) == ("28", "", "", "done")
    assert numbers(entry(rows, "12", "en-x", "table2")) == ("22", "", "", "done")
    assert numbers(entry(rows, "12", "average", "fig8")) == ("25", "25.25", "-0.25", "done")
    assert numbers(entry(rows, "1000", "x-en", "table2")) == ("34", "33.9", "0.1", "done")
    assert numbers(entry(rows, "1000", "average", "table2")) == ("31", "32.1", "-1.1", "done")
    assert numbers(entry(rows, "baseline-12", "average")) == ("", "24.5", "", "missing")
    # two points: A = (31 - 25) / (ln 1000 - ln 12), B = 25 - A ln 12
    a = 6 / math.log(1000 / 12)
    text = text_of(folder)
    assert f"ours, average: A = {a:.2f}, B = {25 - a * math.log(12):.2f} (2 points" in text
    assert "layers): A = 1.59, B = 21.92 (5 points" in text
    assert "2,500 sentences in 5 directions (BLEU: mean over the trained ones), beam 5" in text


# Our own tables.


class Sweep:
    """A sweep of our own, with cells that look as if they had been run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder / "runs", "own.yaml"

    def cell(self, scheme: str, depth: int, nll: float, status: str = "done", **more: Any) -> Path:
        seed = more.setdefault("seed", 1)
        values = more.pop("values", {"scheme": scheme, "depth": str(depth)})
        more.setdefault("losses", {100: nll + 2, 200: nll + 1.5})
        name = more.pop("name", f"{scheme}_{depth}l" + (f".seed{seed}" if seed > 1 else ""))
        options = OPTIONS | {"encoder_layers": depth, "decoder_layers": depth}
        options |= more.pop("options", {})
        return write_cell(self.folder, name, self.name, values, status, options=options, **more)

    def line(self, start: str) -> list[str]:
        return line_of(start, self.folder)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_a_seed_that_diverged_is_counted_and_left_out_of_the_mean(sweep: Sweep) -> None:
    sweep.cell("deepnorm", 6, 7.5)
    sweep.cell("deepnorm", 6, 7.6, seed=2)
    sweep.cell("deepnorm", 6, 9.5, "diverged", seed=3, reason="diverged: the loss rose")
    assert sweep.line("deepnorm") == ["deepnorm", "7.55 ±0.07 (1 of 3 diverged)"]
    (row,) = rows_of(sweep.folder)
    assert (row["ours"], row["seeds"], row["status"]) == ("7.55", "2", "diverged")
    assert row["runs"].split() == ["deepnorm_6l", "deepnorm_6l.seed2", "deepnorm_6l.seed3"]
    text = text_of(sweep.folder)
    assert "deepnorm_6l.seed3: diverged: the loss rose" in text


def test_where_all_seeds_failed_the_table_tells_how(sweep: Sweep) -> None:
    sweep.cell("pre-ln", 18, math.nan, "diverged")
    sweep.cell("rezero", 18, 7.0, "failed")
    sweep.cell("admin", 18, 8.0, "diverged")
    sweep.cell("admin", 18, math.nan, "failed", seed=2)
    assert sweep.line("pre-ln")[1:] == ["diverged"]
    assert sweep.line("rezero")[1:] == ["crashed"]
    assert sweep.line("admin")[1:] == ["crashed and diverged"]
    assert {row["ours"] for row in rows_of(sweep.folder)} == {""}


def test_a_run_that_was_tried_again_is_no_seed(sweep: Sweep) -> None:
    again = sweep.cell("deepnorm", 6, 9.0, "diverged")
    again.rename(again.with_name(".deepnorm_6l.diverged1"))
    sweep.cell("deepnorm", 6, 7.5)
    assert sweep.line("deepnorm") == ["deepnorm", "7.50"]


def test_a_cell_that_is_missing_or_unfinished_has_no_number(sweep: Sweep) -> None:
    sweep.cell("deepnorm", 6, 7.5)
    sweep.cell("deepnorm", 18, 7.4, "unfinished")
    sweep.cell("pre-ln", 18, 7.3)
    assert sweep.line("deepnorm") == ["deepnorm", "7.50", "-"]
    assert sweep.line("pre-ln") == ["pre-ln", "-", "7.30"]
    assert sweep.line("scheme")[1:] == ["depth 6", "depth 18"]
    rows = rows_of(sweep.folder)
    assert entry(rows, "pre-ln", "6")["status"] == "missing"
    assert entry(rows, "deepnorm", "18")["status"] == "unfinished"


def test_panels_with_the_same_factors_are_one_table_and_a_shared_run_counts_once(
    sweep: Sweep,
) -> None:
    sweep.cell("deepnorm", 6, 7.5)
    sweep.cell("deepnorm", 100, 7.0, panel="deepest")
    place = {"values": {"scheme": "deepnorm", "depth": "18"}, "seed": 1}
    both = [{"panel": "main", **place}, {"panel": "deepest", **place}]
    sweep.cell("deepnorm", 18, 7.25, places=both)
    assert sweep.line("deepnorm") == ["deepnorm", "7.50", "7.25", "7.00"]
    assert [row["seeds"] for row in rows_of(sweep.folder)] == ["1", "1", "1"]


def titles(folder: Path) -> list[str]:
    lines = text_of(folder).splitlines()
    return [line.removeprefix("### ") for line in lines if line.startswith("### ")]


def test_every_further_factor_splits_the_tables_instead_of_counting_as_a_seed(
    sweep: Sweep,
) -> None:
    for eps, nll in (("1e-8", 7.5), ("1e-4", 6.5)):
        values = {"depth": "6", "lr": "1e-3", "scheme": "deepnorm", "eps": eps}
        sweep.cell("deepnorm", 6, nll, values=values, name=f"a{eps}")
    assert titles(sweep.folder) == [
        "A comparison, scheme deepnorm, eps 1e-4: valid_nll",
        "A comparison, scheme deepnorm, eps 1e-8: valid_nll",
    ]
    assert [row["ours"] for row in rows_of(sweep.folder)] == ["6.5", "7.5"]


def test_a_single_factor_makes_a_column_for_each_measure(sweep: Sweep) -> None:
    sweep.name = "methods_6l"
    train = dict(zip(range(10, 110, 10), [9.0] * 5 + [8.0, 7.0, 7.5, 7.5, 7.5], strict=True))
    values = {"scheme": "deepnorm"}
    losses = {100: 8.0, 200: 8.5}
    sweep.cell("deepnorm", 6, 7.0, values=values, losses=losses, train=train, bleu=29.25)
    # nll: 1.5 below; training: (8 + 7 + 3 * 7.5) / 5; 4 updates per second
    assert sweep.line("scheme")[1:] == list(MEASURES)
    assert sweep.line("deepnorm")[1:] == ["29.2", "8.50", "7.00", "7.50", "0.25"]


def tried(sweep: Sweep, depth: int, lr: str, losses: list[float], bleu: float, **more: Any) -> None:
    """A run of the sweep depth at a learning rate, with its validation losses."""
    sweep.name = "depth"
    values = {"scheme": "deepnorm", "depth": str(depth), "lr": lr}
    panel, status = more.pop("panel", "law"), more.pop("status", "done")
    options = {"lr": lr, "adam_eps": "1e-8"} | more
    name = f"{panel}_{depth}_{lr}_{len(list(sweep.folder.glob('*')))}"
    sweep.cell(
        *("deepnorm", depth, 0.0, status),
        values=values if panel == "law" else {"scheme": "deepnorm", "depth": str(depth)},
        **{"losses": dict(enumerate(losses, 1)), "bleu": bleu, "name": name, "panel": panel},
        options=options,
    )


def best_bleu(sweep: Sweep, depth: int) -> str:
    return str(entry(rows_of(sweep.folder), "deepnorm", str(depth), "depth")["ours"])


def test_of_several_options_those_that_end_best_on_validation_are_shown(sweep: Sweep) -> None:
    tried(sweep, 6, "1e-3", [4.3], 26.0)
    tried(sweep, 6, "2e-3", [3.6], 30.0)
    tried(sweep, 6, "4e-3", [3.7], 31.0)  # better where it must not count
    tried(sweep, 18, "1e-3", [3.9], 27.0)
    tried(sweep, 18, "2e-3", [3.0, 4.2], 29.0)  # lower once, and higher at the end
    tried(sweep, 18, "4e-3", [3.5], 1.0, status="diverged")
    tried(sweep, 50, "1e-3", [4.1], 25.0)
    tried(sweep, 50, "1e-3", [4.0], 24.0, panel="norms", freeze_norms="both")
    assert [best_bleu(sweep, depth) for depth in (6, 18, 50)] == ["30", "27", "24"]
    text = text_of(sweep.folder)
    assert "lowest last validation loss: law_18_1e-3_3, norms_50_1e-3_7, law_6_2e-3_1" in text


def test_the_law_of_depth_is_fitted_to_each_row_with_the_paper_s_beside(sweep: Sweep) -> None:
    for depth in (6, 18, 100):  # 2 ln(d) + 3
        tried(sweep, depth, "1e-3", [4.0], 3 + 2 * math.log(depth))
    tried(sweep, 50, "1e-3", [9.0], 0.1, status="diverged")  # no point of the law
    text = text_of(sweep.folder)
    assert "deepnorm: A = 2.00, B = 3.00 (3 points, root mean square error 0.00)" in text
    # least squares by hand of the digitised points
    assert "the paper's figure 8, average (d: layers): A = 1.59, B = 21.92" in text


def test_results_csv_replaces_its_run_folders(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.cell("deepnorm", 6, 7.5, bleu=20.0)
    sweep.cell("pre-ln", 6, math.nan, "diverged", reason="diverged: nan")
    runs = [results.read_run(run) for run in results.find_runs(sweep.folder)]
    results.table_of(runs).to_csv(tmp_path / "results.csv", index=False)
    printed = []
    for target in (sweep.folder, tmp_path / "results.csv"):
        assert cli.main(["report", str(target)]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


# Runs of no sweep, and the command.


def test_runs_of_no_sweep_are_compared_line_by_line(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for run, depth, losses in (
        (first, 18, {50: math.nan, 100: 4.5, 200: 4.25, 300: 4.4}),
        (second, 6, {100: 5.0}),
    ):
        layers = {"encoder_layers": depth, "decoder_layers": depth}
        write_config(run, **layers, residual_scheme="pre-ln", warmup_updates=0)
        write_log(run, losses)
    write_score(first, 36.0113, updates=300)
    ended.write(first, ended.Why.COMPLETE, 300)
    text = text_of(first, second)
    # the lowest of the finite losses
    assert line_of("first", first, second)[1:] == [
        *("18L-18L", "pre-ln", "1234567", "300", "2.750", "36.011", "50"),
    ]
    assert "second: stopped at update 100" in text
    assert f"scored, first: {SIGNATURE}" in text


def test_a_run_of_no_sweep_has_its_default_score_or_the_one_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path / "run")
    write_log(tmp_path / "run", {100: 4.0})
    default = tmp_path / "run" / write_score(tmp_path / "run", 91.03)
    other = default.with_name("test.checkpoint_best.beam5.lenpen1.max-len-b3.json")
    default.rename(other)
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    assert f"--score chooses one of {other.stem}" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "run"), "--score", other.stem]) == 0
    assert "91.03" in capsys.readouterr().out


def test_one_csv_contains_all_sweeps(
    table1: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path / "mine")
    write_log(tmp_path / "mine", {100: 4.0})
    files = [tmp_path / "new" / "table.md", tmp_path / "table.csv"]
    words = [f"--markdown={files[0]}", f"--csv={files[1]}"]
    assert cli.main(["report", str(table1), str(tmp_path / "mine"), *words]) == 0
    assert capsys.readouterr().out == files[0].read_text(encoding="utf-8")
    assert set(pd.read_csv(files[1])["table"]) == {"table1"}


@pytest.mark.parametrize(
    ("name", "message"),
    [("none", "there is no folder"), ("empty", "is no run folder, and contains none")],
)
def test_what_is_no_run_is_refused(
    tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", ['{"status": ', '{"status": "fine"}', "[]"])
def test_a_damaged_record_is_one_line_with_its_remedy(
    sweep: Sweep, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sweep.cell("deepnorm", 6, 7.5)
    (run / "result.json").write_text(content, encoding="utf-8")
    assert cli.main(["report", str(sweep.folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "deepnorm_6l/result.json is damaged" in line
    assert "remove it to run the cell again" in line
