"""Lines that stream through an engine: their order, windows, broken input, what is kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.translation.engine import Engine, Hypothesis
from fairseq_deepnet.tools.translation.stream import (
    Output,
    Utf8ReplacingDecoder,
    full_windows,
    live_windows,
    translated,
    windows_of,
)
from fairseq_deepnet.tools.translation.translate import formatted

DIRECTION = Direction("de", "en")
PATIENT = 20.0
"""Seconds that no test takes: who waits so long hangs."""


class Upper(Engine):
    """An engine that writes in capitals, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        self.asked.append(list(lines))
        return [[Hypothesis(line.upper(), -0.5)] for line in lines]


def texts(engine: Upper, windows: Iterator[list[str]]) -> list[str]:
    return [best[0].text for window in translated(engine, windows, DIRECTION) for best in window]


def test_a_byte_that_is_not_utf8_costs_its_own_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"A dog.\n\xffA man.\nA girl.\n")
    mending = Utf8ReplacingDecoder()
    windows = list(windows_of([path], 2, text=mending))
    assert windows == [["A dog.", "\ufffdA man."], ["A girl."]]
    assert mending.count == 1
    assert f"{path}, line 2" in mending.message()
    read, write = os.pipe()
    os.write(write, path.read_bytes())
    os.close(write)
    piped = Utf8ReplacingDecoder()
    assert [line for window in live_windows(read, 2, 0.01, piped) for line in window] == [
        *("A dog.", "\ufffdA man.", "A girl."),
    ]
    os.close(read)
    assert "standard input, line 2" in piped.message()


def test_translations_come_in_the_order_of_the_lines_and_empty_lines_stay(tmp_path: Path) -> None:
    for number, content in enumerate(("a\n\nb\n", "c\n \u200b\t\nd")):
        (tmp_path / str(number)).write_text(content, encoding="utf-8")
    engine = Upper()
    found = texts(engine, windows_of([tmp_path / "0", tmp_path / "1"], 4))
    assert found == ["A", "", "B", "C", "", "D"]
    assert engine.asked == [["a", "b", "c"], ["d"]], "what is empty is never asked for"


def test_no_more_lines_than_a_window_are_read_ahead() -> None:
    read = []

    def lines() -> Iterator[str]:
        for number in range(100):
            read.append(number)
            yield str(number)

    windows = full_windows(lines(), 5)
    assert next(windows) == ["0", "1", "2", "3", "4"]
    assert len(read) == 5


def test_a_line_is_translated_before_the_next_one_is_written() -> None:
    """As on a terminal: nobody types on who waits for an answer."""
    reading, writing = os.pipe()
    windows = live_windows(reading, 100, idle=0.01)
    for line in (b"one\n", b"two\n"):
        os.write(writing, line)
        assert next(windows) == [line.decode().strip()]
    os.write(writing, b"without an end")
    os.close(writing)
    assert list(windows) == [["without an end"]]
    os.close(reading)


def test_a_fast_pipe_fills_windows() -> None:
    reading, writing = os.pipe()
    lines = [f"line {number}" for number in range(25_000)]

    def write() -> None:
        with os.fdopen(writing, "w", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in lines)

    writer = threading.Thread(target=write)
    writer.start()
    found = list(live_windows(reading, 1000, idle=PATIENT))
    writer.join()
    os.close(reading)
    assert [len(window) for window in found] == [1000] * 25
    assert [line for window in found for line in window] == lines


@pytest.mark.parametrize("live", [False, True], ids=["file", "pipe"])
def test_what_comes_before_a_broken_line_is_translated_and_the_line_is_named(
    tmp_path: Path, live: bool
) -> None:
    raw = b"a\nb\nc\nd\xe4\ne\n"
    (tmp_path / "text").write_bytes(raw)
    if live:
        reading, writing = os.pipe()
        os.write(writing, raw)
        os.close(writing)
        windows = live_windows(reading, 2, 0.01)
    else:
        windows = windows_of([tmp_path / "text"], 2)
    found: list[str] = []
    with pytest.raises(ValueError, match=r"line 4: not valid UTF-8 \(byte 2 of it\)"):  # noqa: PT012
        for window in translated(Upper(), windows, DIRECTION):
            found += [best[0].text for best in window]
    assert found == ["A", "B", "C"]


def test_lines_scores_and_several_translations_are_told_apart() -> None:
    found = [[Hypothesis("a", -0.25), Hypothesis("b", -1)], [Hypothesis("", 0), Hypothesis("", 0)]]
    assert formatted(found, 7, 1, scores=False) == ["a", ""]
    assert formatted(found, 7, 1, scores=True) == ["-0.2500\ta", "0.0000\t"]
    assert formatted(found, 7, 2, scores=False) == [
        *("7\t-0.2500\ta", "7\t-1.0000\tb", "8\t0.0000\t", "8\t0.0000\t")
    ]


def test_a_file_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out"
    output = Output(path)
    output.write(["ä", "b"], 2)
    assert (tmp_path / "out.part").read_text(encoding="utf-8") == "ä\nb\n", (
        "every line is on disk at once"
    )
    assert not path.exists()
    output.finish()
    assert path.read_text(encoding="utf-8") == "ä\nb\n"
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


def test_an_interrupted_translation_is_not_overwritten(tmp_path: Path) -> None:
    Output(tmp_path / "out").write(["a"], 1)
    with pytest.raises(ValueError, match="holds 1 lines of a translation that was interrupted"):
        Output(tmp_path / "out")
    assert (tmp_path / "out.part").read_text(encoding="utf-8") == "a\n"
