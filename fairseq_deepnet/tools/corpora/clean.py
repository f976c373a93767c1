"""Check parallel text, and clean its training part.

Every split is checked: both sides there, valid UTF-8, as many lines on one side as on the other,
and not empty. Only training text is cleaned. Lines of valid and test are never dropped or changed,
because scores need all of them: there, an empty line is an error.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

from fairseq_deepnet.files import say
from fairseq_deepnet.tools.corpora.parallel import CHUNK, map_in_order
from fairseq_deepnet.tools.corpora.text import (
    PairChunk,
    find_side,
    is_blank,
    normalise,
    numbered_chunks,
    pair_chunks,
)

# What counts as one word where a script writes no spaces: one Han or Kana character, or up to four
# characters of Thai, Lao, Burmese or Khmer (about their mean word length).
_HAN_KANA = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_THAI_KHMER = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(f"[{_HAN_KANA}]|[{_THAI_KHMER}]{{1,4}}|[^\\s{_HAN_KANA}{_THAI_KHMER}]+")
_PROGRESS_EVERY = 1_000_000
T = TypeVar("T")


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
    """Count words: runs between spaces, and fair parts of them where a script has no spaces."""
    return len(_WORD.findall(line))


def why_dropped(source: str, target: str, limits: Limits) -> str | None:
    """Return why a normalised training pair is dropped, or None if it stays."""
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


def sift(items: Iterable[T], why: Callable[[T], str | None], dropped: Counter[str]) -> Iterator[T]:
    """Yield the items that `why` gives no reason against, and count the reasons."""
    for item in items:
        reason = why(item)
        if reason is None:
            yield item
        else:
            dropped[reason] += 1


def clean_train(
    pairs: Iterable[tuple[str, str]], limits: Limits, dropped: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yield the normalised training pairs that stay, counting in `dropped` why others do not."""
    normal = ((normalise(source), normalise(target)) for source, target in pairs)
    return sift(normal, lambda pair: why_dropped(*pair, limits), dropped)


@dataclass(frozen=True)
class _Cleaned:
    """What is left of a chunk: lines of both sides, and why the others are not there."""

    read: int
    source: list[bytes]
    target: list[bytes]
    counted: Counter[str]


def _clean_chunk(
    chunk: PairChunk, paths: tuple[Path, Path], train: bool, limits: Limits, blanks: str
) -> _Cleaned:
    """Clean or check one chunk; duplicates are found only where all chunks meet."""
    counted: Counter[str] = Counter()
    pairs: Iterable[tuple[str, str]] = chunk.decode(*paths)
    if train:
        pairs = clean_train(pairs, limits, counted)
    elif blanks == "refuse":
        pairs = checked_pairs(pairs, *paths, chunk.start)
    else:
        pairs = _without_odd_ends(pairs, counted, drop=blanks == "drop")
    lines = [(f"{source}\n".encode(), f"{target}\n".encode()) for source, target in pairs]
    sides = [pair[0] for pair in lines], [pair[1] for pair in lines]
    return _Cleaned(len(chunk.source), *sides, counted)


def _without_duplicates(chunks: Iterable[_Cleaned]) -> Iterator[_Cleaned]:
    """Drop every pair that was there before; some 100 bytes of memory a pair that is kept."""
    seen: set[bytes] = set()
    for chunk in chunks:
        new = []
        for pair in zip(chunk.source, chunk.target, strict=True):
            digest = hashlib.blake2b(b"".join(pair), digest_size=12).digest()
            new.append(digest not in seen)
            seen.add(digest)
        source, target = (list(compress(side, new)) for side in (chunk.source, chunk.target))
        repeated = Counter({"duplicate": len(new) - len(source)})
        yield replace(chunk, source=source, target=target, counted=chunk.counted + repeated)


def checked_pairs(
    pairs: Iterable[tuple[str, str]], source: Path, target: Path, start: int
) -> Iterator[tuple[str, str]]:
    """Yield the pairs, numbered from `start`; ValueError for a line that cannot be scored."""
    for number, pair in enumerate(pairs, start):
        for line, path in zip(pair, (source, target), strict=True):
            check_line(line, path, number)
        yield pair


def _without_odd_ends(
    pairs: Iterable[tuple[str, str]], counted: Counter[str], drop: bool
) -> Iterator[tuple[str, str]]:
    """Yield the pairs without line ends inside a line; drop or count what is blank."""
    for pair in pairs:
        blank = any(map(is_blank, pair))
        if blank:
            counted["empty" if drop else "blank"] += 1
        if blank and drop:
            continue
        if not drop and any("\r" in line for line in pair):
            counted["carriage return"] += 1
        yield pair[0].replace("\r", " "), pair[1].replace("\r", " ")


def clean_split(
    split: str,
    prefix: str,
    languages: tuple[str, ...],
    out: Path,
    limits: Limits,
    workers: int = 1,
    *,
    name: str = "",
    blanks: str = "refuse",
    wanted: Callable[[int], bool] | None = None,
) -> dict[str, Any]:
    """Write OUT/NAME.LANGUAGE for one language or both; return the counts.

    Args:
        split: "train" is cleaned; of the others lines are checked.
        prefix: of PREFIX.LANGUAGE[.gz].
        languages: one or two.
        out: folder.
        limits: which training lines stay.
        workers: processes, whose number changes nothing in the result.
        name: of the files (the split).
        blanks: what is done where it is not train: "refuse", "keep" or "drop" blank lines, or
            "clean" it, too.
        wanted: True for the numbers, from 0, of the lines left that are written.
    """
    sides = [find_side(prefix, language) for language in languages]
    paths = sides[0], sides[-1]
    train = split == "train" or blanks == "clean"
    if len(sides) == 2:
        text = pair_chunks(*paths, CHUNK)
    else:  # one text is a pair with itself, whose length ratio is 1
        alone = numbered_chunks(paths[0], CHUNK)
        text = (PairChunk(start, lines, lines) for start, lines in alone)
    work = partial(_clean_chunk, paths=paths, train=train, limits=limits, blanks=blanks)
    chunks = map_in_order(work, text, workers)
    if train and limits.drop_duplicates:
        chunks = _without_duplicates(chunks)
    counted: Counter[str] = Counter()
    left = kept = read = 0
    with ExitStack() as files:
        name = name or split
        streams = [
            files.enter_context((out / f"{name}.{language}").open("wb")) for language in languages
        ]
        for chunk in chunks:
            numbers = range(left, left + len(chunk.source))
            left += len(chunk.source)
            chosen = [wanted is None or wanted(number) for number in numbers]
            kept += sum(chosen)
            for stream, lines in zip(streams, (chunk.source, chunk.target), strict=False):
                stream.writelines(compress(lines, chosen))
            counted += chunk.counted
            before, read = read, read + chunk.read
            if read // _PROGRESS_EVERY > before // _PROGRESS_EVERY:
                say(f"{name}: {read:,} lines read")
    if kept == 0:
        reasons = ", ".join(f"{count} {reason}" for reason, count in counted.most_common())
        what = "pair" if len(sides) == 2 else "line"
        texts = " and ".join(map(str, sides))
        raise ValueError(f"no {what} of {texts} is left ({reasons}); widen the limits")
    return {"read": read, "kept": kept, "dropped": dict(counted)}
