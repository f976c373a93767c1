"""Which splits a corpus has, of which languages, from which files; the table of many pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_deepnet.tools.corpora import text

_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SPLIT = re.compile(r"train|valid|test[0-9]*|valid[0-9]+")


class Row(NamedTuple):
    """One split of a pair, or of one language; in a table of pairs in alphabetical order."""

    split: str
    pair: tuple[str, ...]
    prefix: str
    held_out: bool = False
    """True if its training text also has to serve as validation set: see `hold_out`."""

    @property
    def name(self) -> str:
        """Name of its files among many pairs, without the language: "train.de-en"."""
        return f"{self.split}.{'-'.join(self.pair)}"

    def sides(self) -> list[Path]:
        """Return the raw text of each language; FileNotFoundError for what is not there."""
        return [text.find_side(self.prefix, language) for language in self.pair]


def rows_of(
    pair: tuple[str, ...], train: str, valid: str | None, test: str | None = None
) -> list[Row]:
    """Return the rows of one pair or language.

    `test` is a prefix, or several between commas: test, test1, test2, ... as fairseq names them.
    """
    splits = {"train": train} | ({"valid": valid} if valid else {}) | test_sets(test)
    return [Row(split, pair, prefix) for split, prefix in splits.items()]


def test_sets(prefixes: str | None) -> dict[str, str]:
    """Return the splits "test", "test1", "test2", ... of prefixes between commas."""
    names = (prefix for prefix in (prefixes or "").split(",") if prefix)
    return {f"test{index or ''}": prefix for index, prefix in enumerate(names)}


def read_table(path: Path) -> list[Row]:
    """The rows of a table of pairs; ValueError that names the line for what cannot be."""
    rows: dict[str, Row] = {}
    for number, line in enumerate(text.read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{path}, line {number}"
        fields = line.split("\t")
        if len(fields) != 4:
            raise ValueError(
                f"{where}: {len(fields)} columns; split, source, target and prefix are expected,"
                " separated by tabs"
            )
        split, source, target, prefix = fields
        if not _SPLIT.fullmatch(split):
            raise ValueError(f"{where}: split {split!r}; it is train, valid, test, test1, ...")
        for language in (source, target):
            if not _LANGUAGE.fullmatch(language):
                raise ValueError(f"{where}: {language!r} is no language code such as de")
        if source == target:
            raise ValueError(f"{where}: source and target are both {source!r}; they must differ")
        first, second = sorted((source, target))
        row = Row(split, (first, second), prefix)
        if row.name in rows:
            raise ValueError(f"{where}: {split} of {source} and {target} is there already")
        rows[row.name] = row
    _require_whole(list(rows.values()), path)
    return hold_out(list(rows.values()))


def _require_whole(rows: Sequence[Row], path: Path) -> None:
    """Raise ValueError for a table that could not be trained on."""
    if not any(row.split == "train" for row in rows):
        raise ValueError(f"{path} has no train line; there is nothing to learn from")
    trained = {language for row in rows if row.split == "train" for language in row.pair}
    for row in rows:
        unseen = set(row.pair) - trained
        if unseen:
            raise ValueError(
                f"{path}: {row.name}: there is no training text of {', '.join(sorted(unseen))}"
            )


def hold_out(rows: Sequence[Row]) -> list[Row]:
    """The rows, and a validation set for every trained pair that has none.

    fairseq validates on every pair that it trains. Where a corpus has no text for that (five pairs
    of OPUS-100), a few training pairs are held out: every 1,000th, and at most 100.
    """
    validated = {row.pair for row in rows if row.split == "valid"}
    found: list[Row] = []
    for row in rows:
        if row.split == "train" and row.pair not in validated:
            row = row._replace(held_out=True)
            found.append(row._replace(split="valid"))
        found.append(row)
    return found


def is_held_out(number: int) -> bool:
    """Whether the training pair of this number (from 0) is one of those held out."""
    return number % 1000 == 0 and number < 100_000


def directions_of(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The directions of each split; every pair serves both."""
    found: dict[str, list[str]] = {}
    for row in rows:
        both = ["-".join(row.pair), "-".join(reversed(row.pair))]
        found.setdefault(row.split, []).extend(both)
    return {split: sorted(names) for split, names in found.items()}
