"""Tables of a sweep's own, over seeds, measures and panels: every number checked by hand."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.experiments.definition import load_sweep
from fairseq_deepnet.experiments.paper import fit
from fairseq_deepnet.experiments.report import make
from fairseq_deepnet.experiments.result_tables import Entry, Seed, build
from fairseq_deepnet.experiments.runs import Status, read_result
from tests.support.cells import write_cell

DEFINITION = """
title: A comparison
config: multi30k_tiny
cell: "{scheme}_{depth}l"
panels:
  main:
    factors:
      scheme: {set: residual-scheme, values: [post-ln, rezero, pre-ln, deepnorm]}
      depth: {set: [encoder-layers, decoder-layers], values: [6, 18]}
  deepest:
    factors:
      scheme: {set: residual-scheme, values: [deepnorm]}
      depth: {set: [encoder-layers, decoder-layers], values: [100]}
tables:
  - {rows: scheme, columns: depth, measure: valid_nll}
"""
OPTIONS = {"max_update": 200, "lr": "1e-3", "max_tokens": 1000, "warmup_updates": 50}


class Sweep:
    """A definition of our own, and cells that look as if they had been run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"
        self.file = folder / "own.yaml"
        self.file.write_text(DEFINITION, encoding="utf-8")

    def define(self, old: str, new: str) -> None:
        text = self.file.read_text(encoding="utf-8")
        assert old in text
        self.file.write_text(text.replace(old, new), encoding="utf-8")

    def cell(self, scheme: str, depth: int, nll: float, status: str = "done", **more: Any) -> Path:
        seed = more.pop("seed", 1)
        values = more.pop("values", {"scheme": scheme, "depth": str(depth)})
        more.setdefault("losses", {100: nll + 2, 200: nll + 1.5})
        return write_cell(
            self.folder,
            f"{scheme}_{depth}l" + (f".seed{seed}" if seed > 1 else ""),
            str(self.file),
            values,
            status,
            seed=seed,
            panel=more.pop("panel", "main"),
            options=OPTIONS | more.pop("options", {}),
            **more,
        )

    def text(self) -> str:
        return "\n".join(make([self.folder]).text)

    def line(self, start: str) -> list[str]:
        """The cells of the first row that begins so; two spaces or more part them."""
        found = next(line for line in self.text().splitlines() if line.startswith(start))
        return [word.strip() for word in found.split("  ") if word.strip()]

    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO("".join(make([self.folder]).csv))))


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_seeds_have_a_mean_and_a_spread(sweep: Sweep) -> None:
    for seed, nll in ((1, 7.5), (2, 7.6), (3, 7.9)):
        sweep.cell("deepnorm", 6, nll, seed=seed)
    # mean 23 / 3; squared deviations (1/6)^2 + (1/15)^2 + (7/30)^2 = 13/150, over 2, root
    assert sweep.line("deepnorm") == ["deepnorm", "Post-LN", "7.67 ±0.21"]
    (row,) = sweep.rows()
    assert float(row["ours"]) == pytest.approx(23 / 3, rel=1e-5)
    assert float(row["deviation"]) == pytest.approx(math.sqrt(13 / 300), rel=1e-4)
    assert (row["seeds"], row["diverged"], row["status"]) == ("3", "0", "done")
    meaning = "mean ±sample standard deviation over those runs of a cell that came through"
    assert f"{meaning}; 3 seeds were run" in sweep.text()


def test_a_seed_that_diverged_is_counted_and_left_out_of_the_mean(sweep: Sweep) -> None:
    sweep.cell("deepnorm", 6, 7.5)
    sweep.cell("deepnorm", 6, 7.6, seed=2)
    sweep.cell("deepnorm", 6, 9.5, "diverged", seed=3, reason="diverged: the training loss rose")
    assert sweep.line("deepnorm") == ["deepnorm", "Post-LN", "7.55 ±0.07 (1 of 3 diverged)"]
    (row,) = sweep.rows()
    assert (row["ours"], row["seeds"], row["diverged"]) == ("7.55", "2", "1")
    assert row["runs"].split() == ["deepnorm_6l", "deepnorm_6l.seed2", "deepnorm_6l.seed3"]
    assert "deepnorm_6l.seed3: diverged: the training loss rose" in sweep.text()


def test_where_all_seeds_diverged_the_table_says_so_and_what_they_reached(sweep: Sweep) -> None:
    for seed, nll in ((1, 8.25), (2, 8.75)):
        sweep.cell("post-ln", 18, nll, "diverged", seed=seed)
    sweep.cell("pre-ln", 18, math.nan, "diverged")
    sweep.cell("rezero", 18, math.inf, "failed")
    assert sweep.line("post-ln")[2] == "diverged (8.50 ±0.35)"
    assert sweep.line("pre-ln")[2] == "diverged"
    assert sweep.line("rezero")[2] == "crashed"


def test_where_all_seeds_ended_badly_in_different_ways_each_way_is_told(sweep: Sweep) -> None:
    sweep.cell("post-ln", 18, 9.0, "diverged")
    sweep.cell("post-ln", 18, math.nan, "failed", seed=2)
    sweep.cell("pre-ln", 18, 8.0, "diverged")
    sweep.cell("pre-ln", 18, 9.0, "diverged", seed=2)
    sweep.cell("pre-ln", 18, math.nan, "failed", seed=3)
    assert sweep.line("post-ln")[2] == "1 of 2 diverged (9.00), 1 of 2 crashed"
    assert sweep.line("pre-ln")[2] == "2 of 3 diverged (8.50 ±0.71), 1 of 3 crashed"


def test_a_run_that_was_tried_again_is_no_seed(sweep: Sweep) -> None:
    again = sweep.cell("deepnorm", 6, 9.0, "diverged")
    again.rename(again.with_name(".deepnorm_6l.diverged1"))
    sweep.cell("deepnorm", 6, 7.5)
    assert sweep.line("deepnorm") == ["deepnorm", "Post-LN", "7.50"]
    (row,) = sweep.rows()
    assert (row["runs"], row["diverged"]) == ("deepnorm_6l", "0")


def test_two_tables_of_one_name_are_refused(sweep: Sweep) -> None:
    table = "  - {rows: scheme, columns: depth, measure: valid_nll}\n"
    by_depth = "  - {rows: depth, columns: scheme, measure: valid_nll}\n"
    sweep.define(table, table + by_depth)
    with pytest.raises(ValueError, match="tables: two are called 'valid_nll': give one a `name`"):
        load_sweep(str(sweep.file))
    sweep.define("columns: scheme,", "columns: scheme, name: by_depth,")
    assert [layout.name for layout in load_sweep(str(sweep.file)).layouts] == [
        *("valid_nll", "by_depth"),
    ]


def test_crashes_are_counted_beside_divergence() -> None:
    ends = (Status.DONE, 2.0), (Status.FAILED, None), (Status.DIVERGED, 9.0)
    runs = [Seed("run", status, value) for status, value in ends]
    entry = Entry([*runs, Seed("again", Status.DIVERGED, None)])
    assert (entry.ours, entry.deviation) == (2.0, None)
    assert [entry.count(status) for status, _ in ends] == [1, 1, 2]
    assert not entry.all_bad
    assert Entry(runs[1:]).all_bad
    assert not Entry().all_bad


def test_a_cell_that_is_not_there_or_not_finished_has_no_number(sweep: Sweep) -> None:
    sweep.cell("deepnorm", 6, 7.5)
    sweep.cell("deepnorm", 18, 7.4, "unfinished")
    sweep.cell("pre-ln", 18, 7.3)
    assert sweep.line("deepnorm") == ["deepnorm", "Post-LN", "7.50", "-"]
    assert sweep.line("pre-ln") == ["pre-ln", "Pre-LN", "-", "7.30"]
    statuses = {(row["row"], row["column"]): row["status"] for row in sweep.rows()}
    assert statuses["pre-ln", "6"] == "missing"
    assert statuses["deepnorm", "18"] == "unfinished"


def test_panels_join_in_one_table_and_a_run_that_they_share_counts_once(sweep: Sweep) -> None:
    sweep.cell("deepnorm", 6, 7.5)
    sweep.cell("deepnorm", 100, 7.0, panel="deepest")
    place = {"values": {"scheme": "deepnorm", "depth": "18"}, "seed": 1}
    both = [{"panel": "main", **place}, {"panel": "deepest", **place}]
    sweep.cell("deepnorm", 18, 7.25, places=both)
    assert sweep.line("deepnorm") == ["deepnorm", "Post-LN", "7.50", "7.25", "7.00"]
    assert sweep.line("scheme")[2:] == ["6L-6L", "18L-18L", "100L-100L"]
    assert [row["seeds"] for row in sweep.rows()] == ["1", "1", "1"]


def test_the_law_of_depth_is_fitted_to_each_row_and_the_paper_s_stand_beside(sweep: Sweep) -> None:
    sweep.define("measure: valid_nll}", "measure: bleu, fit: {fig6: deepnorm, fig8: average}}")
    for seed, more in ((1, 0.5), (2, -0.5)):  # means lie on 2 ln(d) + 3 but for 18 layers
        sweep.cell("deepnorm", 6, 7.0, bleu=3 + 2 * math.log(6) + more, seed=seed)
    sweep.cell("deepnorm", 18, 7.0, bleu=3 + 2 * math.log(18))
    sweep.cell("deepnorm", 100, 7.0, bleu=3 + 2 * math.log(100), panel="deepest")
    sweep.cell("pre-ln", 6, 7.0, bleu=8.0)
    sweep.cell("pre-ln", 18, 7.0, bleu=7.0)
    sweep.cell("rezero", 6, 7.0, bleu=8.0)  # one depth has no law
    sweep.cell("post-ln", 6, 7.0, bleu=8.0)
    sweep.cell("post-ln", 18, 9.0, "diverged", bleu=0.1)
    text = sweep.text()
    assert "deepnorm: A = 2.00, B = 3.00 (3 points, root mean square error 0.00)" in text
    a = -1 / math.log(18 / 6)
    residuals = "residuals 6: +0.00, 18: +0.00"
    assert f"pre-ln: A = {a:.2f}, B = {8 - a * math.log(6):.2f} (2 points" in text
    assert residuals in text.replace("-0.00", "+0.00")
    assert "rezero: A" not in text
    assert "post-ln: A" not in text
    # least squares by hand of the digitised points: 0.72 and 28.44, 1.59 and 21.92
    assert "the paper's figure 6, deepnorm, IWSLT-14" in text
    assert "figure 8, average, OPUS-100, average test BLEU by depth: A = 1.59, B = 21.92" in text


def test_what_a_law_misses_is_told_for_each_depth() -> None:
    law = fit([(1.0, 0.0), (math.e, 3.0), (math.e**2, 0.0)])
    assert law is not None  # by symmetry flat, at the mean 1
    assert (law.a, law.b) == (pytest.approx(0), pytest.approx(1))
    assert [missed for _, missed in law.residuals] == [pytest.approx(x) for x in (-1, 2, -1)]
    assert law.error == pytest.approx(math.sqrt(2))


def test_schemes_stand_in_the_order_of_the_paper_s_groups(sweep: Sweep) -> None:
    for scheme in ("pre-ln", "rezero", "deepnorm", "post-ln"):
        sweep.cell(scheme, 6, 7.5)
    assert [row["row"] for row in sweep.rows()] == ["post-ln", "deepnorm", "rezero", "pre-ln"]


def test_a_table_may_have_a_column_for_each_measure(sweep: Sweep) -> None:
    measures = "[bleu, valid_loss, valid_nll, best_valid_nll, train_nll, seconds_per_update]"
    sweep.define("columns: depth, measure: valid_nll", f"columns: measure, measure: {measures}")
    losses = {100: 8.0, 200: 8.5}
    train = dict(zip(range(10, 110, 10), [9.0] * 5 + [8.0, 7.0, 7.5, 7.5, 7.5], strict=True))
    sweep.cell("deepnorm", 6, 7.0, losses=losses, train=train, bleu=29.25)
    # nll: 1.5 below; training: (8 + 7 + 3 * 7.5) / 5; 4 updates a second
    assert sweep.line("scheme")[2:] == [
        *("BLEU", "valid loss", "valid nll", "best valid nll", "train nll", "s/update"),
    ]
    assert sweep.line("deepnorm")[2:] == ["29.2", "8.50", "7.00", "6.50", "7.50", "0.25"]
    assert [row["measure"] for row in sweep.rows()][:2] == ["bleu", "valid_loss"]
    assert "best valid nll: lowest validation loss of the run" in sweep.text()
    assert "BLEU: sacreBLEU (detokenised)" in sweep.text()


def test_a_factor_may_have_a_table_for_each_of_its_values(sweep: Sweep) -> None:
    sweep.define("rows: scheme, columns", "rows: depth, each: scheme, columns")
    sweep.define("columns: depth", "columns: measure")
    sweep.cell("rezero", 6, 7.5)
    sweep.cell("deepnorm", 18, 7.25)
    tables = make([sweep.folder]).text
    titles = [text.splitlines()[0] for text in tables]
    assert titles == ["A comparison, scheme deepnorm", "A comparison, scheme rezero"]
    assert {row["table"] for row in sweep.rows()} == {"measures-rezero", "measures-deepnorm"}
    assert "7.50" not in tables[0]


def test_of_several_values_of_a_factor_the_best_on_validation_stands(sweep: Sweep) -> None:
    sweep.define(
        "values: [6, 18]}\n",
        "values: [6, 18]}\n      lr: {set: lr, values: [1e-3, 2e-3, 4e-3]}\n"
        "      norms: {set: freeze-norms, values: [none, both]}\n",
    )
    sweep.define("rows: scheme,", "panel: [main, deepest], best: [lr, norms], rows: scheme,")
    sweep.define("measure: valid_nll}", "measure: bleu}")

    def tried(
        depth: int, lr: str, nll: float, bleu: float, status: str = "done", norms: str = "none"
    ) -> None:
        values = {"scheme": "deepnorm", "depth": str(depth), "lr": lr, "norms": norms}
        run = sweep.cell("deepnorm", depth, nll, status, values=values, bleu=bleu)
        run.rename(run.with_name(f"{run.name}_lr{lr}_{norms}"))

    tried(6, "1e-3", 4.3, 26.0)
    tried(6, "2e-3", 3.6, 30.0)
    tried(6, "4e-3", 3.7, 31.0)  # better where it must not count
    tried(18, "1e-3", 4.1, 27.0)
    tried(18, "2e-3", 4.0, 1.0, "diverged")
    tried(18, "4e-3", 3.0, 28.0)
    tried(18, "1e-3", 4.05, 27.5, norms="both")
    # a rate is as good as the worst of its seeds, if that has no loss at all
    values = {"scheme": "deepnorm", "depth": "18", "lr": "4e-3", "norms": "none"}
    sweep.cell("deepnorm", 18, math.nan, "diverged", values=values, seed=2)
    other = sweep.cell("deepnorm", 100, 4.3, bleu=35.0, panel="deepest", options={"lr": "9e-3"})
    other.rename(other.with_name("of another panel, and no second seed"))
    sweep.cell("deepnorm", 100, 4.2, bleu=25.0, panel="deepest", options={"max_update": 20})
    assert sweep.line("deepnorm") == ["deepnorm", "Post-LN", "30.0", "27.5", "25.0"]
    # and what else the panels set
    assert (
        "deepnorm, depth 6: lr 2e-3 norms none max-update 200, 18: lr 1e-3 norms both max-update"
        " 200, 100: max-update 20\n"
    ) in sweep.text()


def test_notes_say_how_runs_were_trained_and_what_knowing_nothing_would_give(sweep: Sweep) -> None:
    sweep.cell("deepnorm", 6, 7.5, unigram_nll=8.3316)
    sweep.cell("deepnorm", 6, 7.5, seed=2, unigram_nll=8.3316)
    text = sweep.text()
    assert "has a nll of 8.33" in text
    assert (
        "trained: 200 updates of 1,000 tokens, learning rate 1e-3, warm-up 50, none, seeds 1, 2"
    ) in text


def test_a_table_without_a_number_is_left_out_but_for_the_first(sweep: Sweep) -> None:
    line = "  - {rows: scheme, columns: depth, measure: "
    sweep.define(f"{line}valid_nll}}", f"{line}valid_nll}}\n{line}bleu}}")
    sweep.cell("deepnorm", 6, 7.5)
    assert "BLEU" not in sweep.text()
    sweep.cell("deepnorm", 18, 7.5, bleu=3.0)
    assert sweep.text().count("A comparison: ") == 2


def test_a_sweep_without_tables_is_compared_line_by_line(sweep: Sweep) -> None:
    sweep.file.write_text(
        sweep.file.read_text(encoding="utf-8").partition("tables:")[0], encoding="utf-8"
    )
    sweep.cell("deepnorm", 6, 7.5)
    assert sweep.text().startswith("Runs side by side")


def test_a_run_of_one_s_own_is_placed_by_its_settings(sweep: Sweep, tmp_path: Path) -> None:
    from tests.support.cells import write_config, write_log

    options = {"encoder_layers": 18, "decoder_layers": 18, "residual_scheme": "rezero"}
    write_config(tmp_path / "mine", **options, warmup_updates=0)
    write_log(tmp_path / "mine", {100: 8.0})
    (tmp_path / "mine" / "done").touch()
    definition = load_sweep(str(sweep.file))
    (layout,) = definition.layouts
    (table,) = build(definition, layout, [read_result(tmp_path / "mine")])
    assert table.entries["rezero", "18"].ours == 6.5


def test_a_damaged_record_is_one_line_and_its_remedy(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sweep.cell("deepnorm", 6, 7.5)
    (run / "sweep.json").write_text('{"cell": ', encoding="utf-8")
    assert cli.main(["report", str(sweep.folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "deepnorm_6l/sweep.json is damaged: it is not JSON" in line
    assert "remove it to run the cell" in line


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("measure: valid_nll", "measure: loss", "measure 'loss' is unknown; known are bleu, valid"),
        ("rows: scheme", "rows: lr", "valid_nll: panel main has no factor 'lr'"),
        ("rows: scheme", "panel: [main, wide], rows: scheme", "there is no panel 'wide'"),
        ("measure: valid_nll", "measure: [bleu, valid_nll]", "need `columns: measure`"),
        ("rows: scheme, ", "", "tables: rows is missing"),
        ("rows: scheme", "best: lr, rows: scheme", "best: 'lr' is unknown; known are"),
        (
            "columns: depth",
            "best: depth, columns: measure",
            "`columns: measure` exclude each other",
        ),
        (
            "rows: scheme",
            "rows: scheme, split: x",
            "unknown key 'split'; known are best, columns, each",
        ),
        ("rows: scheme", "rows: scheme, fit: depth", "fit is TABLE: LINE of published tables"),
        ("rows: scheme", "rows: scheme, fit: {fig8: x}", "fig8 has no row or column 'x'"),
        ("rows: scheme", "paper: table1, each: x, rows: scheme", "unknown key 'each'"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(
    sweep: Sweep, old: str, new: str, message: str
) -> None:
    sweep.define(old, new)
    with pytest.raises(ValueError, match=message):
        load_sweep(str(sweep.file))
