"""Check parallel text, and clean its training part.

Every split is checked: both sides there, valid UTF-8, as many lines on one side as on the other,
and not empty. Only training text is cleaned. Lines of valid and test are never dropped or changed,
because scores need all of them: there, an empty line is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path

from fairseq_deepnet.tools.corpora.manifest import test_sets
from fairseq_deepnet.tools.corpora.parallel import CHUNK, map_in_order
from fairseq_deepnet.tools.corpora.text import (
    PairChunk,
    find_side,
    is_blank,
    normalise,
    pair_chunks,
)

# What counts as one word where a script writes no spaces: one Han or Kana character, or up to four
# characters of Thai, Lao, Burmese or Khmer (about their mean word length).
_HAN_KANA = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_THAI_KHMER = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(f"[{_HAN_KANA}]|[{_THAI_KHMER}]{{1,4}}|[^\\s{_HAN_KANA}{_THAI_KHMER}]+")
_PROGRESS_EVERY = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Which training pairs stay. Lengths are in words of raw text, on either side."""

    min_words: int = 1
    max_words: int = 250
    max_ratio: float = 5.0  # raw words: "Cvičí jógu." is "Elle est en train de faire du yoga."
    drop_duplicates: bool = False

    def __post_init__(self) -> None:
        if self.min_words < 1:
            raise ValueError(f"min_words is {self.min_words}; it must be at least 1")
        if self.max_words < self.min_words:
            raise ValueError(f"max_words ({self.max_words}) is below min_words ({self.min_words})")
        if not self.max_ratio >= 1:
            raise ValueError(f"max_ratio is {self.max_ratio}; it must be at least 1")


def count_words(line: str) -> int:
    """Number of words: runs between spaces, with scripts that write no spaces counted fairly."""
    return len(_WORD.findall(line))


def why_dropped(source: str, target: str, limits: Limits) -> str | None:
    """The reason why a normalised training pair is dropped, or None if it stays."""
    if is_blank(source) or is_blank(target):
        return "empty"
    shorter, longer = sorted((count_words(source), count_words(target)))
    if shorter < limits.min_words:
        return "too short"
    if longer > limits.max_words:
        return "too long"
    if longer > limits.max_ratio * shorter:
        return "length ratio"
    return None


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield (source line, target line); ValueError if the sides differ in length or are empty."""
    for chunk in pair_chunks(source, target, CHUNK):
        yield from chunk.decode(source, target)


def check_line(line: str, path: Path, number: int) -> None:
    """Refuse a valid or test line that could not be translated or scored."""
    if is_blank(line):
        raise ValueError(
            f"{path}, line {number}: empty; valid and test lines are never dropped, so remove "
            "this line from both sides"
        )
    if "\r" in line:
        raise ValueError(
            f"{path}, line {number}: a carriage return inside the line, where other tools would "
            "start a new one; replace it by a space"
        )


class Seen:
    """The pairs so far, by 12 bytes each: about 100 bytes of memory a pair."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def add(self, digest: bytes) -> bool:
        """Whether it was there before."""
        before = len(self._digests)
        self._digests.add(digest)
        return len(self._digests) == before


def fingerprint(source: str, target: str) -> bytes:
    """12 bytes that stand for a pair when duplicates are looked for."""
    return hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=12).digest()


def clean_train(
    pairs: Iterable[tuple[str, str]], limits: Limits, dropped: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield the normalised training pairs that stay, counting in `dropped` why others do not.

    Memory is bounded, except with `drop_duplicates`: about 100 bytes a kept pair.
    """
    seen = Seen()
    for source, target in pairs:
        source, target = normalise(source), normalise(target)
        reason = why_dropped(source, target, limits)
        if reason is None and limits.drop_duplicates and seen.add(fingerprint(source, target)):
            reason = "duplicate"
        if reason is None:
            yield source, target
        else:
            dropped[reason] += 1


@dataclass(frozen=True)
class _Cleaned:
    """What is left of a chunk: lines of both sides, and why the others are not there."""

    source: list[bytes]
    target: list[bytes]
    dropped: Counter[str]
    fingerprints: list[bytes]
    """Of every kept pair, where duplicates are dropped; otherwise empty."""


def _clean_chunk(
    chunk: PairChunk, paths: tuple[Path, Path], split: str, limits: Limits
) -> _Cleaned:
    """Work of one process on one chunk; duplicates are found only where all chunks meet."""
    result = _Cleaned([], [], Counter(), [])
    pairs: Iterable[tuple[str, str]] = chunk.decode(*paths)
    if split == "train":
        here = replace(limits, drop_duplicates=False)
        pairs = clean_train(pairs, here, result.dropped)
    else:
        pairs = checked_pairs(pairs, *paths, chunk.start)
    for source, target in pairs:
        result.source.append(f"{source}\n".encode())
        result.target.append(f"{target}\n".encode())
        if split == "train" and limits.drop_duplicates:
            result.fingerprints.append(fingerprint(source, target))
    return result


def _without_duplicates(chunks: Iterable[_Cleaned]) -> Iterator[_Cleaned]:
    """Drop every pair that an earlier chunk, or the same one, had before."""
    seen = Seen()
    for chunk in chunks:
        new = [not seen.add(digest) for digest in chunk.fingerprints]
        source, target = (list(compress(side, new)) for side in (chunk.source, chunk.target))
        repeated = Counter({"duplicate": len(new) - len(source)})
        yield _Cleaned(source, target, chunk.dropped + repeated, [])


def checked_pairs(
    pairs: Iterable[tuple[str, str]], source: Path, target: Path, start: int
) -> Iterator[tuple[str, str]]:
    """Yield the pairs, numbered from `start`; ValueError for a line that cannot be scored."""
    for number, pair in enumerate(pairs, start):
        for line, path in zip(pair, (source, target), strict=True):
            check_line(line, path, number)
        yield pair


def clean_split(
    split: str,
    prefix: str,
    languages: tuple[str, str],
    out: Path,
    limits: Limits,
    workers: int = 1,
) -> dict[str, object]:
    """Write OUT/SPLIT.LANGUAGE for both languages; return the counts."""
    source, target = (find_side(prefix, language) for language in languages)
    dropped: Counter[str] = Counter()
    kept = read = 0
    work = partial(_clean_chunk, paths=(source, target), split=split, limits=limits)
    chunks = map_in_order(work, pair_chunks(source, target, CHUNK), workers)
    if split == "train" and limits.drop_duplicates:
        chunks = _without_duplicates(chunks)
    paths = [out / f"{split}.{language}" for language in languages]
    with paths[0].open("wb") as left, paths[1].open("wb") as right:
        for chunk in chunks:
            left.writelines(chunk.source)
            right.writelines(chunk.target)
            dropped += chunk.dropped
            kept += len(chunk.source)
            now = kept + dropped.total()
            if now // _PROGRESS_EVERY > read // _PROGRESS_EVERY:
                print(f"{split}: {now:,} pairs read", file=sys.stderr, flush=True)
            read = now
    if kept == 0:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common())
        raise ValueError(f"no pair of {source} and {target} is left ({reasons}); widen the limits")
    return {"read": read, "kept": kept, "dropped": dict(dropped)}


def clean_corpus(
    prefixes: dict[str, str],
    languages: tuple[str, str],
    out: Path,
    limits: Limits,
    workers: int = 1,
) -> dict[str, object]:
    """Check every split, clean the training split, and write all into the new folder OUT.

    `prefixes` maps "train", "valid", "test", "test1", ... to PREFIX of PREFIX.LANGUAGE[.gz]. The
    folder appears only when everything in it is complete. Text is worked on by `workers` processes,
    whose number changes nothing in the result. Returns (and writes as clean.json) the counts.
    """
    if languages[0] == languages[1]:
        raise ValueError(f"source and target language are both {languages[0]!r}; they must differ")
    if out.exists():
        raise ValueError(f"{out} exists already; remove it or give another folder")
    for prefix in prefixes.values():  # all sides first: a missing test set must not cost an hour
        for language in languages:
            find_side(prefix, language)
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        report: dict[str, object] = {
            split: clean_split(split, prefix, languages, part, limits, workers)
            for split, prefix in prefixes.items()
        }
        report["limits"] = asdict(limits)
        (part / "clean.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet clean`."""
    parser.description = __doc__
    parser.add_argument("--src", required=True, help="source language, the files' ending")
    parser.add_argument("--tgt", required=True, help="target language, the files' ending")
    for split in ("train", "valid"):
        parser.add_argument(f"--{split}", metavar="PREFIX", help="of PREFIX.LANGUAGE[.gz]")
    parser.add_argument(
        "--test", metavar="PREFIX[,PREFIX]", help="the same; more than one: test, test1, ..."
    )
    parser.add_argument("--out", required=True, type=Path, help="new folder for the checked text")
    parser.add_argument("--min-words", type=int, default=Limits.min_words)
    parser.add_argument("--max-words", type=int, default=Limits.max_words)
    parser.add_argument(
        "--max-ratio", type=float, default=Limits.max_ratio, help="longer side over shorter side"
    )
    parser.add_argument("--drop-duplicates", action="store_true", help="drop repeated train pairs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")


def run(args: argparse.Namespace) -> int:
    """`deepnet clean`: counts as JSON on standard output, a line a split on standard error."""
    prefixes = {split: prefix for split in ("train", "valid") if (prefix := getattr(args, split))}
    prefixes |= test_sets(args.test)
    if not prefixes:
        raise ValueError("nothing to check: give --train, --valid or --test")
    limits = Limits(args.min_words, args.max_words, args.max_ratio, args.drop_duplicates)
    report = clean_corpus(prefixes, (args.src, args.tgt), args.out, limits, args.workers)
    for split in prefixes:
        counts = report[split]
        assert isinstance(counts, dict)
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts["dropped"].items())
        print(
            f"{split}: {counts['kept']:,} of {counts['read']:,} pairs kept"
            + (f" (dropped: {reasons})" if reasons else ""),
            file=sys.stderr,
        )
    print(json.dumps(report))
    return 0
