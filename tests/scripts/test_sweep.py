"""scripts/sweep.sh and scripts/quickstart.sh, with a deepnet that records."""

from __future__ import annotations

import pytest

from tests.support.shell import FakeBin, run_script


def test_a_sweep_is_handed_over_with_its_words_and_status(fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet", stdout="| a table |\n", status=1)
    done = run_script("sweep.sh", "table1", "depth=6", "max-update=2", path=fake_bin.path())
    assert (done.returncode, done.stdout) == (1, "| a table |\n")
    assert fake_bin.calls("deepnet") == [
        ["sweep", "--variables", "table1", "depth=6", "max-update=2"]
    ]


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_sweep_must_be_named(fake_bin: FakeBin, words: list[str]) -> None:
    fake_bin.add("deepnet")
    done = run_script("sweep.sh", *words, path=fake_bin.path())
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "a sweep is missing" in line
    assert fake_bin.calls("deepnet") == []


def test_the_quickstart_is_handed_over(fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet")
    assert run_script("quickstart.sh", path=fake_bin.path()).returncode == 0
    assert fake_bin.calls("deepnet") == [["quickstart", "--variables"]]
