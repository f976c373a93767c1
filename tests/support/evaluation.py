"""Translation in the test's process, without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.evaluation import directions
from fairseq_deepnet.tools.translation.engines import Engine, Hypothesis
from tests.support.runs import SENTENCES, TRANSLATIONS


class Dictionary(Engine):
    """Translates `SENTENCES`, copies other lines, and records its input."""

    def __init__(self) -> None:
        self.known = dict(zip(SENTENCES, TRANSLATIONS, strict=True))
        self.asked: list[str] = []

    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        self.asked += lines
        return [[Hypothesis(self.known.get(line, line), 0.0)] for line in lines]


class _Here(Executor):
    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except ValueError as error:
            future.set_exception(error)
        return future


def work_here(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Let `engine` translate instead of other processes."""
    monkeypatch.setattr(directions, "_load", lambda: engine, raising=False)
    monkeypatch.setattr(directions, "ProcessPoolExecutor", lambda *arguments: _Here())
