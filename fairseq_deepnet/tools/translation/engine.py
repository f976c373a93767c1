"""What an engine is: a loaded model that translates lines, how it searches, and its defaults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.corpora.text import is_blank
from fairseq_deepnet.tools.export import BEAM

ENGINES: Final = ("fairseq", "ctranslate2")
BATCH: Final = 64
"""Sentences at a time; but on a CPU CTranslate2 takes:"""
CPU_BATCH: Final = 16
"""Few: what it keeps of each sentence is copied at every step, fastest within a core's cache
(measured in docs/guides/serving.md, "How fast")."""
WINDOW: Final = 1024
"""Lines that are held for each thread, to be sorted by length."""
QUANTIZATION: Final = "int8"
"""Of a model that is exported on the way: the fastest. BLEU changes by less than 0.1, and one
sentence in ten is worded otherwise (measured in docs/guides/serving.md)."""


@dataclass(frozen=True)
class Search:
    """How translations are looked for.

    Args:
        lenpen: exponent of the length that a sum of log-probabilities is divided by.
        batch: sentences at a time; None: what is best for the engine.
        nbest: translations of each sentence, the best first.
        batch_tokens: source tokens at a time instead, padding included.
    """

    beam: int = BEAM
    lenpen: float = 1.0
    batch: int | None = None
    nbest: int = 1
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        sizes: dict[str, int | None] = {"beam": self.beam, "nbest": self.nbest}
        sizes |= {"batch-sentences": self.batch, "batch": self.batch_tokens}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise ValueError(f"--{name} {value}; at least 1 is needed")
        if self.nbest > self.beam:
            raise ValueError(
                f"--nbest {self.nbest} of a beam of {self.beam}: no more than --beam are found"
            )


class Hypothesis(NamedTuple):
    """A translation, and its log-probability (natural) over its length ** lenpen."""

    text: str
    score: float


def cut_message(cut: int) -> str:
    """Say that an engine has cut so many lines."""
    return f"{cut:,} line{'s were' if cut > 1 else ' was'} too long for the model, and cut"


class Engine(ABC):
    """A loaded model. Raw text in, detokenised text out, in the order of the lines."""

    cut: int = 0
    """Lines so far that were too long for the model, and of which the beginning was translated."""

    @abstractmethod
    def hypotheses(self, lines: Sequence[str], direction: Direction) -> list[list[Hypothesis]]:
        """Return as many translations of each line as the search keeps, the best first."""

    def translate(self, lines: Sequence[str], direction: Direction) -> list[str]:
        """Return the best translation of each line; a blank one's is empty."""
        filled = [line for line in lines if not is_blank(line)]
        found = iter(self.hypotheses(filled, direction) if filled else [])
        return ["" if is_blank(line) else next(found)[0].text for line in lines]
