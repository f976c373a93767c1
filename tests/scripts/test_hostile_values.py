"""Quotes and commands in the scripts' variables are not executed."""

from __future__ import annotations

import importlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.cli import variable_of
from tests.support.shell import ROOT, FakeBin, run_script

SCRIPTS = ROOT / "scripts"
HOSTILE = ("x'; touch ran; '", "a[$(touch ran)]")
WORDS = {"train": ["multi30k"], "average": ["run"]}
BROKEN = re.compile(r"line \d+: |invalid option|unrecognized option")
"""Messages of bash about a broken command, and of a command that mistakes a value for an option."""
OWN = ("preprocess", "train", "train_wmt17", "average")
"""Scripts with their own logic, which the other scripts call."""


def variables(script: Path) -> list[str]:
    """Return all variables that a script or its sourced files read."""
    code = script.read_text(encoding="utf-8").partition("set -euo pipefail")[2]
    for name in re.findall(r"/lib/(\w+\.sh)", code):
        code += (SCRIPTS / "lib" / name).read_text(encoding="utf-8")
    names = re.findall(r"\$\{(?:!)?([A-Z][A-Z0-9_]+):?[-+]", code)
    for command in re.findall(r"hand_over (\w+)", code):
        module, _ = cli.SUBCOMMANDS[command]
        importlib.import_module(f"fairseq_deepnet.{module}").add_arguments(parser := cli.Parser())
        names += map(variable_of, parser._option_string_actions)
    return sorted({*names, "TMPDIR", "CDPATH"} - {"DEEPNET_SKIP_SETUP", "BASH_SOURCE"})


@pytest.mark.parametrize("name", OWN)
def test_no_value_of_a_variable_is_executed(name: str, tmp_path: Path, fake_bin: FakeBin) -> None:
    for command in ("deepnet", "fairseq-train", "python", "python3"):
        fake_bin.add(command, 'printf %s "${OUT:-}"')

    def problem(number: int, variable: str, value: str) -> str | None:
        folder = tmp_path / "tries" / str(number)
        (folder / "run").mkdir(parents=True)
        (folder / "data").mkdir()
        (folder / "data" / "corpus.json").write_text("{}", encoding="utf-8")
        places = {key: str(folder / key.lower()) for key in ("OUT", "RUNS", "DATA", "RUN")}
        environment = places | {"GPUS": "0", variable: value}
        result = run_script(
            f"{name}.sh",
            *WORDS.get(name, []),
            env=environment,
            path=fake_bin.path("/usr/bin", "/bin"),
            cwd=folder,
            timeout=60,
        )
        ran = any(folder.rglob("ran"))
        if ran or BROKEN.search(result.stderr) or result.returncode > 2:
            return f"{variable}={value!r}: {result.returncode} {ran} {result.stderr[-300:]}"
        return None

    tries = [(v, value) for v in variables(SCRIPTS / f"{name}.sh") for value in HOSTILE]
    with ThreadPoolExecutor(2) as pool:
        problems = pool.map(lambda numbered: problem(numbered[0], *numbered[1]), enumerate(tries))
        assert list(filter(None, problems)) == []
