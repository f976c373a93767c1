"""Every script: valid bash, strict, documented; --help answers at once and sets nothing up."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.shell import ROOT, FakeBin, processor_seconds, run_script

SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))
ALL = [*SCRIPTS, *sorted((ROOT / "scripts" / "lib").glob("*.sh")), ROOT / ".ci" / "run"]


def included(line: re.Match[str]) -> str:
    """What "@FILE" of a header stands for."""
    return (ROOT / "scripts" / line[1]).read_text(encoding="utf-8")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("script", ALL, ids=name)
def test_bash_can_parse_the_script(script: Path) -> None:
    checked = subprocess.run(
        ["bash", "-n", str(script)], capture_output=True, encoding="utf-8", check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci" / "run"], ids=name)
def test_script_starts_with_its_header_and_is_strict(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if not line.startswith("#")]
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[1].startswith("# ")
    assert code[0] == "set -euo pipefail"


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_help_prints_the_header_without_setting_anything_up(
    script: Path, fake_bin: FakeBin
) -> None:
    commands = ("python", "python3", "pip", "deepnet", "fairseq-train", "fairseq-preprocess")
    for command in commands:
        fake_bin.add(command)
    used = processor_seconds()
    absent = str(fake_bin.folder / "absent")
    environment = {"DEEPNET_SKIP_SETUP": "0", "VIRTUAL_ENV": absent}
    shown = run_script(script, "--help", env=environment, path=fake_bin.path("/usr/bin", "/bin"))
    header = re.match(r"#!.*\n((?:#.*\n)+)", script.read_text(encoding="utf-8"))
    assert header is not None
    assert shown.returncode == 0
    plain = re.sub(r"(?m)^# ?", "", header.group(1))
    assert shown.stdout == re.sub(r"(?m)^@(\S+)\n", included, plain)
    assert shown.stderr == ""
    assert not any(fake_bin.calls(command) for command in commands)
    assert not Path(absent).exists()
    assert processor_seconds() - used < 3


def test_ci_runs_the_tests_as_a_user_does() -> None:
    code = [
        line
        for line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert code[-1] == 'bash scripts/test.sh "$@"'
