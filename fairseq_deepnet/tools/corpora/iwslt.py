"""IWSLT 2014 German-English: from the published archive to raw parallel text.

The archive holds the training talks (`train.tags.de-en.{de,en}`: one sentence a line among lines of
tags) and the dev and test sets in XML. As in fairseq's recipe, titles and descriptions of talks are
training text, and test is dev2010 + TEDX.dev2012 + tst2010 + tst2011 + tst2012.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fairseq_deepnet.tools.corpora import archive
from fairseq_deepnet.tools.corpora.clean import read_pairs
from fairseq_deepnet.tools.corpora.sgm import read_pair
from fairseq_deepnet.tools.corpora.text import read_lines

LANGUAGES = ("de", "en")
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
"""In the order of fairseq's recipe."""
TEST_LINES = {
    "TED.dev2010": 887,
    "TEDX.dev2012": 1165,
    "TED.tst2010": 1565,
    "TED.tst2011": 1433,
    "TED.tst2012": 1700,
}
"""Counted in the published sets of dev2010 to tst2012: 6,750 in all, as fairseq's recipe gives."""

_ARCHIVE = "de-en.tgz"
_NAME = "de-en/IWSLT14.{}.de-en.{}.xml"
_TRAIN = "de-en/train.tags.de-en.{}"
# Metadata, never translated. fairseq's recipe names the first three, which its 2014 files have;
# files of later years have the others too.
_DROPPED = re.compile(r"<(?:url|talkid|keywords|speaker|reviewer|translator|doc|/doc)\b", re.I)
_KEPT_TAGS = re.compile(r"</?(?:title|description)>")


def read_train_tags(path: Path) -> Iterator[str]:
    """The sentences of a train.tags file: tag lines dropped, titles and descriptions kept.

    Every other line is a sentence, an empty one too: the sides pair line by line.
    """
    for line in read_lines(path):
        if not _DROPPED.search(line):
            yield _KEPT_TAGS.sub("", line).strip()


def extract(origin: Path, out: Path, hold_out: int = 0) -> dict[str, int]:
    """Write OUT/train.LANGUAGE and OUT/test.LANGUAGE; returns the lines of train and of each set.

    `origin` is de-en.tgz, the folder that it was unpacked to, or one that it lies in. With
    `hold_out`, every such pair of train that has text on both sides goes to OUT/valid.LANGUAGE
    instead. OUT appears only when complete. Raises ValueError where the sides differ or a set is
    not there.
    """
    if (origin / _ARCHIVE).is_file():
        origin = origin / _ARCHIVE
    request = [archive.fingerprint(origin), hold_out]
    return archive.make_once(out, request, partial(_write, origin, hold_out=hold_out))


def _write(origin: Path, folder: Path, out: Path, *, hold_out: int) -> dict[str, int]:
    """Take the files out of the archive into `folder`, and write the text into `out`."""
    places = {}
    for language in LANGUAGES:
        places[_TRAIN.format(language)] = folder / f"train.tags.{language}"
        for name in TEST_SETS:
            places[_NAME.format(name, language)] = folder / f"{name}.{language}.xml"
    archive.take(origin, places)
    counts = {}
    for language in LANGUAGES:
        sentences = read_train_tags(places[_TRAIN.format(language)])
        counts[language] = write_lines(out / f"train.{language}", sentences)
    if len(set(counts.values())) != 1:
        raise ValueError(
            f"the sides of {_TRAIN.format('{de,en}')} differ without their tags: {counts}; "
            "fetch the archive again"
        )
    lines = {"train": counts["de"]}
    if hold_out:
        lines |= _hold_out(out, hold_out)
    texts: tuple[list[str], list[str]] = ([], [])
    for name in TEST_SETS:
        sides = read_pair(*(places[_NAME.format(name, language)] for language in LANGUAGES))
        lines[name] = len(sides[0])
        for text, side in zip(texts, sides, strict=True):
            text.extend(side)
    for language, text in zip(LANGUAGES, texts, strict=True):
        write_lines(out / f"test.{language}", iter(text))
    return lines


def _hold_out(out: Path, every: int) -> dict[str, int]:
    """Move every such pair of OUT/train to OUT/valid, not counting pairs with an empty side."""
    pairs = read_pairs(*(out / f"train.{language}" for language in LANGUAGES))
    full = [pair for pair in pairs if all(pair)]
    held = full[every - 1 :: every]
    del full[every - 1 :: every]
    for split, chosen in (("train", full), ("valid", held)):
        for side, language in enumerate(LANGUAGES):
            write_lines(out / f"{split}.{language}", (pair[side] for pair in chosen))
    return {"train": len(full), "valid": len(held)}


def write_lines(path: Path, lines: Iterator[str]) -> int:
    """Write lines and count them."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for line in lines:
            stream.write(line + "\n")
            count += 1
    return count


def describe(lines: dict[str, int]) -> list[str]:
    """A line for people, and one for every set that has not as many sentences as published."""
    sets = ", ".join(f"{name} {lines[name]:,}" for name in TEST_SETS)
    said = [f"train {lines['train']:,} lines; test: {sets}"]
    said += [
        f"warning: {name} has {lines[name]:,} sentences, the published set {TEST_LINES[name]:,}"
        for name in TEST_SETS
        if lines[name] != TEST_LINES[name]
    ]
    return said


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet iwslt14`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("origin", type=Path, help="de-en.tgz, or the folder it was unpacked to")
    parser.add_argument("--out", type=Path, required=True, help="folder for {train,test}.{de,en}")
    parser.add_argument(
        "--hold-out", type=int, default=0, metavar="N", help="every Nth pair of train to valid"
    )


def run(args: argparse.Namespace) -> int:
    """Write the raw text; counts as JSON on standard output."""
    if not args.origin.exists():
        raise FileNotFoundError(f"there is no archive or folder {args.origin}")
    lines = extract(args.origin, args.out, args.hold_out)
    for said in describe(lines):
        print(said, file=sys.stderr)
    print(json.dumps(lines))
    return 0
