"""Run folders as the paper's tables: every number checked by hand."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.experiments.report import make
from tests.support.cells import SIGNATURE, write_cell, write_config, write_log, write_score

Rows = list[dict[str, str]]


def rows_of(*folders: Path, sweep: str | None = None) -> Rows:
    return list(csv.DictReader(io.StringIO("".join(make(folders, sweep).csv))))


def entry(rows: Rows, row: str, column: str, table: str | None = None) -> dict[str, str]:
    (found,) = [
        item
        for item in rows
        if (item["row"], item["column"]) == (row, column) and table in (None, item["table"])
    ]
    return found


def numbers(item: dict[str, str]) -> tuple[str, str, str, str]:
    return item["ours"], item["paper"], item["delta"], item["status"]


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
    assert numbers(entry(rows, "deepnorm", "50")) == ("", "29", "", "missing")
    assert numbers(entry(rows, "post-ln", "18")) == ("", "diverged", "", "diverged")
    assert numbers(entry(rows, "post-ln", "50")) == ("0.25", "diverged", "", "diverged")
    assert numbers(entry(rows, "pre-ln", "6")) == ("", "27", "", "failed")
    assert numbers(entry(rows, "pre-ln", "18")) == ("", "28.1", "", "unfinished")
    assert numbers(entry(rows, "post-ln-init", "6")) == ("26", "", "", "done")
    assert numbers(entry(rows, "r-fixup", "50")) == ("", "27.7", "", "missing")
    assert len(rows) == 11 * 4
    assert entry(rows, "deepnorm", "6")["runs"] == "deepnorm_6l"


def test_table_1_on_a_terminal_and_in_markdown(table1: Path) -> None:
    report = make([table1])
    (text,), (markdown,) = report.text, report.markdown
    (line,) = [line for line in text.splitlines() if line.startswith("DeepNet")]
    assert line.split() == [
        *("DeepNet", "Deep", "27.2", "27.8", "-0.6", "29.0", "28.8", "+0.2"),
        *("-", "29.0", "-", "-", "28.9", "-"),
    ]
    (line,) = [line for line in markdown.splitlines() if line.startswith("| Vanilla Post-LN")]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        *("Vanilla Post-LN", "Post", "-", "28.1", "-", "diverged", "diverged", "-"),
        *("diverged (0.2)", "diverged", "-", "-", "diverged", "-"),
    ]
    (line,) = [line for line in text.splitlines() if line.startswith("Vanilla Pre-LN")]
    assert line.split()[3] == "crashed"
    rule = markdown.splitlines()[3]
    assert re.fullmatch(r"\|:-+\|:-+(\|-+:){12}\|", rule), rule
    for heading in ("6L-6L", "18L-18L", "50L-50L", "100L-100L"):
        assert heading in text
    assert f"ours: sacreBLEU (detokenised) {SIGNATURE}, test set, 1,000 sentences, beam 5" in text
    assert "100,000 updates, data/none" in text
    assert "paper: exact, arXiv 2203.00555, table 1: tokenised BLEU" in text
    assert "pre-ln_6l: why pre-ln_6l" in text
    assert "deepnorm_6l: why" not in text


def test_scores_of_another_kind_are_told_apart_below_the_table(table1: Path) -> None:
    run = table1 / "deepnorm_6l"
    write_score(run, 27.25, bleu_tokenised=28.0, bleu_tokenised_signature="multi-bleu")
    report = make([table1])
    assert numbers(entry(rows_of(table1), "deepnorm", "6")) == ("28", "27.8", "0.2", "done")
    assert "ours, deepnorm_6l: tokenised BLEU multi-bleu, test set" in report.text[0]
    assert "ours, deepnorm_18l, post-ln-init_6l, post-ln_50l: sacreBLEU" in report.text[0]


def test_seeds_are_averaged_and_their_deviation_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "table1"
    for seed, bleu in ((1, 27.0), (2, 28.0), (3, 30.0)):
        values = {"scheme": "deepnorm", "depth": "6"}
        write_cell(folder, f"deepnorm_6l.seed{seed}", "table1", values, bleu=bleu, seed=seed)
    item = entry(rows_of(folder), "deepnorm", "6")
    # mean 85 / 3; squared deviations 16/9 + 1/9 + 25/9 = 42/9, over 2, root
    assert float(item["ours"]) == pytest.approx(85 / 3, abs=1e-4)
    assert float(item["deviation"]) == pytest.approx(math.sqrt(42 / 9 / 2), abs=1e-5)
    assert item["seeds"] == "3"
    assert "28.3 ±1.5" in make([folder]).text[0]


def test_figure_6_has_depths_as_rows_and_its_three_groups(tmp_path: Path) -> None:
    folder = tmp_path / "fig6"
    values = {"scheme": "pre-ln", "depth": "30"}
    write_cell(folder, "pre-ln_30l", "fig6", values, bleu=28.0)
    rows = rows_of(folder)
    assert numbers(entry(rows, "30", "pre-ln")) == ("28", "28.2", "-0.2", "done")
    assert entry(rows, "30", "pre-ln")["part"] == "Pre-LN"
    assert entry(rows, "100", "rezero")["paper"] == "27.8"
    text = make([folder]).text[0]
    assert [part for part in ("Post-LN\n", "no LN\n", "Pre-LN\n") if part in text] == [
        *("Post-LN\n", "no LN\n", "Pre-LN\n"),
    ]
    assert "≈28.2" in text
    assert "≈: read off the paper's plot" in text


def test_figure_7_reads_validation_losses_at_the_paper_s_updates(tmp_path: Path) -> None:
    folder = tmp_path / "fig7"
    losses = {5000: 4.30, 7000: 4.2, 10000: 4.0, 20000: 3.95, 30000: 3.9}
    shared = write_cell(folder, "lr1.5e-3", "fig7", {"lr": "1.5e-3"}, panel="lr", losses=losses)
    record = json.loads((shared / "sweep.json").read_text(encoding="utf-8"))
    record["places"].append({"panel": "batch", "values": {"batch": "128"}, "seed": 1})
    (shared / "sweep.json").write_text(json.dumps(record), encoding="utf-8")
    write_cell(folder, "width512", "fig7", {"width": "512"}, panel="width", losses={2: 9.75})
    rows = rows_of(folder)
    assert numbers(entry(rows, "1.5e-3", "5000")) == ("4.3", "4.14", "0.16", "done")
    assert numbers(entry(rows, "1.5e-3", "30000")) == ("3.9", "3.89", "0.01", "done")
    assert numbers(entry(rows, "128", "5000")) == ("4.3", "4.15", "0.15", "done")
    assert numbers(entry(rows, "5e-4", "10000")) == ("", "4.1", "", "missing")
    # a shorter run has its last loss in a column of its own
    assert numbers(entry(rows, "512", "5000")) == ("", "4.49", "", "done")
    assert numbers(entry(rows, "512", "last")) == ("9.75", "", "", "done")
    (line,) = [line for line in make([folder]).text[2].splitlines() if line.startswith("512-2048")]
    assert line.split()[-4:] == ["-", "≈3.98", "-", "9.75"]
    assert {row["table"] for row in rows} == {"fig7-lr", "fig7-batch", "fig7-width"}
    assert "last update" not in make([folder]).text[0]


def write_directions(run: Path, bleus: dict[str, tuple[float, bool]]) -> None:
    folder = run / "scores" / "test.checkpoint_best.beam5.lenpen1"
    folder.mkdir(parents=True)
    for direction, (bleu, zero_shot) in bleus.items():
        content = {"direction": direction, "bleu": bleu, "chrf": 40.0, "bleu_signature": SIGNATURE}
        content |= {"zero_shot": zero_shot, "lines": 500}
        content["request"] = {"split": "test", "beam": 5, "lenpen": 1.0}
        (folder / f"{direction}.json").write_text(json.dumps(content), encoding="utf-8")


def test_table_2_averages_directions_and_figure_8_fits_the_law(tmp_path: Path) -> None:
    folder = tmp_path / "table2"
    # what has diverged is no point of the law
    for depth, shift, status in (
        ("12", 0.0, "done"),
        ("1000", 6.0, "done"),
        ("200", -19.0, "diverged"),
    ):
        run = write_cell(folder, f"depth{depth}", "table2", {"depth": depth}, status)
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
    text = make([folder]).text[1]
    assert f"ours   A = {a:.2f}, B = {25 - a * math.log(12):.2f} (2 points" in text
    assert "paper  A = 1.59, B = 21.92 (5 points" in text
    assert "2,500 sentences in 5 directions (BLEU: mean over the trained ones), beam 5" in text
    assert "beam 5, lenpen 1.0, 100,000 updates" in text
    assert "≈25.25" in text
    lines = make([folder]).text[0].splitlines()
    order = [line.split("  ")[0] for line in lines[4:10]]
    assert order[0] == "Baseline, 12 layers (133M)"
    assert order[3:] == ["12 layers", "DeepNet, 200 layers (863M)", "DeepNet, 1000 layers (3.8B)"]


def test_one_depth_is_too_few_for_the_law(tmp_path: Path) -> None:
    run = write_cell(tmp_path / "table2", "depth12", "table2", {"depth": "12"})
    write_directions(run, {"de-en": (30.0, False)})
    assert "ours   needs two depths" in make([tmp_path / "table2"]).text[1]


def test_a_multilingual_score_that_lacks_directions_is_marked(tmp_path: Path) -> None:
    run = write_cell(tmp_path / "table2", "depth12", "table2", {"depth": "12"})
    write_directions(run, {"de-en": (30.0, False)})
    summary = run / "scores" / "test.checkpoint_best.beam5.lenpen1" / "summary.json"
    summary.write_text(json.dumps({"expected": 12}), encoding="utf-8")
    assert "500 sentences in 1 directions of 12, INCOMPLETE" in make([tmp_path / "table2"]).text[0]


def test_runs_of_no_sweep_are_compared_line_by_line(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for run, depth, losses in (
        (first, 18, {100: 4.5, 200: 4.25, 300: 4.4}),
        (second, 6, {100: 5.0}),
    ):
        write_config(
            run,
            encoder_layers=depth,
            decoder_layers=depth,
            residual_scheme="pre-ln",
            warmup_updates=0,
        )
        write_log(run, losses)
    write_score(first, 36.0113, updates=300)
    (first / "done").touch()
    rows = rows_of(first, second)
    assert list(rows[0].values()) == [
        *("first", "18L-18L pre-ln", "1234567", "300", "4.250", "2.750", "36.01", "50.00"),
        *("done", SIGNATURE),
    ]
    assert list(rows[1].values())[3:9] == ["100", "5.000", "3.500", "", "", "unfinished"]
    text = make([first, second]).text[0]
    assert "second: stopped at update 100" in text
    assert f"BLEU: sacreBLEU (detokenised) {SIGNATURE}" in text


def test_a_run_of_one_s_own_is_placed_into_a_sweep_by_its_settings(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    write_config(run, encoder_layers=18, decoder_layers=18, residual_scheme="deepnorm", lr="1e-3")
    write_log(run, {100: 4.0})
    write_score(run, 28.0)
    rows = rows_of(run, sweep="table1")
    assert entry(rows, "deepnorm", "18")["ours"] == "28"
    write_config(run, encoder_layers=18, decoder_layers=6, residual_scheme="deepnorm")
    with pytest.raises(ValueError, match="mine has no place in table1: its settings are none"):
        make([run], "table1")


def test_the_places_of_a_run_of_one_s_own_follow_all_that_a_panel_fixes(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    fixed = {"encoder_layers": 18, "decoder_layers": 18, "residual_scheme": "deepnorm"}
    write_config(run, **fixed, lr="5e-4")
    write_log(run, {30000: 4.0})
    rows = rows_of(run, sweep="fig7")
    assert entry(rows, "5e-4", "30000")["ours"] == "4"
    write_config(run, **(fixed | {"residual_scheme": "pre-ln"}), lr="5e-4")
    with pytest.raises(ValueError, match="no place in fig7"):
        make([run], "fig7")


def test_the_command_prints_tables_and_writes_the_files(
    table1: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "new" / "table.md", tmp_path / "table.csv"]
    words = ["report", str(table1), "--markdown", str(files[0]), "--csv", str(files[1])]
    assert cli.main(words) == 0
    assert "DeepNet" in capsys.readouterr().out
    assert files[0].read_text(encoding="utf-8").startswith("### WMT-17 English-German")
    assert files[1].read_text(encoding="utf-8").startswith("table,part,row,column,ours,")
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("none", "there is no folder"), ("empty", "is no run folder, and holds none")],
)
def test_what_is_no_run_is_refused(
    tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


def test_a_score_by_another_engine_than_fairseq_says_so(tmp_path: Path) -> None:
    for name, facts in (("a", {}), ("b", {"engine": "ctranslate2", "quantization": "int8"})):
        write_config(tmp_path / name, arch=name)
        write_log(tmp_path / name, {10: 4.0})
        write_score(tmp_path / name, 30.0, **facts)
    (text,) = make([tmp_path / "a", tmp_path / "b"]).text
    assert [line for line in text.splitlines() if "decoded by ctranslate2 int8" in line] == [
        line for line in text.splitlines() if line.startswith("BLEU, b:")
    ]
