"""scripts/test.sh with fake tools: what it runs, its exit status, and its closing line."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.shell import FakeBin, run_script

CLOSING = "7 passed in 1.00s"


def run_checks(
    fakes: FakeBin, *arguments: str, failing: str = "", tests: int = 0
) -> subprocess.CompletedProcess[str]:
    for tool in ("ruff", "mypy", "mkdocs", "shellcheck"):
        fakes.add(tool, status=1 if tool == failing else 0)
    fakes.add("python", stdout=f"{CLOSING}\n", status=tests)
    done = run_script("test.sh", *arguments, path=fakes.path())
    assert done.stdout.splitlines()[-1] == CLOSING
    return done


@pytest.mark.parametrize(("first", "added"), [([], []), (["--all"], ["-m", "slow or not slow"])])
def test_all_checks_run_before_the_tests(
    first: list[str], added: list[str], fake_bin: FakeBin
) -> None:
    done = run_checks(fake_bin, *first, "tests/unit", "-k", "alpha")
    assert done.returncode == 0
    assert "are clean" in done.stderr
    assert [call[0] for call in fake_bin.calls("ruff")] == ["check", "format"]
    assert len(fake_bin.calls("mypy")) == 1
    assert "scripts/test.sh" in fake_bin.calls("shellcheck")[0]
    (words,) = fake_bin.calls("python")
    assert words[:4] == ["-m", "pytest", "-n", "auto"]
    assert words[6:] == [*added, "tests/unit", "-k", "alpha"]


@pytest.mark.parametrize(
    ("tool", "tests", "status"), [("ruff", 0, 1), ("shellcheck", 0, 1), ("mypy", 5, 5), ("", 5, 5)]
)
def test_a_check_that_fails_is_named_and_fails_the_whole(
    tool: str, tests: int, status: int, fake_bin: FakeBin
) -> None:
    done = run_checks(fake_bin, failing=tool, tests=tests)
    assert done.returncode == status
    assert (f"FAILED: {tool}" in done.stderr) == bool(tool)
    assert ("are clean" in done.stderr) == (not tool)
