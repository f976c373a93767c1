"""scripts/setup.sh with a fake Python: what it refuses, what it installs, when it is done."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.shell import ROOT, FakeBin, processor_seconds, run_script

TOOLS = (
    *("awk", "basename", "bash", "cat", "cksum", "cp", "df", "dirname", "env", "flock", "grep"),
    *("ls", "mkdir", "mv", "rm", "sed", "sleep", "tail", "touch"),
)
# Answers what setup.sh asks of a Python, and makes a virtual environment whose Python is itself.
PYTHON = """
case "$*" in
    *version_info*) {recent}; exit ;;
    *"import platform, torch"*) echo "Python 3.11.9, torch fake" ;;
    *python_version*) echo {version} ;;
    *Python.h*) echo {missing} ;;
    "-m venv "*)
        mkdir -p "$3/bin"
        cp "$0" "$3/bin/python"
        echo "version = {version}" >"$3/pyvenv.cfg"
        ;;
    *"pip install"*) {pip} ;;
esac
"""


def python_body(
    version: str = "3.11.9", recent: str = "true", missing: str = "", pip: str = "true"
) -> str:
    return PYTHON.format(version=version, recent=recent, missing=missing, pip=pip)


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
        cleared = dict.fromkeys(
            ("VIRTUAL_ENV", "VENV", "PYTHON", "CC", "CXX", "CFLAGS", "DISK_GB"), ""
        )
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


def test_an_old_python_is_refused_with_the_variable_that_chooses_another(machine: Machine) -> None:
    machine.fakes.add("python3.9", python_body(version="3.9.2", recent="false"))
    refused = machine.set_up(PYTHON="python3.9")
    assert_refused(refused, machine, "PYTHON=python3.9 has 3.9.2", ">= 3.11", "set PYTHON")


def test_an_active_environment_of_an_old_python_is_refused(
    machine: Machine, tmp_path: Path
) -> None:
    machine.fakes.add("python", python_body(version="3.9.2", recent="false"))
    active = tmp_path / "active"
    (active / "bin").mkdir(parents=True)
    (machine.fakes.folder / "python").rename(active / "bin" / "python")
    refused = machine.set_up(VIRTUAL_ENV=str(active))
    assert_refused(refused, machine, f"{active} has 3.9.2", "deactivate it")


def test_without_any_suitable_python_the_message_says_how_to_get_one(machine: Machine) -> None:
    (machine.fakes.folder / "python3.11").unlink()
    machine.fakes.add("python3", python_body(version="3.8.10", recent="false"))
    refused = machine.set_up()
    assert_refused(refused, machine, "python3 is 3.8.10", "apt install python3.11", "PYTHON=")


def test_a_later_python_is_found_where_an_earlier_one_does_not_work(machine: Machine) -> None:
    machine.fakes.add("python3.11", "exit 127")
    machine.fakes.add("python3.12", python_body(version="3.12.1"))
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "with Python 3.12.1" in done.stderr


@pytest.mark.parametrize("missing", ["Python.h", "venv ensurepip"])
def test_a_python_without_venv_or_headers_is_refused(machine: Machine, missing: str) -> None:
    machine.fakes.add("python3.11", python_body(missing=missing))
    refused = machine.set_up()
    assert_refused(refused, machine, f"lacks {missing}", "python3.11-dev")


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_a_missing_compiler_is_named_with_its_remedy(machine: Machine, compiler: str) -> None:
    (machine.fakes.folder / compiler).unlink()
    refused = machine.set_up()
    assert_refused(refused, machine, f"no compiler {compiler}", "apt install build-essential")


def fake_disk(machine: Machine, free_gb: float) -> None:
    free_kb = int(free_gb * 1024 * 1024)
    table = f"Filesystem 1024-blocks Used Available\n/dev/x 99 99 {free_kb} 1% /\n"
    machine.fakes.add("df", stdout=table)


def test_a_full_disk_is_refused_with_the_space_that_is_needed(machine: Machine) -> None:
    fake_disk(machine, 2.9)
    assert_refused(machine.set_up(), machine, "only 2 GB free", "up to 3 GB", "set VENV")


def test_with_a_gpu_more_disk_space_is_asked_for(machine: Machine) -> None:
    fake_disk(machine, 9.5)
    machine.fakes.add("nvidia-smi")
    assert_refused(machine.set_up(), machine, "only 9 GB free", "up to 10 GB")


def test_disk_space_can_be_set_and_must_be_a_number(machine: Machine) -> None:
    assert_refused(machine.set_up(DISK_GB="lots"), machine, "DISK_GB=lots")
    fake_disk(machine, 2.9)
    assert machine.set_up(DISK_GB="2").returncode == 0


def test_an_unknown_argument_is_refused(machine: Machine) -> None:
    script = machine.project / "scripts" / "setup.sh"
    refused = run_script(script, "--dev", path=machine.fakes.path(machine.tools))
    assert_refused(refused, machine, "unknown argument --dev", "--help")


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


def test_later_calls_keep_the_extras_that_were_asked_for(machine: Machine) -> None:
    assert machine.set_up(EXTRAS="dev,moses").returncode == 0
    assert machine.installs()[-1].endswith("[dev,moses]")
    assert machine.set_up().stderr == ""
    with (machine.project / "setup.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert machine.set_up().returncode == 0
    assert machine.installs()[-1].endswith("[dev,moses]")
    assert machine.set_up(EXTRAS="").returncode == 0
    assert machine.installs()[-1].endswith(str(machine.project))


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


def test_an_environment_of_another_clone_changes_hands_with_a_word(
    machine: Machine, tmp_path: Path
) -> None:
    assert machine.set_up().returncode == 0
    first = machine.project
    machine.project = tmp_path / "second"
    shutil.copytree(first, machine.project, ignore=shutil.ignore_patterns(".venv"))
    taken = machine.set_up(VIRTUAL_ENV=str(machine.venv))
    assert taken.returncode == 0, taken.stderr
    (said,) = [line for line in taken.stderr.splitlines() if "was set up from" in line]
    assert (
        f"{machine.venv} was set up from {first}: from now on it imports {machine.project} " in said
    )
    assert "deactivate it" in said
    assert machine.set_up(VIRTUAL_ENV=str(machine.venv)).stderr == ""
    shutil.rmtree(machine.project)  # a clone that is gone has nothing to lose
    machine.project = first
    assert "was set up from" not in machine.set_up().stderr


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


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 600
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


def start(machine: Machine) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(machine.project / "scripts" / "setup.sh")],
        env=machine.environment(),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )


def test_an_interrupted_set_up_does_not_look_finished(machine: Machine) -> None:
    assert machine.set_up().returncode == 0
    began = machine.project / "began"
    slow = python_body(pip=f"touch {began}; sleep 30")
    machine.fakes.add("python3.11", slow)
    shutil.copy(machine.fakes.folder / "python3.11", machine.venv / "bin" / "python")
    with (machine.project / "setup.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    running = start(machine)
    wait_for(began)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(timeout=600) != 0
    running.communicate()
    assert not machine.stamp.exists()


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock")
def test_of_two_set_ups_at_once_the_second_waits_and_finds_all_done(machine: Machine) -> None:
    began, go = machine.project / "began", machine.project / "go"
    waiting = f"touch {began}; while [[ ! -e {go} ]]; do sleep 0.02; done"
    machine.fakes.add("python3.11", python_body(pip=waiting))
    first = start(machine)
    wait_for(began)
    second = start(machine)
    assert second.stderr is not None
    assert "waiting for it" in second.stderr.readline()
    go.touch()
    assert first.wait(timeout=600) == 0
    assert second.wait(timeout=600) == 0
    first.communicate()
    assert second.communicate()[1] == ""
    assert len(machine.installs()) == 5
