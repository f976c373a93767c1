"""scripts/setup.sh with a fake Python: refusals, installed packages and completion."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.shell import ROOT, FakeBin, run_script

TOOLS = (
    *("awk", "basename", "bash", "cat", "cksum", "cp", "dirname", "env", "flock", "grep"),
    *("ls", "mkdir", "mv", "rm", "sed", "sleep", "tail", "touch"),
)
# Answers the queries of setup.sh, and creates virtual environments with a copy of itself.
PYTHON = """
case "$*" in
    *version_info*) {recent}; exit ;;
    *"import torchaudio"*) exit ;;
    *"import platform, torch"*) echo "Python 3.11.9, torch fake" ;;
    "-m venv "*)
        mkdir -p "$3/bin"
        cp "$0" "$3/bin/python"
        echo "version = 3.11.9" >"$3/pyvenv.cfg"
        ;;
    *"pip install"*) {pip} ;;
esac
"""


def python_body(recent: str = "true", pip: str = "true") -> str:
    return PYTHON.format(recent=recent, pip=pip)


class Machine:
    """A copy of the project's set-up on a machine with only the listed commands."""

    def __init__(self, folder: Path, fakes: FakeBin) -> None:
        self.project = folder / "project"
        self.venv = self.project / ".venv"
        self.stamp = self.venv / ".deepnet-setup"
        self.fakes = fakes
        self.tools = folder / "tools"
        self.tools.mkdir()
        for tool in TOOLS:
            if (path := shutil.which(tool)) is not None:
                (self.tools / tool).symlink_to(path)
        (self.project / "scripts" / "lib").mkdir(parents=True)
        for name in ("setup.py", "scripts/setup.sh", "scripts/lib/common.sh"):
            shutil.copy(ROOT / name, self.project / name)
        for name, body in (("gcc", ""), ("g++", ""), ("python3.11", python_body())):
            fakes.add(name, body)

    def set_up(self, **variables: str) -> subprocess.CompletedProcess[str]:
        cleared = dict.fromkeys(("VIRTUAL_ENV", "VENV", "PYTHON", "CC", "CXX", "CFLAGS"), "")
        return run_script(
            self.project / "scripts" / "setup.sh",
            env={**cleared, **variables},
            path=self.fakes.path(self.tools),
        )

    def installs(self) -> list[str]:
        """Return the arguments of all `pip install` calls so far, each as one line."""
        calls = [" ".join(call) for call in self.fakes.calls("python3.11")]
        start = "-m pip install --quiet --disable-pip-version-check "
        return [call.removeprefix(start) for call in calls if call.startswith(start)]


@pytest.fixture
def machine(tmp_path: Path, fake_bin: FakeBin, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.delenv("EXTRAS", raising=False)
    return Machine(tmp_path, fake_bin)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("python", "Python >= 3.11 is needed"),
        ("gcc", "no compiler gcc"),
        ("g++", "no compiler g++, which fairseq needs: install one"),
        ("place", "exists but is not a virtual environment"),
    ],
)
def test_a_missing_requirement_is_one_line_with_the_remedy(
    missing: str, message: str, machine: Machine
) -> None:
    letters = machine.project / "letters"
    letters.mkdir()
    (letters / "letter.txt").write_text("dear", encoding="utf-8")
    if missing == "python":
        machine.fakes.add("python3.11", python_body(recent="false"))
    elif missing != "place":
        (machine.fakes.folder / missing).unlink()
    refused = machine.set_up(VENV=str(letters) if missing == "place" else "")
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("[setup] error: ")
    assert message in line
    assert not machine.venv.exists()
    assert [path.name for path in letters.iterdir()] == ["letter.txt"]


def test_torch_comes_first_and_fairseq_is_compiled_against_it(machine: Machine) -> None:
    setup = (machine.project / "setup.py").read_text(encoding="utf-8")
    result = machine.set_up()
    assert result.returncode == 0, result.stderr
    tools, torch, build, fairseq, project = machine.installs()
    assert "setuptools" in tools
    assert f'"{torch}",' in setup
    assert torch.startswith("torch==")
    assert build.endswith(" cython")
    isolation, same_torch, fairseq_pin = fairseq.split()
    assert (isolation, same_torch) == ("--no-build-isolation", torch)
    assert f'"{fairseq_pin}",' in setup
    assert project == f"--no-build-isolation --editable {machine.project}[dev]"
    assert "done: Python 3.11.9, torch fake" in result.stderr
    # a second run is silent and starts no Python
    calls = len(machine.fakes.calls("python3.11"))
    again = machine.set_up()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(machine.fakes.calls("python3.11")) == calls


@pytest.mark.parametrize("changed", ["setup.py", "scripts/setup.sh", ".venv/pyvenv.cfg"])
def test_changed_dependencies_cause_another_set_up(machine: Machine, changed: str) -> None:
    assert machine.set_up().returncode == 0
    with (machine.project / changed).open("a", encoding="utf-8") as file:
        file.write("\nversion = 3.11.10\n" if changed.endswith("cfg") else "\n# changed\n")
    assert machine.set_up().returncode == 0
    assert len(machine.installs()) == 10


def test_a_failure_shows_the_end_of_the_log_and_the_next_run_continues(machine: Machine) -> None:
    failing = 'case "$*" in *fairseq*) echo no such wheel; exit 7 ;; esac'
    machine.fakes.add("python3.11", python_body(pip=failing))
    failed = machine.set_up()
    assert failed.returncode == 1
    assert "no such wheel" in failed.stderr
    assert "failed with status 7" in failed.stderr
    assert str(machine.venv / "deepnet-setup.log") in failed.stderr
    assert not machine.stamp.exists()
    machine.fakes.add("python3.11", python_body())
    shutil.copy(machine.fakes.folder / "python3.11", machine.venv / "bin" / "python")
    assert machine.set_up().returncode == 0
    assert machine.stamp.exists()
