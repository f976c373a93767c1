"""Check parallel text, and clean its training part.

Every split is checked: both sides there, valid UTF-8, as many lines on one side as on the other,
and not empty. Only training text is cleaned. Lines of valid and test are never dropped or changed,
because scores need all of them: there, an empty line is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

from fairseq_deepnet.corpora.text import find_side, is_blank, normalise, read_lines

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
    pair = None
    sides = zip_longest(read_lines(source), read_lines(target))
    for pair in sides:
        left, right = pair
        if left is None or right is None:
            counts = [sum(1 for _ in read_lines(path)) for path in (source, target)]
            raise ValueError(
                f"the sides differ in length: {source} has {counts[0]} lines, {target} has "
                f"{counts[1]}; line i of one must translate line i of the other"
            )
        yield left, right
    if pair is None:
        raise ValueError(f"{source} and {target} are empty; give files with at least one line")


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


def clean_train(
    pairs: Iterator[tuple[str, str]], limits: Limits, dropped: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield the normalised training pairs that stay, counting in `dropped` why others do not.

    Memory is bounded, except with `drop_duplicates`: about 100 bytes a kept pair.
    """
    seen: set[bytes] = set()
    for source, target in pairs:
        source, target = normalise(source), normalise(target)
        reason = why_dropped(source, target, limits)
        if reason is None and limits.drop_duplicates:
            digest = hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=12).digest()
            reason = "duplicate" if digest in seen else None
            seen.add(digest)
        if reason is None:
            yield source, target
        else:
            dropped[reason] += 1


def _checked(
    pairs: Iterator[tuple[str, str]], source: Path, target: Path
) -> Iterator[tuple[str, str]]:
    for number, pair in enumerate(pairs, start=1):
        for line, path in zip(pair, (source, target), strict=True):
            check_line(line, path, number)
        yield pair


def clean_split(
    split: str, prefix: str, languages: tuple[str, str], out: Path, limits: Limits
) -> dict[str, object]:
    """Write OUT/SPLIT.LANGUAGE for both languages; return the counts."""
    source, target = (find_side(prefix, language) for language in languages)
    dropped: Counter[str] = Counter()
    pairs = read_pairs(source, target)
    if split == "train":
        pairs = clean_train(pairs, limits, dropped)
    else:
        pairs = _checked(pairs, source, target)
    kept = 0
    paths = [out / f"{split}.{language}" for language in languages]
    with (
        paths[0].open("w", encoding="utf-8", newline="\n") as left,
        paths[1].open("w", encoding="utf-8", newline="\n") as right,
    ):
        for source_line, target_line in pairs:
            left.write(source_line + "\n")
            right.write(target_line + "\n")
            kept += 1
            if kept % _PROGRESS_EVERY == 0:
                print(f"{split}: {kept:,} pairs", file=sys.stderr, flush=True)
    if kept == 0:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common())
        raise ValueError(f"no pair of {source} and {target} is left ({reasons}); widen the limits")
    return {"read": kept + dropped.total(), "kept": kept, "dropped": dict(dropped)}


def clean_corpus(
    prefixes: dict[str, str], languages: tuple[str, str], out: Path, limits: Limits
) -> dict[str, object]:
    """Check every split, clean the training split, and write all into the new folder OUT.

    `prefixes` maps "train", "valid", "test" to PREFIX of PREFIX.LANGUAGE[.gz]. The folder appears
    only when everything in it is complete. Returns (and writes as clean.json) the counts.
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
            split: clean_split(split, prefix, languages, part, limits)
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
    parser.add_argument("--source", required=True, help="source language, the files' ending")
    parser.add_argument("--target", required=True, help="target language, the files' ending")
    for split in ("train", "valid", "test"):
        parser.add_argument(f"--{split}", metavar="PREFIX", help="of PREFIX.LANGUAGE[.gz]")
    parser.add_argument("--out", required=True, type=Path, help="new folder for the checked text")
    parser.add_argument("--min-words", type=int, default=Limits.min_words)
    parser.add_argument("--max-words", type=int, default=Limits.max_words)
    parser.add_argument(
        "--max-ratio", type=float, default=Limits.max_ratio, help="longer side over shorter side"
    )
    parser.add_argument("--drop-duplicates", action="store_true", help="drop repeated train pairs")


def run(args: argparse.Namespace) -> int:
    """`deepnet clean`: counts as JSON on standard output, a line a split on standard error."""
    prefixes = {
        split: prefix for split in ("train", "valid", "test") if (prefix := getattr(args, split))
    }
    if not prefixes:
        raise ValueError("nothing to check: give --train, --valid or --test")
    limits = Limits(args.min_words, args.max_words, args.max_ratio, args.drop_duplicates)
    report = clean_corpus(prefixes, (args.source, args.target), args.out, limits)
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
