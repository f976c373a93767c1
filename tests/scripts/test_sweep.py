"""scripts/sweep.sh and the commands of the paper's tables on it, with a deepnet that records."""

from __future__ import annotations

import pytest

from tests.support.shell import FakeBin, run_script

TABLES = ["table1", "fig6", "fig7", "table2"]


@pytest.mark.parametrize("name", TABLES)
def test_each_table_has_its_command(fake_bin: FakeBin, name: str) -> None:
    fake_bin.add("deepnet", stdout="| a table |\n")
    done = run_script(f"{name}.sh", "depth=6", "max-update=2", path=fake_bin.path())
    assert done.returncode == 0, done.stderr
    assert done.stdout == "| a table |\n"
    assert fake_bin.calls("deepnet") == [["sweep", name, "depth=6", "max-update=2"]]


def test_every_knob_reaches_the_command(fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet")
    knobs = {"GPUS": "8", "PARALLEL": "2", "SEEDS": "1,2", "DATA": "d", "RUNS": "r", "ONLY": "*_6l"}
    knobs |= {"RETRY": "all", "TERAFLOPS": "100", "MEMORY": "40", "DRY_RUN": "1", "TINY": "1"}
    done = run_script("table1.sh", env=knobs, path=fake_bin.path())
    assert done.returncode == 0, done.stderr
    assert fake_bin.calls("deepnet") == [
        [
            *("sweep", "table1", "--gpus=8", "--parallel=2", "--seeds=1,2", "--data=d", "--runs=r"),
            *("--only=*_6l", "--retry=all", "--teraflops=100", "--memory=40", "--dry-run"),
            "--tiny",
        ]
    ]


def test_the_exit_status_is_the_command_s(fake_bin: FakeBin) -> None:
    fake_bin.add("deepnet", status=1)
    assert run_script("sweep.sh", "table1", path=fake_bin.path()).returncode == 1


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        ([], {}, "a sweep is missing"),
        (["--dry-run"], {}, "a sweep is missing"),
        (["table1"], {"DRY_RUN": "yes"}, "DRY_RUN is 'yes'"),
        (["table1"], {"TINY": "2"}, "TINY is '2'"),
    ],
)
def test_bad_input_is_one_line(
    fake_bin: FakeBin, words: list[str], env: dict[str, str], message: str
) -> None:
    fake_bin.add("deepnet")
    done = run_script("sweep.sh", *words, env=env, path=fake_bin.path())
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert message in line
    assert fake_bin.calls("deepnet") == []
