"""Data folders of Moses tokens and byte-pair codes, as published recipes make them.

Text is read and written in chunks shared out over processes, in order: memory is bounded, and the
number of processes changes nothing in the result.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fairseq_deepnet.files import say, write_json
from fairseq_deepnet.tools.corpora import moses
from fairseq_deepnet.tools.corpora.builder import Blueprint, Row, link_folder, stage, summary
from fairseq_deepnet.tools.corpora.clean import Limits, checked_pairs, sift
from fairseq_deepnet.tools.corpora.parallel import CHUNK, map_in_order
from fairseq_deepnet.tools.corpora.text import PairChunk, pair_chunks
from fairseq_deepnet.tools.corpora.text_folders import pair_counts, plain

TEXT, TOKENISED = "text", "tokenised"
_Paths = tuple[Path, Path]
_Pair = tuple[str, str]
_Forms = tuple[_Pair, ...]
"""A pair of lines as raw text, as tokens and, once it has them, as subwords."""


@dataclasses.dataclass(frozen=True)
class MosesPair(Blueprint):
    """A folder of one pair in Moses tokens.

    Attributes:
        rows: train, perhaps valid, test sets.
        how: of the tokens; `punctuation` is for train alone, `apostrophes` for the others.
        merges: number of byte-pair codes, learnt on both languages together.
        joined: one dictionary for both languages.
        hold_out: every such training pair is for validation; 0: there is a row for it.
        clean_on: "words": train is cleaned by tokens before pairs are held out; "subwords": train
            and valid at the end, by subwords.
        dictionaries: how large they become, by the names of fairseq-preprocess' options.
    """

    rows: Sequence[Row]
    how: moses.Tokenisation
    limits: Limits
    merges: int = 10_000
    joined: bool = False
    hold_out: int = 0
    clean_on: str = "words"
    dictionaries: Mapping[str, int] = dataclasses.field(default_factory=dict)
    fairseq_options: str = ""
    workers: int = 1
    tools: ClassVar[tuple[str, ...]] = ("sacremoses", "subword-nmt")

    def __post_init__(self) -> None:
        if any(row.split == "valid" for row in self.rows) == bool(self.hold_out):
            raise ValueError("give either a text for validation or pairs of train to hold out")

    @property
    def languages(self) -> _Pair:
        """Return source and target."""
        source, target = self.rows[0].pair
        return source, target

    @property
    def settings(self) -> dict[str, Any]:
        """Return what a second run compares."""
        return {
            "source": self.languages[0],
            "target": self.languages[1],
            "tokenisation": "moses",
            **dataclasses.asdict(self.how),
            "subwords": "subword-nmt",
            "merges": self.merges,
            "joint": self.joined,
            "hold_out": self.hold_out,
            "clean_on": self.clean_on,
            "min_tokens": self.limits.min_words,
            "max_tokens": self.limits.max_words,
            "max_ratio": plain(self.limits.max_ratio),
            "fairseq_options": self.fairseq_options,
        }

    def make(self, part: Path) -> tuple[dict[str, Any], str]:
        """Run all stages; PART/whole is then the data folder but for its record."""
        tokens = stage(part, TOKENISED, "tokenising and cleaning the text", self.tokenise)
        learn = partial(self.learn, tokens)
        codes = stage(part, "codes", "learning byte-pair codes", learn)
        encode = partial(self.encode, tokens, codes / "bpe.codes")
        encoded = stage(part, "encoded", "encoding", encode)
        binarised = stage(part, "binarised", "binarising", partial(self.binarise, encoded))
        counts = json.loads((binarised / "counts.json").read_text(encoding="utf-8"))
        cleaning = json.loads((encoded / TEXT / "clean.json").read_text(encoding="utf-8"))
        lines = {split: cleaning[split]["kept"] for split in counts}
        for split, sides in counts.items():
            if {side["sentences"] for side in sides.values()} != {lines[split]}:
                raise ValueError(f"{split}: {lines[split]} pairs encoded, binarised are {sides}")
        whole = part / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        link_folder(binarised, whole)
        link_folder(codes, whole)
        for name in (TEXT, TOKENISED):
            link_folder(encoded / name, whole / name)
        (whole / "counts.json").unlink()
        sizes = {}
        for language in self.languages:
            dictionary = (whole / f"dict.{language}.txt").read_bytes()
            sizes[language] = 4 + dictionary.count(b"\n")  # fairseq's specials are in no file
        record = {
            "source": self.languages[0],
            "target": self.languages[1],
            "lines": lines,
            "subwords": "subword-nmt",
            "joint": self.joined,
            "tokenisation": "moses",
            "lowercase": self.how.lowercase,
            "aggressive": self.how.aggressive,
            "merges": self.merges,
            "vocab_size": max(sizes.values()),
            "vocabularies": sizes,
            "binarised": pair_counts(counts, self.languages),
            "cleaning": cleaning,
        }
        return record, summary(record, counts)

    def tokenise(self, out: Path) -> None:
        """Write OUT/text, OUT/tokenised and OUT/clean.json."""
        report: dict[str, Any] = {}
        folders = [out / TEXT, out / TOKENISED]
        with ExitStack() as files:
            sinks = {
                split: files.enter_context(Sink(folders, split, self.languages))
                for split in {*(row.split for row in self.rows), "valid"}
            }
            for row in self.rows:
                report[row.split] = self._tokenise_row(row, sinks)
        if not sinks["valid"].kept:
            raise ValueError(
                f"no pair is held out for valid: every {self.hold_out}th is, and train keeps "
                f"{report['train']['kept']}; give more text"
            )
        report["train"]["kept"] = sinks["train"].kept
        if self.hold_out:
            held = {"kept": sinks["valid"].kept, "held_out_every": self.hold_out}
            report = {"train": report.pop("train"), "valid": held, **report}
        report["limits"] = dataclasses.asdict(self.limits) | {"on": self.clean_on}
        write_json(out / "clean.json", report)
        _say(report)

    def _tokenise_row(self, row: Row, sinks: dict[str, Sink]) -> dict[str, Any]:
        """Tokenise one split; of train, every `hold_out`-th kept pair goes to valid."""
        train = row.split == "train"
        source, target = row.sides()
        off = {"apostrophes": False} if train else {"punctuation": False}
        work = partial(
            _tokenise_chunk,
            paths=(source, target),
            languages=self.languages,
            how=dataclasses.replace(self.how, **off),
            limits=self.limits if train and self.clean_on == "words" else None,
            checked=not train,
        )
        dropped: Counter[str] = Counter()
        kept = 0
        for pairs, reasons in map_in_order(work, pair_chunks(source, target, CHUNK), self.workers):
            dropped += reasons
            first = -(kept + 1) % self.hold_out if self.hold_out else 0
            kept += len(pairs)
            if train and self.hold_out:
                sinks["valid"].write(pairs[first :: self.hold_out])
                del pairs[first :: self.hold_out]
            sinks[row.split].write(pairs)
        if kept == 0:
            raise ValueError(f"no pair of {source} and {target} is left ({dict(dropped)})")
        return {"read": kept + dropped.total(), "kept": kept, "dropped": dict(dropped)}

    def learn(self, tokenised: Path, out: Path) -> None:
        """Write OUT/bpe.codes: joint codes of both sides of the training text."""
        from fairseq_deepnet.tools.corpora.binarise import count_words

        words: Counter[str] = Counter()
        for language in self.languages:
            words.update(count_words(tokenised / TOKENISED / f"train.{language}", self.workers))
        found = moses.learn_codes(dict(words), self.merges, out / "bpe.codes")
        few = "" if found == self.merges else f", not {self.merges:,}: no other pair occurs twice"
        say(f"{found:,} byte-pair codes of {len(words):,} words{few}")

    def encode(self, tokenised: Path, codes: Path, out: Path) -> None:
        """Write OUT/SPLIT.LANGUAGE in subwords, with text, tokens and clean.json.

        Text and tokens follow, as pairs may be dropped.
        """
        report = json.loads((tokenised / "clean.json").read_text(encoding="utf-8"))
        by_subwords = self.clean_on == "subwords"
        for split in (name for name in report if name != "limits"):
            limits = self.limits if by_subwords and split in ("train", "valid") else None
            text, tokens = (
                _sides(tokenised / kind, split, self.languages) for kind in (TEXT, TOKENISED)
            )
            chunks = zip(pair_chunks(*text, CHUNK), pair_chunks(*tokens, CHUNK), strict=True)
            work = partial(_encode_chunk, paths=(text, tokens), codes=codes, limits=limits)
            dropped = Counter(report[split].get("dropped", {}))
            with Sink([out / TEXT, out / TOKENISED, out], split, self.languages) as sink:
                for pairs, reasons in map_in_order(work, chunks, self.workers):
                    dropped += reasons
                    sink.write(pairs)
            if not sink.kept:
                raise ValueError(f"no pair of {split} is left ({dict(dropped)}); widen the limits")
            report[split] |= {"kept": sink.kept, "dropped": dict(dropped)}
        write_json(out / TEXT / "clean.json", report)
        if by_subwords:
            _say(report)

    def binarise(self, encoded: Path, out: Path) -> None:
        """Write OUT/dict.LANGUAGE.txt, OUT/SPLIT.PAIR.LANGUAGE.{bin,idx} and OUT/counts.json."""
        from fairseq_deepnet.tools.corpora.binarise import binarise_words, write_word_dictionary

        factor = self.dictionaries.get("padding_factor", 8)
        report = json.loads((encoded / TEXT / "clean.json").read_text(encoding="utf-8"))
        counts: dict[str, dict[str, Any]] = {name: {} for name in report if name != "limits"}
        for language, side in zip(self.languages, ("src", "tgt"), strict=True):
            dictionary = out / f"dict.{language}.txt"
            if self.joined and side == "tgt":
                shutil.copyfile(out / f"dict.{self.languages[0]}.txt", dictionary)
            else:
                learnt_from = self.languages if self.joined else (language,)
                texts = [encoded / f"train.{code}" for code in learnt_from]
                threshold = self.dictionaries.get(f"threshold{side}", 0)
                size = self.dictionaries.get(f"nwords{side}", -1)
                write_word_dictionary(texts, dictionary, threshold, size, factor, self.workers)
            for split, found in counts.items():
                name = f"{split}.{'-'.join(self.languages)}.{language}"
                text = encoded / f"{split}.{language}"
                found[language] = binarise_words(
                    dictionary, text, out / name, self.workers
                )._asdict()
        write_json(out / "counts.json", counts)


class Sink:
    """The files of one split: FOLDER/SPLIT.LANGUAGE for both languages and each form of a pair."""

    def __init__(self, folders: Sequence[Path], split: str, languages: _Pair) -> None:
        self.kept = 0
        self._stack = ExitStack()
        self._files = []
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            paths = _sides(folder, split, languages)
            self._files.append([self._stack.enter_context(path.open("wb")) for path in paths])

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def write(self, pairs: Sequence[_Forms]) -> None:
        """Add pairs, in every form that there is a folder for."""
        for form, files in enumerate(self._files):
            for side, stream in enumerate(files):
                stream.write("".join(f"{pair[form][side]}\n" for pair in pairs).encode())
        self.kept += len(pairs)


def _sides(folder: Path, split: str, languages: _Pair) -> _Paths:
    return folder / f"{split}.{languages[0]}", folder / f"{split}.{languages[1]}"


def _tokenise_chunk(
    chunk: PairChunk,
    paths: _Paths,
    languages: _Pair,
    how: moses.Tokenisation,
    limits: Limits | None,
    checked: bool,
) -> tuple[list[_Forms], Counter[str]]:
    """Tokenise a chunk; return tokens, and the pairs whose tokens are within the limits."""

    def tokenised(pair: _Pair) -> _Forms:
        source, target = map(moses.tokenise, pair, languages, (how, how))
        return (pair[0].replace("\r", " "), pair[1].replace("\r", " ")), (source, target)

    pairs: Iterator[_Pair] = chunk.decode(*paths)
    if checked:
        pairs = checked_pairs(pairs, *paths, chunk.start)
    return _within(limits, map(tokenised, pairs))


def _encode_chunk(
    chunks: tuple[PairChunk, PairChunk],
    paths: tuple[_Paths, _Paths],
    codes: Path,
    limits: Limits | None,
) -> tuple[list[_Forms], Counter[str]]:
    """Encode a chunk; return subwords, and the pairs whose subwords are within the limits."""
    text, tokens = (list(chunk.decode(*names)) for chunk, names in zip(chunks, paths, strict=True))
    source, target = (moses.encode_lines((pair[side] for pair in tokens), codes) for side in (0, 1))
    subwords = zip(source, target, strict=True)
    return _within(limits, zip(text, tokens, subwords, strict=True))


def _within(limits: Limits | None, pairs: Iterable[_Forms]) -> tuple[list[_Forms], Counter[str]]:
    """Return the pairs whose last form is within the limits, and why the others are not."""
    dropped: Counter[str] = Counter()
    if limits is None:
        return list(pairs), dropped
    kept = sift(pairs, lambda forms: moses.why_dropped(*forms[-1], limits), dropped)
    return list(kept), dropped


def _say(report: dict[str, Any]) -> None:
    for split in (name for name in report if name != "limits"):
        dropped = report[split].get("dropped", {})
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        said = f"{split}: {report[split]['kept']:,} pairs"
        say(said + (f" (dropped: {reasons})" if reasons else ""))
