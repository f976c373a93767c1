"""The figures of a sweep: which panels, lines, crosses and labels there are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet.experiments import results
from fairseq_deepnet.experiments.figures import against_depth
from fairseq_deepnet.experiments.report import make
from tests.support.cells import write_cell


def drawn(folder: Path) -> dict[str, Any]:
    """Return matplotlib's figures of a sweep, by name."""
    runs = results.table_of([results.read_run(run) for run in results.find_runs(folder)])
    return {table.name: against_depth(table) for table in make(runs).plots}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a sweep of four schemes, of which Post-LN diverges as it becomes deeper."""
    runs = tmp_path / "runs"
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
        name, values = f"{scheme}_{depth}l.seed{seed}", {"scheme": scheme, "depth": str(depth)}
        write_cell(runs, name, "own.yaml", values, status, seed=seed, losses={200: nll + 1.5})
    return runs


def labels(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_depth_has_a_panel_per_group_and_a_line_per_scheme(folder: Path) -> None:
    figure = drawn(folder)["valid_nll"]
    assert {axes.get_title(): labels(axes) for axes in figure.axes} == {
        "Post-LN": ["deepnorm", "post-ln", "failed"],
        "no LN": ["rezero", "failed"],
        "Pre-LN": ["pre-ln", "failed"],
    }
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["6", "18", "50"]
    assert figure.get_suptitle() == "A comparison: valid_nll"


def test_means_have_their_spread_and_crosses_mark_where_runs_failed(folder: Path) -> None:
    axes = drawn(folder)["valid_nll"].axes[0]
    deepnorm, post_ln = axes.containers
    assert list(deepnorm.lines[0].get_ydata()) == [7.5, 7.5, 7.5]
    heights = list(post_ln.lines[0].get_ydata())
    # the mean of 7.7 and 7.8; the seed that did not diverge; none
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
    assert labels(axes) == ["DeepNet", "failed", "the paper's"]
    # a depth that was not run does not interrupt the line
    assert list(axes.containers[0].lines[0].get_ydata()) == [28.0, 28.0, 28.0]
    (axes,) = drawn(tmp_path / "depth")["depth"].axes
    (law,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(law.get_xdata()) == [6, 50]
    assert list(law.get_ydata()) == pytest.approx([28, 28])
