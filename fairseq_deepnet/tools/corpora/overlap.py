"""How many test sentences stand in the training text? Their scores would be too good."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_deepnet.records import read_record, write_record

from .parallel import map_in_order
from .text import find_side, raw_lines


class Question(NamedTuple):
    """Is the `language` side of `test` in that of `train`? Both are prefixes of files."""

    pair: str
    language: str
    test: str
    train: str


def count(question: Question) -> tuple[int, int]:
    """Lines of the test side, and how many of them are also a line of the training side.

    Lines are compared as bytes, without white space at either end; blank lines are left out.
    """
    lines = [line.strip() for line in raw_lines(find_side(question.test, question.language))]
    lines = [line for line in lines if line]
    wanted, found = set(lines), set[bytes]()
    for line in raw_lines(find_side(question.train, question.language)):
        stripped = line.strip()
        if stripped in wanted:
            found.add(stripped)
    return len(lines), sum(line in found for line in lines)


def _fingerprint(questions: Sequence[Question]) -> dict[str, Any]:
    paths = {find_side(prefix, q.language) for q in questions for prefix in (q.test, q.train)}
    return {
        "questions": [list(question) for question in questions],
        "files": [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in sorted(paths)],
    }


def _earlier(report: Path) -> dict[str, Any]:
    """An earlier report; empty where there is none, or none that can be used."""
    try:
        return read_record(report, {"files": [list], "pairs": dict})
    except (FileNotFoundError, ValueError):
        return {}


def ask(questions: Sequence[Question], report: Path, workers: int = 1) -> str:
    """Answer all questions, write them to `report` (JSON), and return one line that sums them up.

    A report that answers the same questions, of files that are as they were, is not made anew.
    """
    fingerprint = _fingerprint(questions)
    record = _earlier(report)
    if {key: record.get(key) for key in fingerprint} != fingerprint:
        answers: dict[str, dict[str, dict[str, int]]] = {}
        counted = map_in_order(count, questions, workers)
        for question, (lines, seen) in zip(questions, counted, strict=True):
            sides = answers.setdefault(question.pair, {})
            sides[question.language] = {"lines": lines, "in_training_text": seen}
        record = {**fingerprint, "pairs": answers}
        write_record(report, record)
    return summarise(record["pairs"])


def summarise(pairs: dict[str, dict[str, dict[str, int]]]) -> str:
    """One line: how many test sentences were seen in training, and where most of them are."""
    sides = [(name, code, x) for name, found in pairs.items() for code, x in found.items()]
    lines = sum(x["lines"] for _, _, x in sides)
    seen = sum(x["in_training_text"] for _, _, x in sides)
    text = f"{seen:,} of {lines:,} test sentences ({len(pairs)} pairs, both sides) are also in the "
    text += "training text"
    if seen:
        name, code, worst = max(sides, key=lambda x: x[2]["in_training_text"])
        text += f"; most in {name} ({code}): {worst['in_training_text']:,} of {worst['lines']:,}"
    return text
