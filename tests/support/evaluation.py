"""Translation in the test's process without a model."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.evaluation import directions
from fairseq_deepnet.tools.translation.engines import Engine, Hypothesis
from tests.support.runs import SENTENCES, TRANSLATIONS


class Dictionary(Engine):
    """Translates `SENTENCES`, copies other lines, and records its input; 40 letters fit."""

    def __init__(self) -> None:
        self.translations = dict(zip(SENTENCES, TRANSLATIONS, strict=True))
        self.inputs: list[str] = []

    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        self.inputs += lines
        self.cut += sum(len(line) > 40 for line in lines)
        return [[Hypothesis(self.translations.get(line, line), 0.0)] for line in lines]


def work_here(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Let `engine` translate in this process instead of other processes."""
    monkeypatch.setattr(directions, "_load", lambda: engine, raising=False)
    monkeypatch.setattr(directions, "ProcessPoolExecutor", lambda *arguments: ThreadPoolExecutor(1))
