"""Streams of lines through an engine: order, invalid bytes, and output files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairseq_deepnet import cli
from fairseq_deepnet.files import whole, whole_folder
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.translation import translate
from fairseq_deepnet.tools.translation.engines import Engine, Hypothesis

DIRECTION = Direction("de", "en")


class Upper(Engine):
    """An engine that translates to upper case and records its input."""

    def __init__(self) -> None:
        self.inputs: list[list[str]] = []

    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        self.inputs.append(list(lines))
        return [[Hypothesis(line.upper(), -0.5)] for line in lines]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Upper:
    engine = Upper()
    monkeypatch.setattr(translate, "open_engine", lambda *a, **o: (engine, DIRECTION, "upper"))
    return engine


def test_translations_are_in_the_order_of_the_lines_and_empty_lines_stay(
    engine: Upper, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for number, content in enumerate(("a\n\nb\n", "c\n \u200b\t\nd")):
        (tmp_path / str(number)).write_text(content, encoding="utf-8")
    assert cli.main(["translate", "x", f"{tmp_path}/0", f"{tmp_path}/1", "--window=4"]) == 0
    assert capfdbinary.readouterr().out == b"A\n\nB\nC\n\nD\n"
    assert engine.inputs == [["a", "b", "c"], ["d"]]


def test_invalid_utf8_affects_only_its_own_line(
    engine: Upper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "text"
    path.write_bytes("A dog.\n?A man.\nA\ufffdgirl.\n".encode().replace(b"?", b"\xff"))
    assert cli.main(["translate", "x", str(path), f"--out={tmp_path}/out"]) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") == "A DOG.\n\ufffdA MAN.\nA\ufffdGIRL.\n"
    assert "lines with U+FFFD, the replacement for invalid UTF-8: 2\n" in capsys.readouterr().err


@pytest.mark.parametrize("replacing", [whole, whole_folder])
def test_outputs_with_the_same_path_do_not_mix_and_other_files_stay(
    replacing: Any, tmp_path: Path
) -> None:
    (tmp_path / "out.part").write_text("own", encoding="utf-8")
    with replacing(tmp_path / "out") as first, replacing(tmp_path / "out") as second:
        for part in (first, second):
            (part / "a" if part.is_dir() else part).touch(exist_ok=False)
    assert (tmp_path / "out.part").read_text(encoding="utf-8") == "own"
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.part"}


PIPE = """
import sys
from fairseq_deepnet.tools.translation import translate
from tests.unit.test_translate_stream import DIRECTION, Upper
from fairseq_deepnet import cli
translate.open_engine = lambda *a, **o: (Upper(), DIRECTION, "upper")
sys.exit(cli.main(["translate", "x", "--window=1"]))
"""


def test_redirected_input_is_read_from_its_current_position(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"header\none\n")
    with (tmp_path / "text").open("rb", buffering=0) as stream:
        stream.readline()
        output = subprocess.check_output([sys.executable, "-c", PIPE], stdin=stream)
    assert output == b"ONE\n"


def test_a_line_from_a_pipe_is_translated_before_the_next_line_arrives() -> None:
    process: Any = subprocess.Popen(
        [sys.executable, "-c", PIPE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    for line in (b"one\n", b"two\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == line.upper()
    rest, _ = process.communicate(b"without an end", timeout=60)
    assert (rest, process.returncode) == (b"WITHOUT AN END\n", 0)
