"""WMT 2017 English-German: from the published archives to raw parallel text.

Training text is europarl-v7, commoncrawl and news-commentary-v12, one after the other, as in the
paper's and fairseq's "WMT'17" (about 4.59 million pairs); newstest2013 is for validation,
newstest2014 and newstest2017 are test sets. Only the files that are needed are read out of the
archives, which hold many languages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_deepnet.tools.corpora import archive
from fairseq_deepnet.tools.corpora.sgm import read_pair

LANGUAGES = ("en", "de")


@dataclass(frozen=True)
class Part:
    """One corpus or test set: its archive, its two files, and how many lines it has."""

    name: str
    archive: str
    source: str
    target: str
    lines: int

    @property
    def members(self) -> tuple[str, str]:
        """Its files within the archive, in the order of LANGUAGES."""
        return self.source, self.target


def _training(name: str, archive_name: str, stem: str, lines: int) -> Part:
    return Part(name, archive_name, f"{stem}.de-en.en", f"{stem}.de-en.de", lines)


def _set(name: str, archive_name: str, stem: str, lines: int) -> Part:
    return Part(name, archive_name, f"{stem}-src.en.sgm", f"{stem}-ref.de.sgm", lines)


TRAINING = (
    _training(
        "europarl-v7", "training-parallel-europarl-v7.tgz", "training/europarl-v7", 1_920_209
    ),
    _training("commoncrawl", "training-parallel-commoncrawl.tgz", "commoncrawl", 2_399_123),
    _training(
        "news-commentary-v12",
        "training-parallel-nc-v12.tgz",
        "training/news-commentary-v12",
        270_769,
    ),
)
"""In the order of fairseq's recipe."""

SETS = {
    "valid": _set("newstest2013", "dev.tgz", "dev/newstest2013", 3000),
    "test": _set("newstest2014", "dev.tgz", "dev/newstest2014-deen", 3003),
    "test1": _set("newstest2017", "test.tgz", "test/newstest2017-ende", 3004),
}
"""By the name of the split in the data folder."""


def locate(origins: Sequence[Path]) -> dict[str, Path]:
    """The place of every archive, by its name: itself, or the folder that holds its files.

    `origins` are archives by their published names, or folders that hold archives or what was in
    them. Raises ValueError where an archive is nowhere.
    """
    parts = (*TRAINING, *SETS.values())
    places: dict[str, Path] = {}
    for name in dict.fromkeys(part.archive for part in parts):
        members = [member for part in parts if part.archive == name for member in part.members]
        for origin in origins:
            if origin.is_file() and origin.name == name:
                places[name] = origin
            elif (origin / name).is_file():
                places[name] = origin / name
            elif origin.is_dir() and all(archive.find_in_folder(origin, m) for m in members):
                places[name] = origin
    missing = sorted({part.archive for part in parts}.difference(places))
    if missing:
        given = ", ".join(map(str, origins))
        raise ValueError(f"no {', '.join(missing)} in {given}; give the published archives")
    return places


def extract(origins: Sequence[Path], out: Path) -> dict[str, int]:
    """Write OUT/{train,valid,test,test1}.{en,de}; returns the lines of every part, by its name.

    Archives are read at the same time, each once, in bounded memory. OUT appears only when
    complete. Raises ValueError where the sides of a part differ or a file is not there.
    """
    places = locate(origins)
    request = {name: archive.fingerprint(place) for name, place in places.items()}
    return archive.make_once(out, request, partial(_write, places))


def _write(places: dict[str, Path], folder: Path, out: Path) -> dict[str, int]:
    """Take the files out of the archives into `folder`, and write the text into `out`."""
    wanted: dict[str, dict[str, Path]] = {}
    for part in (*TRAINING, *SETS.values()):
        for language, member in zip(LANGUAGES, part.members, strict=True):
            wanted.setdefault(part.archive, {})[member] = folder / f"{part.name}.{language}"
    with ThreadPoolExecutor(len(wanted)) as pool:  # unpacking leaves Python's lock to the others
        jobs = [pool.submit(archive.take, places[name], files) for name, files in wanted.items()]
        for job in jobs:
            job.result()
    lines: dict[str, int] = {}
    for part in TRAINING:
        counts = [
            _append(folder / f"{part.name}.{language}", out / f"train.{language}")
            for language in LANGUAGES
        ]
        if counts[0] != counts[1]:
            raise ValueError(
                f"{part.name} has {counts[0]} lines in English and {counts[1]} in German; "
                f"fetch {part.archive} again"
            )
        lines[part.name] = counts[0]
    for split, part in SETS.items():
        sides = read_pair(*(folder / f"{part.name}.{language}" for language in LANGUAGES))
        lines[part.name] = len(sides[0])
        for language, text in zip(LANGUAGES, sides, strict=True):
            content = "".join(f"{line}\n" for line in text)
            (out / f"{split}.{language}").write_text(content, encoding="utf-8", newline="\n")
    return lines


def _append(source: Path, target: Path) -> int:
    """Append a file whose lines end at "\\n" alone, remove it, and return its number of lines."""
    count, last = 0, b"\n"
    with source.open("rb") as stream, target.open("ab") as out:
        while block := stream.read(1 << 20):
            out.write(block)
            count += block.count(b"\n")
            last = block[-1:]
        if last != b"\n":
            out.write(b"\n")
            count += 1
    source.unlink()
    return count


def describe(lines: dict[str, int]) -> list[str]:
    """A line for people, and one for every part that has not as many lines as published."""
    parts = (*TRAINING, *SETS.values())
    said = [", ".join(f"{part.name} {lines[part.name]:,}" for part in parts) + " pairs"]
    said += [
        f"warning: {part.name} has {lines[part.name]:,} pairs, the published one {part.lines:,}"
        for part in parts
        if lines[part.name] != part.lines
    ]
    return said


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet wmt17`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "origins", nargs="+", type=Path, help="the archives, or folders of them or their content"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the raw text")


def run(args: argparse.Namespace) -> int:
    """Write the raw text; counts as JSON on standard output."""
    for origin in args.origins:
        if not origin.exists():
            raise FileNotFoundError(f"there is no archive or folder {origin}")
    lines: dict[str, Any] = extract(args.origins, args.out)
    for said in describe(lines):
        print(said, file=sys.stderr)
    print(json.dumps(lines))
    return 0
