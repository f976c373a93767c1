"""Tables and figures of sweeps, with every number checked by hand."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.experiments import results
from fairseq_deepnet.experiments.report import against_depth, make
from fairseq_deepnet.experiments.tables import MEASURES, Table
from fairseq_deepnet.records import write_json
from tests.support.cells import SIGNATURE, write_cell, write_config, write_score


def report_of(folder: Path) -> list[Table]:
    return make(results.table_of(list(map(results.read_run, results.find_runs(folder)))))


def rows_of(folder: Path) -> list[dict[str, str]]:
    lines = pd.concat(table.entries for table in report_of(folder)).to_csv(float_format="%.6g")
    return pd.read_csv(io.StringIO(lines), dtype=str, keep_default_na=False).to_dict("records")


def text_of(folder: Path) -> str:
    return "\n".join(table.markdown() for table in report_of(folder))


def line_of(start: str, text: str) -> list[str]:
    """Return the cells of the first row with this start."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def entry(
    rows: list[dict[str, str]], row: str, column: str, table: str | None = None
) -> tuple[str, ...]:
    """Return our mean, the paper's number, the difference and the status."""
    (match,) = [
        item
        for item in rows
        if (item["row"], item["column"]) == (row, column) and table in (None, item["table"])
    ]
    return tuple(match[name] for name in ("ours", "paper", "delta", "status"))


@pytest.fixture
def table1(tmp_path: Path) -> Path:
    folder = tmp_path / "table1"
    for scheme, depth, status, bleu in (
        ("deepnorm", "6", "done", 27.25),
        ("deepnorm", "18", "done", 29.0),
        ("post-ln", "18", "diverged", None),
        ("post-ln", "50", "diverged", 0.25),
        ("pre-ln", "6", "failed", None),
        ("pre-ln", "18", "unfinished", 20.0),
        ("post-ln-init", "6", "done", 26.0),
    ):
        name = f"{scheme}_{depth}l"
        values = {"scheme": scheme, "depth": depth}
        write_cell(folder, name, "table1", values, status, bleu=bleu, reason=f"why {name}")
    return folder


def test_table_1_cell_by_cell(table1: Path) -> None:
    rows = rows_of(table1)
    assert len(rows) == 11 * 4
    assert entry(rows, "deepnorm", "6") == ("27.25", "27.8", "-0.55", "done")
    assert entry(rows, "deepnorm", "18") == ("29", "28.8", "0.2", "done")
    assert entry(rows, "deepnorm", "50") == ("", "29.0", "", "missing")
    assert entry(rows, "post-ln", "50") == ("", "diverged", "", "diverged")
    assert entry(rows, "pre-ln", "6") == ("", "27.0", "", "failed")
    assert entry(rows, "pre-ln", "18") == ("", "28.1", "", "unfinished")
    assert entry(rows, "post-ln-init", "6") == ("26", "", "", "done")
    text = text_of(table1)
    assert line_of("scheme", text)[:2] == ["scheme", "depth 6"]
    assert line_of("DeepNet", text)[1:] == ["27.25 [27.8]", "29.00 [28.8]", "- [29.0]", "- [28.9]"]
    post_ln = ["- [28.1]", "diverged [diverged]", "diverged [diverged]", "- [diverged]"]
    assert line_of("Vanilla Post-LN", text)[1:] == post_ln
    scored = "scored, deepnorm_18l, deepnorm_6l, post-ln-init_6l, post-ln_50l"
    assert f"{scored}: {SIGNATURE}, test set, 1,000 sentences, beam 5" in text
    assert "in brackets: arXiv 2203.00555, table 1: tokenised BLEU" in text
    assert "pre-ln_6l: why pre-ln_6l" in text
    assert "deepnorm_6l: why" not in text
    # BLEU on tokens replaces sacreBLEU, as in the paper
    more = {"bleu_tokenised": 28.0, "bleu_tokenised_signature": "multi-bleu"}
    write_score(table1 / "deepnorm_6l", 27.25, **more)
    assert entry(rows_of(table1), "deepnorm", "6") == ("28", "27.8", "0.2", "done")
    assert "scored, deepnorm_6l: multi-bleu, test set" in text_of(table1)


def test_a_row_describes_the_last_attempt_and_the_fallbacks(tmp_path: Path) -> None:
    options = {"max_tokens": 100, "update_freq": "4"}
    run = write_cell(tmp_path, "a", "other", {"size": "1"}, options=options, train={9: 3.0})
    log = (run / "train.log").read_text(encoding="utf-8")
    slow = log.replace('"ups": "4"', '"ups": "0.02", "wps": "15.2", "wpb": "1000"')
    (run / "train.log").write_text(log.replace("1,234,567", "999") + slow, encoding="utf-8")
    (run / "fallback.json").write_text('{"history": [{"change": "lr*0.5"}]}', encoding="utf-8")
    row = results.read_run(run).row()
    assert (row["tokens"], row["parameters"], row["precision"]) == (400, 1234567, None)
    assert row["seconds_per_update"] == pytest.approx(1000 / 15.2)
    assert "a: ; trained with the fallbacks lr*0.5" in text_of(tmp_path)
    write_json(run / "environment.json", {"batch": "3,200 tokens per update = 400 tokens x 8"})
    assert results.read_run(run).row()["tokens"] == 3200


def test_figure_7_reads_validation_losses_at_the_paper_s_updates(tmp_path: Path) -> None:
    losses = {5000: 4.30, 7000: 4.2, 10000: 4.0, 20000: 3.95, 30000: 3.9}
    both = [
        {"panel": "lr", "values": {"lr": "1.5e-3"}, "seed": 1},
        {"panel": "batch", "values": {"batch": "128"}, "seed": 1},
    ]
    write_cell(tmp_path, "lr1.5e-3", "fig7", {}, places=both, losses=losses)
    write_cell(tmp_path, "width512", "fig7", {"width": "512"}, panel="width", losses={2: 9.75})
    assert "valid_loss: validation loss (last, or at the update shown)," in text_of(tmp_path)
    rows = rows_of(tmp_path)
    assert entry(rows, "1.5e-3", "5000") == ("4.3", "4.14", "0.16", "done")
    assert entry(rows, "1.5e-3", "30000") == ("3.9", "3.89", "0.01", "done")
    assert entry(rows, "128", "5000") == ("4.3", "4.15", "0.15", "done")
    assert entry(rows, "5e-4", "10000") == ("", "4.1", "", "missing")
    # the last update of a shorter run has its own column
    assert entry(rows, "512", "5000") == ("", "4.49", "", "done")
    assert entry(rows, "512", "2") == ("9.75", "", "", "done")
    assert {row["table"] for row in rows} == {"fig7-lr", "fig7-batch", "fig7-width"}


def test_table_2_shows_averages_and_figure_8_fits_the_law(tmp_path: Path) -> None:
    name = "scores/test.checkpoint_best.beam5.lenpen1"
    # the law of depth excludes runs that diverged
    for depth, shift, status in (("12", 0, "done"), ("1000", 6, "done"), ("200", -19, "diverged")):
        run = write_cell(tmp_path, depth, "table2", {"depth": depth}, status, score=name)
        (run / name).mkdir(parents=True)
        summary = {"x-en": 28.0 + shift, "en-x": 22.0 + shift, "average": 25.0 + shift}
        summary |= {"directions": 5, "expected": 6, "lines": 2500, "beam": 5, "lenpen": 1.0}
        summary |= {"split": "test", "missing": ["en-cs"]}
        (run / name / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    rows = rows_of(tmp_path)
    assert entry(rows, "12", "x-en", "table2") == ("28", "", "", "done")
    assert entry(rows, "12", "average", "fig8") == ("25", "25.25", "-0.25", "done")
    assert entry(rows, "1000", "average", "table2") == ("31", "32.1", "-1.1", "done")
    assert entry(rows, "baseline-12", "average") == ("", "24.5", "", "missing")
    # two points: A = (31 - 25) / (ln 1000 - ln 12), B = 25 - A ln 12
    a = 6 / math.log(1000 / 12)
    text = text_of(tmp_path)
    assert f"ours, average: A = {a:.2f}, B = {25 - a * math.log(12):.2f} (2 points" in text
    assert "layers): A = 1.59, B = 21.92 (5 points" in text
    assert "2,500 sentences in 5 of 6 directions, INCOMPLETE (BLEU: mean over the trained" in text
    assert "read off the paper's plot" in text


def cell(
    folder: Path, scheme: str, depth: int, nll: float, status: str = "done", **more: Any
) -> Path:
    """Write a cell of an unpublished sweep; `more` overrides arguments of `write_cell`."""
    values = more.pop("values", {"scheme": scheme, "depth": str(depth)})
    more = {"losses": {100: nll + 2, 200: nll + 1.5}} | more
    name = more.pop("name", f"{scheme}_{depth}l.seed{more.get('seed', 1)}")
    return write_cell(folder, name, more.pop("sweep", "own.yaml"), values, status, **more)


def test_failed_and_unfinished_seeds_are_marked_and_excluded_from_means(tmp_path: Path) -> None:
    for seed, nll in ((1, 7.0), (2, 8.0), (3, 10.0)):
        cell(tmp_path, "deepnorm", 6, nll, seed=seed)
    cell(tmp_path, "deepnorm", 6, 9.5, "diverged", seed=4, reason="diverged: the loss rose")
    cell(tmp_path, "deepnorm", 18, 7.4, "unfinished")
    hidden = cell(tmp_path, "pre-ln", 18, 9.0, "diverged")
    hidden.rename(hidden.with_name(".pre-ln_18l.diverged1"))
    cell(tmp_path, "pre-ln", 18, 7.25)
    cell(tmp_path, "rezero", 6, 7.0, "failed")
    cell(tmp_path, "rezero", 18, math.nan, "diverged")
    cell(tmp_path, "rezero", 18, 7.0, "failed", seed=2)
    text = text_of(tmp_path)
    # mean 25/3; sample deviation: the root of (16/9 + 1/9 + 25/9) / 2
    assert line_of("deepnorm", text)[1:] == ["8.33 ±1.53 (1 of 4 diverged)", "-"]
    assert line_of("pre-ln", text)[1:] == ["-", "7.25"]
    assert line_of("rezero", text)[1:] == ["crashed", "crashed and diverged"]
    assert "deepnorm_6l.seed4: diverged: the loss rose" in text
    rows = rows_of(tmp_path)
    first = rows[0]
    assert (first["ours"], first["seeds"], first["status"]) == ("8.33333", "3", "diverged")
    assert float(first["deviation"]) == pytest.approx(math.sqrt(42 / 9 / 2), abs=1e-5)
    assert first["runs"].split() == [f"deepnorm_6l.seed{seed}" for seed in range(1, 5)]
    assert entry(rows, "deepnorm", "18") == ("", "", "", "unfinished")
    assert entry(rows, "pre-ln", "6") == ("", "", "", "missing")
    assert entry(rows, "rezero", "18") == ("", "", "", "failed")


def test_scores_from_outside_the_sweep_are_reported_but_not_included(tmp_path: Path) -> None:
    write_score(cell(tmp_path, "deepnorm", 6, 7.0), 31.25)
    cell(tmp_path, "pre-ln", 6, 7.0, bleu=20.0)
    text = text_of(tmp_path)
    assert "not included: scores of deepnorm_6l.seed1 from outside the sweep; repeat" in text
    assert line_of("pre-ln", text.partition(": bleu")[2])[1:] == ["20.00"]
    assert "31.25" not in text


def test_notes_distinguish_revisions_precisions_and_texts_at_one_path(tmp_path: Path) -> None:
    for seed, digest, option in ((1, "a", "--fp16-init-scale 8"), (2, "b", "--bf16 --lr 1")):
        run = cell(tmp_path, "deepnorm", 6, 7.0, seed=seed, bleu=20.0)
        write_score(run, 20.0, request={"texts": [digest]})
        (run / "command.txt").write_text(f"# now\nfairseq-train {option}\n", encoding="utf-8")
        facts = {"data": {"text_sha256": {"train.en": digest}}, "git": f"{digest * 40}+changes"}
        write_json(run / "environment.json", facts)
    text = text_of(tmp_path)
    assert set(re.findall(r"test set \(text (\w+)\)", text)) == {"ca978112", "3e23e816"}
    assert len(set(re.findall(r"data/none \(text (\w+)\)", text))) == 2
    assert " precision bf16, fp32; " in text
    assert "; code commit aaaaaaa+changes, commit bbbbbbb+changes\n" in text


def test_panels_with_the_same_factors_are_one_table_and_a_shared_run_counts_once(
    tmp_path: Path,
) -> None:
    cell(tmp_path, "deepnorm", 6, 7.5)
    cell(tmp_path, "deepnorm", 100, 7.0, panel="deepest")
    place = {"values": {"scheme": "deepnorm", "depth": "18"}, "seed": 1}
    both = [{"panel": "main", **place}, {"panel": "deepest", **place}]
    cell(tmp_path, "deepnorm", 18, 7.25, places=both)
    assert line_of("deepnorm", text_of(tmp_path))[1:] == ["7.50", "7.25", "7.00"]
    assert [row["seeds"] for row in rows_of(tmp_path)] == ["1", "1", "1"]


def test_panels_that_differ_in_options_are_separate_tables(tmp_path: Path) -> None:
    cell(tmp_path, "post-ln", 6, 7.0)
    cell(tmp_path, "post-ln", 6, 9.0, panel="stock", name="post-ln-stock_6l")
    assert {(row["ours"], row["seeds"]) for row in rows_of(tmp_path)} == {("7", "1"), ("9", "1")}


def test_runs_with_the_same_seed_are_not_averaged(tmp_path: Path) -> None:
    cell(tmp_path / "a", "post-ln", 6, 7.0)
    cell(tmp_path / "b", "post-ln", 6, 9.0)
    with pytest.raises(ValueError, match="the same scheme, depth and seed; report their folders"):
        make(results.table_of(results.read_runs([tmp_path / "a", tmp_path / "b"])))


def test_further_factors_split_tables_and_do_not_count_as_seeds(tmp_path: Path) -> None:
    for eps, nll in (("1e-8", 7.5), ("1e-4", 6.5)):
        values = {"depth": "6", "lr": "1e-3", "scheme": "deepnorm", "eps": eps}
        cell(tmp_path, "deepnorm", 6, nll, values=values, name=f"a{eps}")
    assert [table.title for table in report_of(tmp_path)] == [
        "A comparison, scheme deepnorm, eps 1e-4: valid_nll",
        "A comparison, scheme deepnorm, eps 1e-8: valid_nll",
    ]
    assert [row["ours"] for row in rows_of(tmp_path)] == ["6.5", "7.5"]


def test_a_single_factor_has_a_column_for_each_measure(tmp_path: Path) -> None:
    train = dict(zip(range(10, 110, 10), [9.0] * 5 + [8.0, 7.0, 7.5, 7.5, 7.5], strict=True))
    values = {"scheme": "deepnorm"}
    cell(tmp_path, "deepnorm", 6, 7.0, values=values, train=train, bleu=29.25)
    text = text_of(tmp_path)
    # nll: 1.5 below; training: (8 + 7 + 3 * 7.5) / 5; 4 updates per second
    assert line_of("scheme", text)[1:] == list(MEASURES)
    assert line_of("deepnorm", text)[1:] == ["29.25", "8.50", "7.00", "7.50", "0.25"]


@pytest.mark.parametrize("factor", ["depth", "shape", "updates"])
def test_a_factor_may_have_the_name_of_a_column(tmp_path: Path, factor: str) -> None:
    cell(tmp_path, "deepnorm", 6, 7.0, values={factor: "7"})
    (table,) = make(results.table_of(results.read_runs([tmp_path, *tmp_path.iterdir()])))
    assert set(table.entries["row"]) == {"7"}
    assert set(table.entries["runs"]) == {"deepnorm_6l.seed1"}  # once
    assert not table.by_depth()  # measures have different units


def write_trial(
    folder: Path, depth: int, lr: str, losses: list[float], bleu: float, **more: Any
) -> None:
    """Write a cell of the sweep `depth` with a learning rate and validation losses."""
    panel, status = more.pop("panel", "law"), more.pop("status", "done")
    seed = more.pop("seed", 1)
    name = f"{panel}_{depth}_{lr}" + (f".seed{seed}" if seed > 1 else "")
    values = {"scheme": "deepnorm", "depth": str(depth)} | ({"lr": lr} if panel == "law" else {})
    form = {"losses": dict(enumerate(losses, 1)), "bleu": bleu, "panel": panel, "sweep": "depth"}
    form |= {"name": name, "seed": seed, "options": {"lr": lr, "adam_eps": "1e-8"} | more}
    cell(folder, "deepnorm", depth, 0.0, status, values=values, **form)


def test_the_best_options_by_last_validation_loss_are_shown(tmp_path: Path) -> None:
    write_trial(tmp_path, 6, "1e-3", [4.3], 26.0)
    write_trial(tmp_path, 6, "2e-3", [3.6], 30.0)
    write_trial(tmp_path, 6, "4e-3", [3.7], 31.0)  # a better test score does not count
    write_trial(tmp_path, 18, "1e-3", [3.9], 27.0)
    write_trial(tmp_path, 18, "2e-3", [3.0, 4.2], 29.0)  # an earlier, lower loss does not count
    write_trial(tmp_path, 18, "4e-3", [3.5], 1.0, status="diverged")
    write_trial(tmp_path, 18, "5e-3", [3.4], 25.0)  # nor does one of two seeds
    write_trial(tmp_path, 18, "5e-3", [4.6], 25.0, seed=2)
    write_trial(tmp_path, 50, "1e-3", [4.1], 25.0)
    write_trial(tmp_path, 50, "1e-3", [4.0], 24.0, panel="norms", freeze_norms="both")
    rows = rows_of(tmp_path)
    best = [entry(rows, "deepnorm", depth, "depth")[0] for depth in ("6", "18", "50")]
    assert best == ["30", "27", "24"]
    chosen = "options of the lowest last validation loss: law_18_1e-3, norms_50_1e-3, law_6_2e-3"
    assert chosen in text_of(tmp_path)


def drawn(folder: Path) -> dict[str, Any]:
    """Return a sweep's figures by name."""
    return {table.name: against_depth(table) for table in report_of(folder)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a sweep of four schemes, of which Post-LN diverges as it becomes deeper."""
    cells: list[tuple[str, int, int, float, str]] = [
        *(("deepnorm", depth, 1, 7.5, "done") for depth in (6, 18, 50)),
        *(("post-ln", 6, seed, 7.6 + seed / 10, "done") for seed in (1, 2)),
        ("post-ln", 18, 1, 7.8, "done"),
        ("post-ln", 18, 2, 8.4, "diverged"),
        ("post-ln", 50, 1, 40.0, "diverged"),
        ("post-ln", 50, 2, math.nan, "failed"),
        ("pre-ln", 6, 1, 7.4, "done"),
        ("rezero", 6, 1, 7.3, "done"),
    ]
    for scheme, depth, seed, nll, status in cells:
        cell(tmp_path, scheme, depth, nll, status, seed=seed)
    return tmp_path


def labels(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_depth_has_a_panel_per_group_and_a_line_per_scheme(folder: Path) -> None:
    figure = drawn(folder)["valid_nll"]
    assert {axes.get_title(): labels(axes) for axes in figure.axes} == {
        "Post-LN": ["deepnorm", "post-ln", "failed"],
        "no LN": ["rezero"],
        "Pre-LN": ["pre-ln"],
    }
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["6", "18", "50"]
    assert figure.get_suptitle() == "A comparison: valid_nll"


def test_error_bars_show_deviations_and_crosses_mark_failed_runs(folder: Path) -> None:
    axes = drawn(folder)["valid_nll"].axes[0]
    deepnorm, post_ln = axes.containers
    assert list(deepnorm.lines[0].get_ydata()) == [7.5, 7.5, 7.5]
    heights = list(post_ln.lines[0].get_ydata())
    # the mean of 7.7 and 7.8; the seed that did not diverge; no value
    assert heights == pytest.approx([7.75, 7.8, math.nan], nan_ok=True)
    bars = post_ln.lines[2][0].get_segments()
    deviation = math.sqrt(2 * 0.05**2)
    assert bars[0][:, 1].tolist() == pytest.approx([7.75 - deviation, 7.75 + deviation])
    crosses = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "x"]
    assert crosses == [18, 50]
    assert axes.get_ylim()[1] < 8.4


def test_the_paper_s_values_are_dotted_beside_ours_and_a_law_is_dashed(tmp_path: Path) -> None:
    for depth in (6, 18, 50):
        values = {"scheme": "deepnorm", "depth": str(depth)}
        name = f"deepnorm_{depth}l"
        write_cell(tmp_path / "table1", name, "table1", values, bleu=28.0)
        write_cell(tmp_path / "depth", name, "depth", values, panel="law", bleu=28.0)
    (axes,) = drawn(tmp_path / "table1")["table1"].axes
    (theirs,) = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert list(theirs.get_ydata()) == [27.8, 28.8, 29.0, 28.9]
    assert labels(axes) == ["DeepNet", "the paper's"]
    # a depth without a run does not interrupt the line
    assert list(axes.containers[0].lines[0].get_ydata()) == [28.0, 28.0, 28.0]
    (axes,) = drawn(tmp_path / "depth")["depth"].axes
    (law,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(law.get_xdata()) == [6, 50]
    assert list(law.get_ydata()) == pytest.approx([28, 28])


def test_results_csv_replaces_its_run_folders(
    table1: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [results.read_run(run) for run in results.find_runs(table1)]
    results.table_of(runs).to_csv(tmp_path / "results.csv", index=False)
    printed = []
    for target in (table1, tmp_path / "results.csv"):
        assert cli.main(["report", str(target), f"--out={tmp_path / 'new'}"]) == 0
        files = [tmp_path / "new" / f"report.{suffix}" for suffix in ("md", "csv")]
        printed.append((capsys.readouterr().out, *(path.read_text("utf-8") for path in files)))
        assert printed[-1][1].startswith(printed[-1][0])
    assert printed[0] == printed[1]


def test_bad_input_is_one_line(
    table1: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    write_config(plain)
    (table1 / "deepnorm_6l" / "result.json").write_text('{"status', encoding="utf-8")
    (table1 / "post-ln_18l" / "result.json").write_text('{"status": "fine"}', encoding="utf-8")
    (tmp_path / "report.csv").write_text("table,row\n", encoding="utf-8")
    for folder, message in (
        (table1 / "none", "is not a run folder and contains none"),
        (plain, "none of these runs is a cell of a sweep"),
        (table1, "deepnorm_6l/result.json is damaged: it is not JSON"),
        (table1 / "post-ln_18l", "result.json has the unknown status 'fine'; remove it to run"),
        (tmp_path / "report.csv", "in a sweep's folder, only results.csv can be read"),
    ):
        assert cli.main(["report", str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
