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
    return run_script("test.sh", *arguments, path=fakes.path())


def test_all_checks_run_before_the_tests_and_pytest_has_the_last_word(fake_bin: FakeBin) -> None:
    done = run_checks(fake_bin, "tests/unit", "-k", "alpha")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == CLOSING
    assert "are clean" in done.stderr
    assert [call[0] for call in fake_bin.calls("ruff")] == ["check", "format"]
    assert len(fake_bin.calls("mypy")) == 1
    assert "scripts/test.sh" in fake_bin.calls("shellcheck")[0]
    (pytest_call,) = fake_bin.calls("python")
    assert pytest_call[:4] == ["-m", "pytest", "-n", "auto"]
    assert pytest_call[-3:] == ["tests/unit", "-k", "alpha"]
    assert "-m" not in pytest_call[1:]


def test_all_adds_the_slow_tests(fake_bin: FakeBin) -> None:
    assert run_checks(fake_bin, "--all", "-x").returncode == 0
    (pytest_call,) = fake_bin.calls("python")
    assert pytest_call[-3:] == ["-m", "slow or not slow", "-x"]


@pytest.mark.parametrize("tool", ["ruff", "mypy", "mkdocs", "shellcheck"])
def test_a_check_that_fails_is_named_and_fails_the_whole(fake_bin: FakeBin, tool: str) -> None:
    failed = run_checks(fake_bin, failing=tool)
    assert failed.returncode == 1
    assert f"FAILED: {tool}" in failed.stderr
    assert "are clean" not in failed.stderr
    assert failed.stdout.splitlines()[-1] == CLOSING


def test_the_status_of_failing_tests_is_passed_on(fake_bin: FakeBin) -> None:
    assert run_checks(fake_bin, tests=5).returncode == 5
    assert run_checks(fake_bin, failing="mypy", tests=5).returncode == 5
