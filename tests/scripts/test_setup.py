"""scripts/setup.sh with a fake Python: what it refuses, what it installs, when it is done."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.shell import ROOT, FakeBin, processor_seconds, run_script

TOOLS = (
    *("awk", "basename", "bash", "cat", "cksum", "cp", "dirname", "env", "flock", "grep"),
    *("ls", "mkdir", "mv", "rm", "sed", "sleep", "tail", "touch"),
)
# Answers what setup.sh asks of a Python, and creates a virtual environment whose Python is itself.
PYTHON = """
case "$*" in
    *version_info*) {recent}; exit ;;
    *"import torchaudio"*) {torchaudio}; exit ;;
    *"import platform, torch"*) echo "Python 3.11.9, torch fake" ;;
    "-m venv "*)
        mkdir -p "$3/bin"
        cp "$0" "$3/bin/python"
        echo "version = 3.11.9" >"$3/pyvenv.cfg"
        ;;
    *"pip install"*) {pip} ;;
esac
"""


def python_body(recent: str = "true", torchaudio: str = "true", pip: str = "true") -> str:
    return PYTHON.format(recent=recent, torchaudio=torchaudio, pip=pip)


class Machine:
    """A copy of the project's set-up on a machine that has only the commands we give it."""

    def __init__(self, folder: Path, fakes: FakeBin) -> None:
        self.project = folder / "project"
        self.venv = self.project / ".venv"
        self.stamp = self.venv / ".deepnet-setup"
        self.fakes = fakes
        self.tools = folder / "tools"
        self.tools.mkdir()
        for tool in TOOLS:
            if (found := shutil.which(tool)) is not None:
                (self.tools / tool).symlink_to(found)
        (self.project / "scripts" / "lib").mkdir(parents=True)
        for name in ("setup.py", "scripts/setup.sh", "scripts/lib/common.sh"):
            shutil.copy(ROOT / name, self.project / name)
        fakes.add("gcc")
        fakes.add("g++")
        fakes.add("python3.11", python_body())

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {"HOME": os.environ.get("HOME", "/"), "PATH": self.fakes.path(self.tools)}
        return {**kept, **variables}

    def set_up(self, **variables: str) -> subprocess.CompletedProcess[str]:
        cleared = dict.fromkeys(("VIRTUAL_ENV", "VENV", "PYTHON", "CC", "CXX", "CFLAGS"), "")
        return run_script(
            self.project / "scripts" / "setup.sh",
            env={**cleared, **variables},
            path=self.fakes.path(self.tools),
        )

    def installs(self) -> list[str]:
        """The arguments of every `pip install` so far, each as one line."""
        calls = [" ".join(call) for call in self.fakes.calls("python3.11")]
        start = "-m pip install --quiet --disable-pip-version-check "
        return [call.removeprefix(start) for call in calls if call.startswith(start)]


@pytest.fixture
def machine(tmp_path: Path, fake_bin: FakeBin, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.delenv("EXTRAS", raising=False)
    return Machine(tmp_path, fake_bin)


def assert_refused(
    refused: subprocess.CompletedProcess[str], machine: Machine, *expected: str
) -> None:
    assert refused.returncode == 2
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("[setup] error: ")
    for part in expected:
        assert part in line
    assert not machine.venv.exists()
    assert machine.installs() == []


@pytest.mark.parametrize("name", ["PYTHON", "VIRTUAL_ENV"])
def test_an_old_python_is_refused_with_the_remedy(
    name: str, machine: Machine, tmp_path: Path
) -> None:
    python = tmp_path / "old" / "bin" / "python"
    python.parent.mkdir(parents=True)
    machine.fakes.add("python", python_body(recent="false"))
    (machine.fakes.folder / "python").rename(python)
    refused = machine.set_up(**{name: str(python if name == "PYTHON" else tmp_path / "old")})
    assert_refused(refused, machine, f"of {python} none is", "set PYTHON=", "deactivate")


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_a_missing_compiler_is_named_with_its_remedy(machine: Machine, compiler: str) -> None:
    (machine.fakes.folder / compiler).unlink()
    refused = machine.set_up()
    assert_refused(refused, machine, f"no compiler {compiler}", "apt install build-essential")


def test_a_folder_that_is_no_environment_is_left_alone(machine: Machine) -> None:
    letters = machine.project / "letters"
    letters.mkdir()
    (letters / "letter.txt").write_text("dear", encoding="utf-8")
    refused = machine.set_up(VENV=str(letters))
    assert_refused(refused, machine, f"{letters} exists and is no virtual environment")
    assert [path.name for path in letters.iterdir()] == ["letter.txt"]


def test_torch_comes_first_and_fairseq_is_compiled_against_it(machine: Machine) -> None:
    setup = (machine.project / "setup.py").read_text(encoding="utf-8")
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    tools, torch, build, fairseq, project = machine.installs()
    assert "setuptools" in tools
    assert f'"{torch}",' in setup
    assert torch.startswith("torch==")
    assert build.endswith(" cython")
    isolation, same_torch, fairseq_pin = fairseq.split()
    assert (isolation, same_torch) == ("--no-build-isolation", torch)
    assert f'"{fairseq_pin}",' in setup
    assert fairseq_pin.startswith("fairseq-fixed==")
    assert project == f"--no-build-isolation --editable {machine.project}[dev]"
    assert "done: Python 3.11.9, torch fake" in done.stderr


def test_a_second_run_is_silent_and_starts_no_python(machine: Machine) -> None:
    assert machine.set_up().returncode == 0
    calls = len(machine.fakes.calls("python3.11"))
    used = processor_seconds()
    again = machine.set_up()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(machine.fakes.calls("python3.11")) == calls
    assert processor_seconds() - used < 3


@pytest.mark.parametrize("changed", ["setup.py", "scripts/setup.sh", ".venv/pyvenv.cfg"])
def test_a_change_of_what_it_depends_on_sets_up_again(machine: Machine, changed: str) -> None:
    assert machine.set_up().returncode == 0
    before = machine.stamp.read_text(encoding="utf-8")
    with (machine.project / changed).open("a", encoding="utf-8") as file:
        file.write("\nversion = 3.11.10\n" if changed.endswith("cfg") else "\n# changed\n")
    again = machine.set_up()
    assert again.returncode == 0, again.stderr
    assert len(machine.installs()) == 10
    assert machine.stamp.read_text(encoding="utf-8") != before


def test_an_active_environment_is_used_and_no_other_is_made(
    machine: Machine, tmp_path: Path
) -> None:
    active = tmp_path / "active"
    (active / "bin").mkdir(parents=True)
    shutil.copy(machine.fakes.folder / "python3.11", active / "bin" / "python")
    (active / "pyvenv.cfg").write_text("version = 3.11.9\n", encoding="utf-8")
    done = machine.set_up(VIRTUAL_ENV=str(active))
    assert done.returncode == 0, done.stderr
    assert (active / ".deepnet-setup").exists()
    assert not machine.venv.exists()


def test_a_failure_shows_the_end_of_the_log_and_the_next_run_goes_on(machine: Machine) -> None:
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


def start(machine: Machine) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(machine.project / "scripts" / "setup.sh")],
        env=machine.environment(),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
