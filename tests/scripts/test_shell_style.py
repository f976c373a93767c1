"""Every script is valid, strict bash with a header, which --help prints at once."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.shell import ROOT, FakeBin, run_script

SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))
ALL = [*SCRIPTS, *sorted((ROOT / "scripts" / "lib").glob("*.sh")), ROOT / ".ci" / "run"]


def included(line: re.Match[str]) -> str:
    """Return the content of "@FILE" in a header."""
    return (ROOT / "scripts" / line[1]).read_text(encoding="utf-8")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("script", ALL, ids=name)
def test_a_script_is_valid_bash_and_strict(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    lines = script.read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if not line.startswith("#")]
    assert lines[1].startswith("# ")
    if script.parent.name != "lib":
        assert lines[0] == "#!/usr/bin/env bash"
        assert code[0] == "set -euo pipefail"


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_help_prints_the_header_without_setting_anything_up(
    script: Path, fake_bin: FakeBin
) -> None:
    commands = ("python", "python3", "pip", "deepnet")
    for command in commands:
        fake_bin.add(command)
    absent = str(fake_bin.folder / "absent")
    environment = {"DEEPNET_SKIP_SETUP": "0", "VIRTUAL_ENV": absent}
    shown = run_script(script, "--help", env=environment, path=fake_bin.path("/usr/bin", "/bin"))
    header = re.match(r"#!.*\n((?:#.*\n)+)", script.read_text(encoding="utf-8"))
    assert header is not None
    plain = re.sub(r"(?m)^# ?", "", header.group(1))
    expected = re.sub(r"(?m)^@(\S+)\n", included, plain)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, expected, "")
    assert not any(fake_bin.calls(command) for command in commands)
    assert not Path(absent).exists()
