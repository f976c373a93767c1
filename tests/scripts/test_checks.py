"""scripts/test.sh with fake tools."""

from __future__ import annotations

import pytest

from tests.support.shell import FakeBin, run_script


@pytest.mark.parametrize(
    ("failing", "tests", "status"), [("", 0, 0), ("", 5, 5), ("ruff", 0, 1), ("mypy", 5, 5)]
)
def test_all_checks_run_and_a_failing_check_is_named(
    failing: str, tests: int, status: int, fake_bin: FakeBin
) -> None:
    for tool in ("ruff", "mypy", "mkdocs", "shellcheck"):
        fake_bin.add(tool, status=int(tool == failing))
    fake_bin.add("python", stdout="7 passed", status=tests)
    result = run_script("test.sh", "--all", "tests/unit", path=fake_bin.path())
    assert result.returncode == status
    assert result.stdout == "7 passed"
    assert (f"FAILED: {failing}" if failing else "are clean") in result.stderr
    assert "scripts/test.sh" in fake_bin.calls("shellcheck")[0]
    (words,) = fake_bin.calls("python")
    assert words[-3:] == ["-m", "slow or not slow", "tests/unit"]
