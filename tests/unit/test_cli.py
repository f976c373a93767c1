"""The command line that all subcommands share."""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest

from fairseq_deepnet import cli


def parse(name: str, *words: str) -> argparse.Namespace:
    """Parse the words of a subcommand as `deepnet` does, without running it."""
    parsed: list[argparse.Namespace] = []
    with pytest.MonkeyPatch.context() as patch:
        module = cli.importlib.import_module(f"fairseq_deepnet.{cli.SUBCOMMANDS[name][0]}")
        patch.setattr(module, "run", lambda args: parsed.append(args) or 0)
        assert cli.main([name, *words]) == 0
    return parsed[0]


@pytest.mark.parametrize(
    ("name", "word"), [("train", "multi30k"), ("evaluate", "RUN"), ("perplexity", "RUN")]
)
def test_options_in_any_order_and_options_of_fairseq_after_two_dashes(name: str, word: str) -> None:
    after = ("--", "--lenpen", "2", "--", "x")
    texts = [
        {key: str(value) for key, value in vars(parse(name, *words, *after)).items()}
        for words in ((word, "--data", "d", "--gpus", "1"), ("--data=d", word, "--gpus", "1"))
    ]
    assert texts[0] == texts[1]
    assert texts[0]["gpus"] == "1"
    assert texts[0]["extra"] == "['--lenpen', '2', '--', 'x']"
    assert parse(name, word).extra == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pln"], "no subcommand 'pln'; did you mean plan?"),
        (["evaluate", "r", "--beem", "--tokenzer=x"], "; did you mean --beam and --tokenizer?"),
        (["evaluate", "r", "--sacrebleu", "4"], "unknown --sacrebleu 4; options of fairseq"),
        (["evaluate", "r", "s"], "unexpected word 's'; options of fairseq come after --"),
        (["evaluate", "r", "--tokenizer", "flores10"], "'flores10'; did you mean flores101?"),
        (["train"], "the following arguments are required: config"),
        (["evaluate", "--beam", "many"], "--beam: 'many' is not a positive integer"),
        (["report", "r", "--score", "x"], "--score is only for --significance"),
        (["report", "r", "--significance", "--out", "x"], "--out is only for tables"),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("deepnet")
    assert message in line


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--help"],
        ["plan", "no-such-config"],
        ["train", "--help"],
        ["sweep", "no-such-sweep"],
        ["report", "no-such-run"],
    ],
    ids=" ".join,
)
def test_commands_that_need_no_torch_do_not_import_torch(words: list[str]) -> None:
    heavy = {"torch", "fairseq", *(["numpy"] if words[0] in ("plan", "train") else [])}
    code = f"""
import sys
from fairseq_deepnet import cli
try:
    cli.main({words})
finally:
    print(*{heavy} & set(sys.modules))"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert result.stdout.splitlines()[-1] == ""


def test_ctrl_c_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=press))
    assert cli.main(["options"]) == 130
    assert capsys.readouterr().err == "deepnet options: interrupted\n"


@pytest.fixture
def parser() -> cli.Parser:
    parser = cli.Parser()
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--lenpen", type=float)
    parser.add_argument("--cpu-processes", required=True)
    parser.add_argument("--engine", choices=("fairseq", "ctranslate2"))
    parser.add_argument("--dry-run", action="store_true")
    return parser


def test_variables_set_options(parser: cli.Parser) -> None:
    environment = {"BEAM": "4", "LENPEN": "", "CPU_PROCESSES": "2", "DRY_RUN": "1", "HELP": "1"}
    words = cli.words_of(parser, environment)
    values = {"beam": 4, "lenpen": None, "cpu_processes": "2", "engine": None, "dry_run": True}
    assert vars(parser.parse(words)) == values
    assert vars(parser.parse([*words, "--beam", "1"])) == values | {"beam": 1}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BEAM", "x", "argument --beam: invalid int value: 'x'"),
        ("ENGINE", "fairsec", "'fairsec'; did you mean fairseq?"),
        ("DRY_RUN", "yes", "DRY_RUN is 'yes'; it must be 0 or 1"),
    ],
)
def test_a_bad_value_is_named(parser: cli.Parser, name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", "[?]")):
        parser.parse(cli.words_of(parser, {"CPU_PROCESSES": "1", name: value}))


def test_a_killed_process_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, words: object) -> int:
        raise BrokenProcessPool("a child was killed")

    monkeypatch.setattr(cli, "_run", run)
    assert cli.main(["evaluate", "RUN"]) == 2
    assert "perhaps for lack of memory" in capsys.readouterr().err
