"""Variables of the scripts with quotes, commands and the like in them: none of it runs."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.cli import variable_of
from tests.support.shell import ROOT, FakeBin, run_script

SCRIPTS = ROOT / "scripts"
HOSTILE = {
    "quote": "x'; touch ran; '",
    "double quote": 'x"; touch ran; "',
    "command": "$(touch ran)`touch ran`; touch ran #",
    "arithmetic": "a[$(touch ran)]",
    "dash": "-rf",
    "glob": "* [a] ?",
    "language": "ü ñ/é",
    "large": "99999999999999999999",
    "octal": "08",
}
COMMANDS = ("deepnet", "fairseq-train", "fairseq-preprocess", "srun", "sbatch")
NEEDED = {
    "preprocess.sh": {"SRC": "de", "TGT": "en", "TRAIN": "t", "VALID": "v"},
}
WORDS = {
    "train.sh": ["multi30k"],
    "slurm_train.sbatch": ["multi30k"],
    "sweep.sh": ["table1"],
    **{f"{name}.sh": ["run"] for name in ("average", "eval_bleu")},
}
# what bash says of a command that fell apart, and what a command says of a value read as an option
BROKEN = re.compile(r"line \d+: (?!.*\.lock: No such file)|invalid option|unrecognized option")
# they have logic of their own; the others pass on to these
OWN = ("preprocess", "train", "train_wmt17", "average")


def variables(script: Path) -> list[str]:
    """Every variable that a script or what it sources reads from outside."""
    code = script.read_text(encoding="utf-8").partition("set -euo pipefail")[2]
    for name in re.findall(r"/lib/(\w+\.sh)", code):
        code += (SCRIPTS / "lib" / name).read_text(encoding="utf-8")
    read = re.findall(r"\$\{(?:!)?([A-Z][A-Z0-9_]+):?[-+]", code)
    read += re.findall(r"\b(OUT|RUN|DATA|TRAIN|VALID|TEST|RAW|TABLE|DEPTH|SEED|WORKERS)\b", code)
    for command in re.findall(r"(?:hand_over|evaluate) (\w+)", code):
        module, _ = cli.SUBCOMMANDS[command]
        importlib.import_module(f"fairseq_deepnet.{module}").add_arguments(parser := cli.Parser())
        read += map(variable_of, parser._option_string_actions)
    return sorted({*read, "TMPDIR", "CDPATH"} - {"DEEPNET_SKIP_SETUP", "BASH_SOURCE"})


@pytest.fixture
def fakes(fake_bin: FakeBin) -> FakeBin:
    for name in COMMANDS:
        fake_bin.add(name, 'printf %s "${OUT:-}"')
    for name in ("python", "python3"):
        fake_bin.add(name)
    return fake_bin


def try_value(script: Path, name: str, value: str, folder: Path, fakes: FakeBin) -> str | None:
    """Run a script with one variable set so; what went wrong, None where nothing did."""
    for part in ("run", "raw", "data"):
        (folder / part).mkdir(parents=True)
    (folder / "data" / "corpus.json").write_text("{}", encoding="utf-8")
    (folder / "table.tsv").touch()
    places = {key: str(folder / key.lower()) for key in ("OUT", "RUNS", "DATA", "DOWNLOADS")}
    environment = {**places, "RUN": str(folder / "new"), "UNPACKED": str(folder / "text")}
    environment |= {"GPUS": "0", "UPDATES": "1"} | NEEDED.get(script.name, {}) | {name: value}
    path = fakes.path("/usr/bin", "/bin")
    done = run_script(
        script, *WORDS.get(script.name, []), env=environment, path=path, cwd=folder, timeout=60
    )
    ran = [str(path) for path in folder.rglob("ran")]
    if ran or BROKEN.search(done.stderr) or done.returncode > 2:
        return f"{script.name} {name}={value!r}: {done.returncode} {ran} {done.stderr[-300:]}"
    return None


def check(script: Path, values: list[str], tmp_path: Path, fakes: FakeBin) -> None:
    tries = [(name, HOSTILE[value]) for name in variables(script) for value in values]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(
            lambda numbered: try_value(
                script, *numbered[1], tmp_path / "tries" / str(numbered[0]), fakes
            ),
            enumerate(tries),
        )
        assert [problem for problem in found if problem] == []


@pytest.mark.parametrize("name", OWN)
def test_no_variable_of_a_script_is_run(name: str, tmp_path: Path, fakes: FakeBin) -> None:
    check(SCRIPTS / f"{name}.sh", ["quote", "arithmetic"], tmp_path, fakes)


def run_with_common(code: str, cwd: Path, **environment: str) -> str:
    """What bash code prints that is run after lib/common.sh."""
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"set -euo pipefail; source scripts/lib/common.sh; {code}",
            "test",
            str(cwd),
        ],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def test_modules_of_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "platform.py").write_text("open('ran', 'w')\n", encoding="utf-8")
    assert run_with_common('cd "$1"; python -m platform', tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "script", sorted([*SCRIPTS.glob("**/*.sh"), *SCRIPTS.glob("*.sbatch")]), ids=lambda p: p.name
)
def test_no_script_builds_a_command_out_of_text(script: Path) -> None:
    for line in script.read_text(encoding="utf-8").splitlines():
        code = re.sub(r"(^|\s)#.*", "", line)
        assert not re.search(r"\beval\b|\bxargs\b|trap \"", code), line
        if re.search(r"\b(bash|sh|python) -c ", code):
            # the text is constant, values come as arguments
            assert re.search(r"-c ('|\"\$check\"|\"import sys; sys\.exit)", code), line


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        path
        for path in sorted([*SCRIPTS.glob("*.sh"), *SCRIPTS.glob("*.sbatch")])
        if path.name not in ("setup.sh", "test.sh", "quickstart.sh")
    ],
    ids=lambda path: path.name,
)
def test_no_variable_of_any_script_is_run(script: Path, tmp_path: Path, fakes: FakeBin) -> None:
    check(script, list(HOSTILE), tmp_path, fakes)
