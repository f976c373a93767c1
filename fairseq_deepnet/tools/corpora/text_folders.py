"""Data folders of raw text and sentencepiece subwords: one pair, many pairs, or one language.

Training text is cleaned. Of valid and test, one pair refuses blank lines, as scores need all of
them; many pairs keep and count them; one language leaves them out, as they hold nothing to predict.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fairseq_deepnet.files import say, write_json, write_text
from fairseq_deepnet.tools.corpora import clean, subwords
from fairseq_deepnet.tools.corpora.builder import Blueprint, Row, link_folder, stage, summary
from fairseq_deepnet.tools.corpora.subwords import allot, spread
from fairseq_deepnet.tools.corpora.text import read_lines

_LANGUAGE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SPLIT = re.compile(r"train|valid|test[0-9]*|valid[0-9]+")
Counted = dict[str, dict[str, Any]]
"""What was counted in each row, by its name."""


@dataclasses.dataclass(frozen=True)
class TextFolder(Blueprint):
    """What the three kinds share: clean, train sentencepiece on train, binarise.

    `blanks` is what is done to a blank line of valid or test, see `clean.clean_split`; names are
    patterns of file names.
    """

    rows: Sequence[Row]
    options: subwords.SubwordOptions
    limits: clean.Limits
    workers: int = 1
    blanks: ClassVar[str] = "refuse"
    text_name: ClassVar[str] = "{split}"
    binarised_name: ClassVar[str] = "{split}.{pair}.{language}"
    dictionary_name: ClassVar[str] = "dict.txt"

    def name(self, row: Row) -> str:
        """Return the name of a row's text, without the language."""
        return self.text_name.format(split=row.split, pair="-".join(row.pair))

    @property
    def languages(self) -> list[str]:
        """Return every language, once."""
        return list(dict.fromkeys(language for row in self.rows for language in row.pair))

    def model_name(self, language: str) -> str:
        """Return the name of a language's sentencepiece model."""
        return "spm"

    def make(self, part: Path) -> tuple[dict[str, Any], str]:
        """Run all stages; PART/whole is then the data folder but for its record."""

        clean_all = partial(self.each_row, "cleaning", self._clean)
        text = stage(part, "text", "checking and cleaning the text", clean_all, by_row=True)
        learnt = stage(part, "subwords", "training subwords", partial(self._learn, text))
        binarise_all = partial(self.each_row, "binarising", self._binarise)
        binarised = stage(part, "binarised", "binarising", binarise_all, by_row=True)
        cleaned, counts = self.counted(text), self.counted(binarised)
        for name, found in cleaned.items():
            sentences = {side["sentences"] for side in counts[name].values()}
            if sentences != {found["kept"]}:
                raise ValueError(f"{name}: {found['kept']} lines cleaned, {sentences} binarised")
        whole = part / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        for folder, place in (binarised, whole), (learnt, whole), (text, whole / "text"):
            link_folder(folder, place)
        facts = {"vocab_size": self.options.vocab_size, "subwords": self.options.kind}
        record = facts | self.record(whole, cleaned, counts)
        return record, summary(record, counts)

    @abstractmethod
    def record(self, whole: Path, cleaned: Counted, counts: Counted) -> dict[str, Any]:
        """Return what corpus.json says of this kind of folder, and add what else it holds."""

    def _clean(self, row: Row, folder: Path, workers: int) -> dict[str, Any]:
        valid = row.split == "valid"
        return clean.clean_split(
            row.split,
            row.prefix,
            row.pair,
            folder,
            self.limits,
            workers,
            name=self.name(row),
            blanks="clean" if row.held_out else self.blanks,
            wanted=(lambda number: is_held_out(number) == valid) if row.held_out else None,
        )

    def _learn(self, text: Path, out: Path) -> None:
        """Train the models, each on the training text of its languages, and write dictionaries."""
        models: dict[str, list[str]] = {}
        for language in self.languages:
            models.setdefault(self.model_name(language), []).append(language)
        for name, languages in models.items():
            files = self._to_learn_from(text, languages, out)
            subwords.train_model(files, out / name, self.options)
            model = subwords.load_model(out / f"{name}.model")
            for language in languages:
                subwords.write_dictionary(
                    model, out / self.dictionary_name.format(language=language)
                )

    def _to_learn_from(self, text: Path, languages: list[str], out: Path) -> list[Path]:
        """Return the files that a model is trained on."""
        said = f"{self.options.kind} of {self.options.vocab_size:,} pieces"
        say(f"training {said} on {' + '.join(languages)}")
        return [text / f"train.{language}" for language in languages]

    def _binarise(self, row: Row, folder: Path, workers: int) -> dict[str, Any]:
        from fairseq_deepnet.tools.corpora.binarise import binarise_text

        part, counts = folder.parent, {}
        for language in row.pair:
            model = part / "subwords" / f"{self.model_name(language)}.model"
            text = part / "text" / f"{self.name(row)}.{language}"
            names = {"split": row.split, "pair": "-".join(row.pair), "language": language}
            out = folder / self.binarised_name.format(**names)
            counts[language] = binarise_text(model, text, out, workers)._asdict()
        return counts

    def _write_cleaning(self, whole: Path, cleaned: Counted) -> dict[str, Any]:
        """Write text/clean.json and return the part of the record that it is."""
        cleaning = cleaned | {"limits": dataclasses.asdict(self.limits)}
        write_json(whole / "text" / "clean.json", cleaning)
        lines = {name: found["kept"] for name, found in cleaned.items()}
        return {"lines": lines, "cleaning": cleaning}


@dataclasses.dataclass(frozen=True)
class OnePair(TextFolder):
    """A folder of one pair; `joint`: with one model for both languages; `hold_out`: every such
    training pair was taken for validation before.
    """

    joint: bool = True
    fairseq_options: str = ""
    hold_out: int = 0
    dictionary_name = "dict.{language}.txt"

    @property
    def settings(self) -> dict[str, Any]:
        """Return what a second run compares."""
        options, limits = dataclasses.asdict(self.options), dataclasses.asdict(self.limits)
        return {
            "source": self.languages[0],
            "target": self.languages[1],
            "vocab_size": options.pop("vocab_size"),
            "subwords": options.pop("kind"),
            "joint": self.joint,
            **options,
            **limits,
            "max_ratio": plain(self.limits.max_ratio),
            "fairseq_options": self.fairseq_options,
            **({"hold_out": self.hold_out} if self.hold_out else {}),
        }

    def model_name(self, language: str) -> str:
        """Return the name of a language's sentencepiece model."""
        return "spm" if self.joint else f"spm.{language}"

    def record(self, whole: Path, cleaned: Counted, counts: Counted) -> dict[str, Any]:
        """Return what corpus.json says; write text/clean.json."""
        source, target = self.languages
        facts = {"source": source, "target": target, "joint": self.joint}
        binarised = {"binarised": pair_counts(counts, self.languages)}
        return facts | self._write_cleaning(whole, cleaned) | binarised


def plain(number: float) -> float:
    """Return a whole number as one: what scripts were given as 5 is recorded as 5."""
    return int(number) if number == int(number) else number


def pair_counts(counts: Counted, languages: Sequence[str]) -> Counted:
    """Return tokens (with one </s> a line) and per cent unknown, by "SPLIT.LANGUAGE"."""
    found = {}
    for language in languages:
        for split, sides in counts.items():
            tokens, unknown = sides[language]["tokens"], sides[language]["unknown"]
            percent = float(f"{100 * unknown / tokens:.3}")  # as fairseq-preprocess prints it
            found[f"{split}.{language}"] = {"tokens": tokens, "unknown_percent": percent}
    return found


@dataclasses.dataclass(frozen=True)
class OneLanguage(TextFolder):
    """A folder of one language, for language models."""

    blanks = "drop"
    binarised_name = "{split}"

    @property
    def settings(self) -> dict[str, Any]:
        """Return what a second run compares."""
        return {
            "language": self.languages[0],
            "subwords": dataclasses.asdict(self.options),
            "limits": dataclasses.asdict(self.limits),
        }

    def record(self, whole: Path, cleaned: Counted, counts: Counted) -> dict[str, Any]:
        """Return what corpus.json says; write text/clean.json."""
        (language,) = self.languages
        for found in cleaned.values():
            del found["read"]
        binarised = {name: found[language] for name, found in counts.items()}
        facts = {"language": language, "binarised": binarised}
        return facts | self._write_cleaning(whole, cleaned)


@dataclasses.dataclass(frozen=True)
class ManyPairs(TextFolder):
    """A folder of many pairs with one dictionary; the model is trained on a sample, see `allot`."""

    temperature: float = 5.0
    blanks = "keep"
    text_name = "{split}.{pair}"

    def __post_init__(self) -> None:
        if not self.temperature >= 1:
            raise ValueError(f"temperature is {self.temperature}; it must be at least 1")

    @property
    def settings(self) -> dict[str, Any]:
        """Return what a second run compares."""
        return {
            "subwords": dataclasses.asdict(self.options),
            "temperature": self.temperature,
            "limits": dataclasses.asdict(self.limits),
        }

    def _to_learn_from(self, text: Path, languages: list[str], out: Path) -> list[Path]:
        """Write a sample of every language's training text; the lines taken go to sample.json."""
        cleaned = self.counted(text)
        files: dict[str, list[tuple[Path, int]]] = {}
        for row in self.rows:
            if row.split == "train":
                for language in row.pair:
                    side = text / f"{row.name}.{language}", int(cleaned[row.name]["kept"])
                    files.setdefault(language, []).append(side)
        there = {name: sum(kept for _, kept in sides) for name, sides in sorted(files.items())}
        taken = allot(there, self.options.sample, self.temperature)
        say(
            f"training {self.options.kind} of {self.options.vocab_size:,} pieces on"
            f" {sum(taken.values()):,} of {sum(there.values()):,} lines in {len(there)} languages"
        )
        sample = out / "sample.txt"
        with sample.open("w", encoding="utf-8", newline="\n") as stream:
            for language, sides in sorted(files.items()):
                start = 0
                for path, kept in sides:
                    lines = read_lines(path)
                    for line in spread(lines, start, taken[language], there[language]):
                        stream.write(line + "\n")
                    start += kept
        write_json(out.parent / "sample.json", taken)
        return [sample]

    def _learn(self, text: Path, out: Path) -> None:
        super()._learn(text, out)
        (out / "sample.txt").unlink()

    def record(self, whole: Path, cleaned: Counted, counts: Counted) -> dict[str, Any]:
        """Return what corpus.json says; write languages.txt."""
        languages = sorted(self.languages)
        write_text(whole / "languages.txt", "".join(f"{name}\n" for name in languages))
        lines: dict[str, dict[str, int]] = {}
        cleaning = {}
        for row in self.rows:
            found = cleaned[row.name]
            lines.setdefault(row.split, {})["-".join(row.pair)] = found["kept"]
            dropped = "dropped" if row.split == "train" or row.held_out else "odd"
            facts = {"kept": found["kept"], "held_out": row.held_out, dropped: found["dropped"]}
            cleaning[row.name] = facts
        return {
            "languages": languages,
            "directions": directions_of(self.rows),
            "lines": lines,
            "sample": json.loads((whole.parent / "sample.json").read_text(encoding="utf-8")),
            "binarised": counts,
            "cleaning": cleaning,
        }


def read_table(path: Path) -> list[Row]:
    """Return the rows of a table of pairs; ValueError that names the line for what cannot be."""
    rows: dict[str, Row] = {}
    for number, line in enumerate(read_lines(path), start=1):
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
    """Return the rows, and a validation set for every trained pair that has none.

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
    """Return True if the training pair of this number (from 0) is one of those held out."""
    return number % 1000 == 0 and number < 100_000


def directions_of(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the directions of each split; every pair serves both."""
    found: dict[str, list[str]] = {}
    for row in rows:
        both = ["-".join(row.pair), "-".join(reversed(row.pair))]
        found.setdefault(row.split, []).extend(both)
    return {split: sorted(names) for split, names in found.items()}
