"""scripts/reproduce_analysis.sh, with a deepnet that records."""

from __future__ import annotations

import pytest

from tests.support.shell import ROOT, FakeBin, run_script

SMALL = ["max-tokens=1000", "recipe.global-batch-tokens=1000"]


def calls(fake_bin: FakeBin, *words: str, **knobs: str) -> list[list[str]]:
    """What the script asks of deepnet, with RUNS of a sweep as an option."""
    fake_bin.add("deepnet", '[[ $1 == analysis ]] || echo "$RUNS"')
    done = run_script("reproduce_analysis.sh", *words, env=knobs, path=fake_bin.path())
    assert done.returncode == 0, done.stderr
    runs = iter(line for line in done.stderr.splitlines() if not line.startswith("["))
    found = fake_bin.calls("deepnet")
    for call in found:
        if call[0] == "sweep":
            assert call.pop(1) == "--variables"
            call.append(f"--runs={next(runs)}")
    return found


def test_a_figure_is_a_sweep_and_then_its_drawing(fake_bin: FakeBin) -> None:
    runs = f"{ROOT}/runs/analysis.small"
    assert calls(fake_bin, "fig5", "max-update=8") == [
        [
            *("sweep", "fig5", *SMALL, "depth=6,10,18,25,35,50,75,100"),
            *("max-update=8", f"--runs={runs}/fig5"),
        ],
        ["analysis", "fig5", f"{runs}/fig5", "--out", runs],
    ]


def test_only_the_table_of_the_figure_is_on_standard_output(fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet", 'echo "$1"')
    done = run_script("reproduce_analysis.sh", "fig5", path=fake_bin.path())
    assert done.stdout == "analysis\n"
    assert "sweep\n" in done.stderr


def test_figure_3a_looks_at_the_runs_of_figure_4(fake_bin: FakeBin) -> None:
    sweep, drawing = calls(fake_bin, "fig3a", RUNS="r/", OUT="o", UPDATES="1-3")
    assert sweep == ["sweep", "fig4", *SMALL, "--runs=r/fig4"]
    assert drawing == ["analysis", "fig3a", "r/fig4", "--out", "o", "--updates", "1-3"]


def test_the_paper_s_size_is_that_of_the_definitions(fake_bin: FakeBin) -> None:
    sweep, _ = calls(fake_bin, "fig3c", SIZE="paper", CONFIG="configs/iwslt14.yaml", DATA="d/x.y")
    runs = f"{ROOT}/runs/analysis.paper.iwslt14.x.y/fig3c"
    assert sweep == ["sweep", "fig3c", f"--runs={runs}"]


@pytest.mark.parametrize("words", [["all"], []])
def test_all_figures_come_from_four_sweeps(fake_bin: FakeBin, words: list[str]) -> None:
    made = calls(fake_bin, *words)
    figures = ["fig4", "fig3a", "fig5", "fig3b", "fig3c"]
    assert [call[1] for call in made if call[0] == "analysis"] == figures
    sweeps = [call[1] for call in made if call[0] == "sweep"]
    assert sweeps == ["fig4", "fig4", "fig5", "fig3b", "fig3c"]


def test_a_plan_draws_nothing(fake_bin: FakeBin) -> None:
    (plan,) = calls(fake_bin, "fig4", DRY_RUN="1", RUNS="r")
    assert plan[0] == "sweep"


def test_a_rehearsal_has_a_folder_of_its_own(fake_bin: FakeBin) -> None:
    sweep, drawing = calls(fake_bin, "fig4", TINY="1", RUNS="r")
    assert sweep == ["sweep", "fig4", "--runs=r/fig4"]  # whose sizes are its own
    assert drawing == ["analysis", "fig4", "r/fig4.tiny", "--out", "r", "--updates", "1-2"]


def test_a_sweep_that_failed_is_not_drawn(fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet", status=1)
    done = run_script("reproduce_analysis.sh", "fig4", path=fake_bin.path())
    assert done.returncode == 1
    assert [call[0] for call in fake_bin.calls("deepnet")] == ["sweep"]


def test_of_all_figures_each_has_its_turn_and_the_failed_are_named(fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet", "[[ $3 != fig5 ]] || exit 1")
    done = run_script("reproduce_analysis.sh", "all", path=fake_bin.path())
    assert done.returncode == 2
    assert done.stderr.endswith("error: not complete: fig5; the same command goes on\n")
    made = [call[:2] for call in fake_bin.calls("deepnet")]
    assert made[-1] == ["analysis", "fig3c"]
    assert ["analysis", "fig5"] not in made


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["fig6"], {}, "FIGURE is 'fig6'; it must be all or one of fig3a fig3b fig3c fig4 fig5"),
        (["depth=6"], {}, "FIGURE is 'depth=6'"),
        (["fig4"], {"SIZE": "large"}, "SIZE is 'large'; it must be small or paper"),
        (["fig4"], {"TINY": "yes"}, "TINY is 'yes'; it must be 0 or 1"),
    ],
)
def test_bad_input_is_one_line(
    fake_bin: FakeBin, words: list[str], env: dict[str, str], message: str
) -> None:
    fake_bin.add("deepnet")
    done = run_script("reproduce_analysis.sh", *words, env=env, path=fake_bin.path())
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert message in line
    assert fake_bin.calls("deepnet") == []
