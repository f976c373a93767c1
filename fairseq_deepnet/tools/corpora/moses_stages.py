"""The stages of scripts/preprocess_moses.sh: tokenise and clean, learn byte-pair codes, encode.

Every stage reads and writes text in chunks shared out over processes, in order: memory is bounded,
and the number of processes changes nothing in the result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.corpora import moses
from fairseq_deepnet.tools.corpora.clean import Limits, checked_pairs
from fairseq_deepnet.tools.corpora.manifest import test_sets
from fairseq_deepnet.tools.corpora.parallel import CHUNK, map_in_order
from fairseq_deepnet.tools.corpora.text import (
    PairChunk,
    decode,
    find_side,
    numbered_chunks,
    pair_chunks,
)

TEXT, TOKENISED = "text", "tokenised"


@dataclass
class Lines:
    """What is left of a chunk: every kept pair as raw text, tokens and perhaps subwords."""

    text: list[tuple[str, str]]
    tokens: list[tuple[str, str]]
    subwords: list[tuple[str, str]]
    dropped: Counter[str]


class Sink:
    """The files of one split: FOLDER/SPLIT.LANGUAGE for some folders and both languages."""

    def __init__(self, folders: Sequence[Path], split: str, languages: tuple[str, str]) -> None:
        self.kept = 0
        self._stack = ExitStack()
        self._files: list[tuple[BinaryIO, ...]] = []
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            paths = (folder / f"{split}.{language}" for language in languages)
            self._files.append(tuple(self._stack.enter_context(path.open("wb")) for path in paths))

    def write(self, *kinds: Sequence[tuple[str, str]]) -> None:
        """Add the same pairs, of one kind for each folder."""
        for files, pairs in zip(self._files, kinds, strict=True):
            for side, stream in enumerate(files):
                stream.write("".join(f"{pair[side]}\n" for pair in pairs).encode())
        self.kept += len(kinds[0])

    def close(self) -> None:
        self._stack.close()


def _tokenise_chunk(
    chunk: PairChunk,
    paths: tuple[Path, Path],
    languages: tuple[str, str],
    how: moses.Tokenisation,
    limits: Limits | None,
    checked: bool,
) -> Lines:
    """Work of one process: tokens, and the pairs whose tokens are within the limits."""
    lines = Lines([], [], [], Counter())
    pairs = chunk.decode(*paths)
    for pair in checked_pairs(pairs, *paths, chunk.start) if checked else pairs:
        source, target = (
            moses.tokenise(line, code, how) for line, code in zip(pair, languages, strict=True)
        )
        reason = moses.why_dropped(source, target, limits) if limits else None
        if reason is not None:
            lines.dropped[reason] += 1
            continue
        text = pair[0].replace("\r", " "), pair[1].replace("\r", " ")
        lines.text.append(text)
        lines.tokens.append((source, target))
    return lines


def tokenise_split(
    split: str,
    prefix: str,
    languages: tuple[str, str],
    sinks: dict[str, Sink],
    how: moses.Tokenisation,
    limits: Limits | None,
    hold_out: int,
    workers: int,
) -> dict[str, Any]:
    """Tokenise one split into its sink; of train, every `hold_out`-th kept pair goes to valid."""
    paths = find_side(prefix, languages[0]), find_side(prefix, languages[1])
    work = partial(
        _tokenise_chunk,
        paths=paths,
        languages=languages,
        how=how,
        limits=limits,
        checked=split != "train",
    )
    dropped: Counter[str] = Counter()
    kept = 0
    for lines in map_in_order(work, pair_chunks(*paths, CHUNK), workers):
        dropped += lines.dropped
        first, kept = kept + 1, kept + len(lines.text)
        if not hold_out:
            sinks[split].write(lines.text, lines.tokens)
            continue
        held = [number % hold_out == 0 for number in range(first, kept + 1)]
        for name, wanted in ((split, False), ("valid", True)):
            chosen = [index for index, is_held in enumerate(held) if is_held == wanted]
            text, tokens = ([kind[i] for i in chosen] for kind in (lines.text, lines.tokens))
            sinks[name].write(text, tokens)
    if kept == 0:
        raise ValueError(f"no pair of {paths[0]} and {paths[1]} is left ({dict(dropped)})")
    return {"read": kept + dropped.total(), "kept": kept, "dropped": dict(dropped)}


def tokenise(args: argparse.Namespace) -> None:
    """`deepnet moses tokenise`: OUT/text, OUT/tokenised and OUT/clean.json."""
    languages = (args.src, args.tgt)
    splits = {"train": args.train}
    if (args.valid is None) == (args.hold_out == 0):
        raise ValueError("give either --valid or --hold-out")
    splits |= {"valid": args.valid} if args.valid else {}
    splits |= test_sets(args.test)
    for prefix in splits.values():  # all sides first: a missing test set must not cost an hour
        for language in languages:
            find_side(prefix, language)
    limits = _limits(args)
    plain = moses.Tokenisation(lowercase=args.lowercase, aggressive=args.aggressive)
    of_train = replace(plain, punctuation=args.punctuation)
    of_test = replace(plain, apostrophes=args.apostrophes)
    folders = [args.out / TEXT, args.out / TOKENISED]
    sinks = {name: Sink(folders, name, languages) for name in {*splits, "valid"}}
    report: dict[str, Any] = {}
    for split, prefix in splits.items():
        train = split == "train"
        report[split] = tokenise_split(
            split,
            prefix,
            languages,
            sinks,
            of_train if train else of_test,
            limits if train and args.clean_on == "words" else None,
            args.hold_out if train else 0,
            args.workers,
        )
    for sink in sinks.values():
        sink.close()
    if not sinks["valid"].kept:
        raise ValueError(
            f"no pair is held out for valid: every {args.hold_out}th is, and train keeps "
            f"{report['train']['kept']}; give more text"
        )
    report["train"]["kept"] = sinks["train"].kept
    if args.hold_out:
        held = {"kept": sinks["valid"].kept, "held_out_every": args.hold_out}
        report = {"train": report.pop("train"), "valid": held, **report}
    report["limits"] = asdict(limits) | {"on": args.clean_on}
    _write_report(args.out, report)
    _say(report)


def _count_words(chunk: tuple[int, list[bytes]], path: Path) -> Counter[str]:
    words: Counter[str] = Counter()
    for number, raw in enumerate(chunk[1], chunk[0]):
        words.update(decode(raw, path, number).split())
    return words


def learn(args: argparse.Namespace) -> None:
    """`deepnet moses learn`: joint codes of both sides of the tokenised training text."""
    words: Counter[str] = Counter()
    for language in (args.src, args.tgt):
        path = find_side(args.tokens, language)
        work = partial(_count_words, path=path)
        for counts in map_in_order(work, numbered_chunks(path, CHUNK), args.workers):
            words.update(counts)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    found = moses.learn_codes(dict(words), args.merges, args.out)
    short = "" if found == args.merges else f", not {args.merges:,}: no other pair occurs twice"
    print(f"{found:,} byte-pair codes of {len(words):,} words{short}", file=sys.stderr)


def _encode_chunk(
    chunks: tuple[PairChunk, PairChunk],
    paths: tuple[tuple[Path, Path], tuple[Path, Path]],
    codes: Path,
    limits: Limits | None,
) -> Lines:
    """Work of one process: subwords, and the pairs whose subwords are within the limits."""
    text, tokens = (list(chunk.decode(*names)) for chunk, names in zip(chunks, paths, strict=True))
    sides = [moses.encode_lines((pair[side] for pair in tokens), codes) for side in (0, 1)]
    lines = Lines([], [], [], Counter())
    for raw, words, source, target in zip(text, tokens, *sides, strict=True):
        reason = moses.why_dropped(source, target, limits) if limits else None
        if reason is not None:
            lines.dropped[reason] += 1
            continue
        lines.text.append(raw)
        lines.tokens.append(words)
        lines.subwords.append((source, target))
    return lines


def encode_split(
    split: str,
    folder: Path,
    languages: tuple[str, str],
    out: Path,
    codes: Path,
    limits: Limits | None,
    workers: int,
) -> dict[str, Any]:
    """Encode one split of what `tokenise` made; text and tokens follow, as pairs may be dropped."""
    text, tokens = (
        (folder / kind / f"{split}.{languages[0]}", folder / kind / f"{split}.{languages[1]}")
        for kind in (TEXT, TOKENISED)
    )

    def chunks() -> Iterator[tuple[PairChunk, PairChunk]]:
        both = (pair_chunks(*paths, CHUNK) for paths in (text, tokens))
        return zip(*both, strict=True)

    sink = Sink([out / TEXT, out / TOKENISED, out], split, languages)
    work = partial(_encode_chunk, paths=(text, tokens), codes=codes, limits=limits)
    dropped: Counter[str] = Counter()
    for lines in map_in_order(work, chunks(), workers):
        dropped += lines.dropped
        sink.write(lines.text, lines.tokens, lines.subwords)
    sink.close()
    if not sink.kept:
        raise ValueError(f"no pair of {split} is left ({dict(dropped)}); widen the limits")
    return {"kept": sink.kept, "dropped": dict(dropped)}


def encode(args: argparse.Namespace) -> None:
    """`deepnet moses encode`: OUT/SPLIT.LANGUAGE in subwords, with text, tokens and clean.json."""
    report = read_record(args.tokenised / "clean.json", remedy="make the folder anew")
    languages = (args.src, args.tgt)
    limits = _limits(args) if args.clean_on == "subwords" else None
    for split in [name for name in report if name != "limits"]:
        within = limits if split in ("train", "valid") else None
        found = encode_split(
            split, args.tokenised, languages, args.out, args.codes, within, args.workers
        )
        report[split]["kept"] = found["kept"]
        dropped = Counter(report[split].get("dropped", {})) + Counter(found["dropped"])
        report[split]["dropped"] = dict(dropped)
    _write_report(args.out / TEXT, report)
    if limits:
        _say(report)


def _limits(args: argparse.Namespace) -> Limits:
    return Limits(args.min_tokens, args.max_tokens, args.max_ratio)


def _write_report(folder: Path, report: dict[str, Any]) -> None:
    text = json.dumps(report, indent=2) + "\n"
    (folder / "clean.json").write_text(text, encoding="utf-8")


def _say(report: dict[str, Any]) -> None:
    for split in (name for name in report if name != "limits"):
        dropped = report[split].get("dropped", {})
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        said = f"{split}: {report[split]['kept']:,} pairs"
        print(said + (f" (dropped: {reasons})" if reasons else ""), file=sys.stderr)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet moses tokenise|learn|encode`."""
    parser.description = __doc__
    commands = parser.add_subparsers(required=True, metavar="tokenise|learn|encode")
    tokens = commands.add_parser("tokenise", help="raw text to tokens; drop and hold out pairs")
    codes = commands.add_parser("learn", help="byte-pair codes of both sides")
    pieces = commands.add_parser("encode", help="tokens to subwords; drop pairs")
    for command in (tokens, codes, pieces):
        command.add_argument("--src", required=True, help="language, the files' ending")
        command.add_argument("--tgt", required=True, help="language, the files' ending")
        command.add_argument("--out", required=True, type=Path)
        command.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    for command in (tokens, pieces):
        command.add_argument("--clean-on", choices=("words", "subwords"), default="words")
        command.add_argument("--min-tokens", type=int, default=1)
        command.add_argument("--max-tokens", type=int, default=175)
        command.add_argument("--max-ratio", type=float, default=1.5)
    tokens.add_argument("--train", required=True, metavar="PREFIX")
    tokens.add_argument("--valid", metavar="PREFIX")
    tokens.add_argument("--test", metavar="PREFIX[,PREFIX]")
    tokens.add_argument("--hold-out", type=int, default=0, metavar="N", help="every Nth of train")
    tokens.add_argument("--lowercase", action="store_true")
    tokens.add_argument("--aggressive", action="store_true", help="split at hyphens")
    tokens.add_argument("--punctuation", action="store_true", help="normalise it in train")
    tokens.add_argument("--apostrophes", action="store_true", help="plain ones in test")
    codes.add_argument("--tokens", required=True, metavar="PREFIX")
    codes.add_argument("--merges", type=int, default=10_000)
    pieces.add_argument("--tokenised", required=True, type=Path, help="what tokenise made")
    pieces.add_argument("--codes", required=True, type=Path)
    tokens.set_defaults(stage=tokenise)
    codes.set_defaults(stage=learn)
    pieces.set_defaults(stage=encode)


def run(args: argparse.Namespace) -> int:
    """`deepnet moses tokenise|learn|encode`."""
    args.stage(args)
    return 0
