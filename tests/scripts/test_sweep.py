"""scripts/sweep.sh and the commands of its sweeps, with a deepnet that records."""

from __future__ import annotations

import pytest

from tests.support.shell import ROOT, FakeBin, run_script

TABLES = ["table1", "fig6", "fig7", "table2"]


@pytest.mark.parametrize("name", TABLES)
def test_each_table_has_its_command(fake_bin: FakeBin, name: str) -> None:
    fake_bin.add("deepnet", stdout="| a table |\n")
    done = run_script(f"{name}.sh", "depth=6", "max-update=2", path=fake_bin.path())
    assert done.returncode == 0, done.stderr
    assert done.stdout == "| a table |\n"
    assert fake_bin.calls("deepnet") == [["sweep", "--variables", name, "depth=6", "max-update=2"]]


@pytest.mark.parametrize(
    ("knobs", "only"),
    [({}, "*_500l"), ({"TINY": "1"}, "*_3l"), ({"ONLY": "deepnorm_500l"}, "deepnorm_500l")],
)
def test_a_thousand_layers_are_the_deepest_cells_of_the_law(
    fake_bin: FakeBin, knobs: dict[str, str], only: str
) -> None:
    fake_bin.add("deepnet", 'printf %s "$ONLY"')
    done = run_script("thousand_layers.sh", "lr=1e-3", env=knobs, path=fake_bin.path())
    assert (done.returncode, done.stdout) == (0, only), done.stderr
    assert fake_bin.calls("deepnet") == [["sweep", "--variables", "depth", "lr=1e-3"]]


def compared(fake_bin: FakeBin, *words: str, **knobs: str) -> list[str]:
    """What scripts/compare_methods.sh asks of deepnet: its words, and variables as options."""
    fake_bin.add("deepnet", 'printf "%s\\n" "$SEEDS" "$RUNS"')
    done = run_script("compare_methods.sh", *words, env=knobs, path=fake_bin.path())
    assert done.returncode == 0, done.stderr
    (call,) = fake_bin.calls("deepnet")
    assert call[:3] == ["sweep", "--variables", "compare_methods"]
    seeds, runs = done.stdout.splitlines()
    return [*call[3:], f"--seeds={seeds}", f"--runs={runs}"]


def test_methods_are_compared_on_two_seeds_without_a_score(fake_bin: FakeBin) -> None:
    runs = ROOT / "runs" / "compare_methods"
    assert compared(fake_bin) == ["--seeds=1,2", f"--runs={runs}"]


def test_a_comparison_takes_methods_depths_and_a_corpus_of_one_s_own(fake_bin: FakeBin) -> None:
    knobs = {"SCHEME": "deepnorm,admin", "DEPTH": "6,18", "SEEDS": "3", "DATA": "data/mine.de-en"}
    words = compared(fake_bin, "lr=5e-4", CONFIG="configs/iwslt14.yaml", **knobs)
    assert words == [
        *("scheme=deepnorm,admin", "depth=6,18", "score=true", "lr=5e-4", "--seeds=3"),
        f"--runs={ROOT}/runs/compare_methods.iwslt14.mine.de-en",
    ]


def test_whether_a_comparison_is_scored_can_be_said(fake_bin: FakeBin) -> None:
    assert "score=true" not in compared(fake_bin, CONFIG="iwslt14", SCORE="0")


def test_a_rehearsal_of_a_comparison_has_a_folder_of_its_own(fake_bin: FakeBin) -> None:
    words = compared(fake_bin, TINY="1", SCORE="1")
    assert words[0] == "score=true"
    assert f"--runs={ROOT}/runs/compare_methods" in words  # --tiny adds .tiny


def test_the_score_of_a_comparison_is_0_or_1(fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet")
    done = run_script("compare_methods.sh", env={"SCORE": "yes"}, path=fake_bin.path())
    assert done.returncode == 2
    assert done.stderr == "[compare_methods] error: SCORE is 'yes'; it must be 0 or 1\n"
    assert fake_bin.calls("deepnet") == []


def test_the_exit_status_is_the_command_s(fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet", status=1)
    assert run_script("sweep.sh", "table1", path=fake_bin.path()).returncode == 1


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_sweep_must_be_named(fake_bin: FakeBin, words: list[str]) -> None:
    fake_bin.add("deepnet")
    done = run_script("sweep.sh", *words, path=fake_bin.path())
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "a sweep is missing" in line
    assert fake_bin.calls("deepnet") == []
