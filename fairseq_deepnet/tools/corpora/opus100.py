"""OPUS-100: from its archives, or an unpacked folder, to the table of pairs that is binarised.

Zhang, Williams, Titov and Sennrich 2020 (arXiv 2004.11867): English with 99 languages, at most 1 M
sentence pairs each, up to 2,000 for dev and for test in 94 of them, and test sets for the 15 pairs
of ar, de, fr, nl, ru and zh. The archives hold, below opus-100-corpus/v1.0 (not looked at here),
supervised/de-en/opus.de-en-{train,dev,test}.{de,en} and zero-shot/ar-de/opus.ar-de-test.{ar,de}.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fairseq_deepnet.files import write_json, write_text
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.corpora.archive import opened, write
from fairseq_deepnet.tools.corpora.overlap import Question, ask

_FILE: Final = re.compile(
    r"(?:.*/)?(?P<kind>supervised|zero-shot)/(?P<a>[a-z]{2,3})-(?P<b>[a-z]{2,3})/"
    r"opus\.(?P=a)-(?P=b)-(?P<split>train|dev|test)\.(?P<language>(?P=a)|(?P=b))(?P<gz>\.gz)?"
)
_ARCHIVE: Final = (".tar.gz", ".tgz")
_SPLITS: Final = {"train": "train", "dev": "valid", "test": "test"}
_MARK: Final = "unpacked.json"


class Side(NamedTuple):
    """What the name of one of OPUS-100's files says."""

    kind: str
    pair: tuple[str, str]
    split: str
    language: str
    packed: bool

    @property
    def path(self) -> str:
        """Where the file stands below the corpus's top folder."""
        pair = "-".join(self.pair)
        end = ".gz" if self.packed else ""
        return f"{self.kind}/{pair}/opus.{pair}-{self.split}.{self.language}{end}"


class Row(NamedTuple):
    """A line of the table of pairs: PREFIX.SOURCE and PREFIX.TARGET are its sides."""

    split: str
    source: str
    target: str
    prefix: str


def read_name(name: str) -> Side | None:
    """The meaning of a path, or None for one that is no text of OPUS-100."""
    match = _FILE.fullmatch(name)
    if not match or match["a"] == match["b"]:
        return None
    pair = (match["a"], match["b"])
    return Side(match["kind"], pair, match["split"], match["language"], bool(match["gz"]))


def is_wanted(side: Side, languages: Iterable[str]) -> bool:
    """Whether a file is needed for `languages` (none: all). Zero-shot pairs are only tested."""
    chosen = set(languages)
    known = not chosen or chosen.union({"en"}).issuperset(side.pair)
    return known and (side.kind == "supervised" or side.split == "test")


def unpack(archives: Sequence[Path], out: Path, languages: Sequence[str] = ()) -> None:
    """Unpack what `languages` need into `out`, one file at a time; a second call does nothing.

    A file's path is made from what its name means, never from the archive's word: nothing can land
    outside `out`. Raises ValueError for an archive that is damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    mark = out / _MARK
    done = read_record(mark, remedy="remove it to unpack anew") if mark.is_file() else {}
    for archive in archives:
        status = archive.stat()
        identity = [status.st_size, status.st_mtime_ns]
        before = done.get(archive.name, {})
        same = before.get("identity") == identity
        if same and before["whole"] and _covers(before["languages"], languages):
            continue
        # What was unpacked before for other languages stays, and counts.
        had = before["languages"] if same and before["whole"] else None
        done[archive.name] = {"identity": identity, "languages": [], "whole": False}
        write_json(mark, done)
        print(f"[opus100] unpacking {archive.name}", file=sys.stderr, flush=True)
        with opened(archive) as files:
            for member, content in files:
                side = read_name(member.name)
                if not side or not is_wanted(side, languages):
                    continue
                place = out / side.path
                if same and place.is_file() and place.stat().st_size == member.size:
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                write(content, place)
        union = sorted({*languages, *(had or ())}) if languages else []
        done[archive.name] |= {"languages": union, "whole": True}
        write_json(mark, done)


def _covers(had: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether what was unpacked for `had` serves `wanted`; an empty list is all languages."""
    return not had or (bool(wanted) and set(had).issuperset(wanted))


def find_archives(raw: Path) -> list[Path]:
    """The archives that `raw` is or holds; empty if it is a folder of unpacked text.

    The whole corpus is preferred to the archives of its pairs. Raises FileNotFoundError for a path
    that is not there.
    """
    if raw.is_file():
        return [raw]
    if not raw.is_dir():
        raise FileNotFoundError(f"{raw} is neither a folder nor an archive of OPUS-100")
    found = sorted(path for path in raw.iterdir() if path.name.endswith(_ARCHIVE))
    found = [path for path in found if path.name.startswith("opus-100-corpus")]
    whole = [path for path in found if path.name.startswith("opus-100-corpus-v")]
    return whole or found


def tabulate(raw: Path, languages: Sequence[str] = ()) -> list[Row]:
    """The rows of the unpacked text below `raw`: training first, then valid, then test.

    Raises ValueError if a side is missing or there twice, if a language has no training text, or
    if nothing is there at all.
    """
    sides: dict[tuple[str, tuple[str, str]], dict[str, Path]] = defaultdict(dict)
    for path in sorted(raw.rglob("opus.*")):
        side = read_name(path.absolute().as_posix())
        if not side or not is_wanted(side, languages) or not path.is_file():
            continue
        files = sides[side.split, side.pair]
        if side.language in files:
            raise ValueError(f"both {files[side.language]} and {path} are there; remove one")
        files[side.language] = path.absolute()
    if not sides:
        raise ValueError(
            f"{raw} holds no text of OPUS-100: neither supervised/de-en/opus.de-en-train.de and "
            "the like, nor opus-100-corpus*.tar.gz"
        )
    trained = {language for split, pair in sides if split == "train" for language in pair}
    if missing := sorted(set(languages) - trained):
        raise ValueError(f"{raw} has no training text of {', '.join(missing)}; see LANGS and RAW")
    rows = []
    for (split, pair), files in sides.items():
        if absent := [language for language in pair if language not in files]:
            raise ValueError(
                f"{next(iter(files.values()))} is there, but no {absent[0]} side of it"
            )
        if trained.issuperset(pair):
            first = str(files[pair[0]]).removesuffix(".gz").removesuffix(f".{pair[0]}")
            second = str(files[pair[1]]).removesuffix(".gz").removesuffix(f".{pair[1]}")
            if first != second:
                raise ValueError(f"{files[pair[0]]} and {files[pair[1]]} are in different folders")
            rows.append(Row(_SPLITS[split], *pair, first))
    order = list(_SPLITS.values())
    return sorted(rows, key=lambda row: (order.index(row.split), row.source, row.target))


def questions(rows: Sequence[Row]) -> list[Question]:
    """Which test text to look for in which training text.

    A pair's own; for a zero-shot pair, either side in the training text with English.
    """
    training = {(row.source, row.target): row for row in rows if row.split == "train"}
    asked = []
    for row in rows:
        if row.split != "test":
            continue
        pair = (row.source, row.target)
        own = training.get(pair)
        for language in pair:
            with_english = training.get((min(language, "en"), max(language, "en")))
            if train := own or with_english:
                name = f"{row.source}-{row.target}"
                asked.append(Question(name, language, row.prefix, train.prefix))
    return asked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet opus100`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("raw", type=Path, help="an archive, a folder of archives, or unpacked text")
    parser.add_argument("--table", type=Path, required=True, help="table of pairs to write")
    parser.add_argument(
        "--unpacked", type=Path, help="where to unpack archives (required for them)"
    )
    parser.add_argument("--languages", nargs="+", default=[], metavar="CODE", help="(all)")
    parser.add_argument(
        "--overlap", type=Path, metavar="FILE", help="write how much test text is in training text"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")


def run(args: argparse.Namespace) -> int:
    """Unpack, write the table, look for overlap; print what there is."""
    languages = sorted(set(args.languages) - {"en"})
    archives = find_archives(args.raw)
    if archives and not args.unpacked:
        raise ValueError("--unpacked FOLDER is needed to unpack archives")
    if archives:
        unpack(archives, args.unpacked, languages)
    rows = tabulate(args.unpacked if archives else args.raw, languages)
    args.table.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.table, "".join("\t".join(row) + "\n" for row in rows))
    counts = {split: sum(row.split == split for row in rows) for split in _SPLITS.values()}
    trained = {(row.source, row.target) for row in rows if row.split == "train"}
    zero_shot = sum(row.split == "test" and row[1:3] not in trained for row in rows)
    print(
        f"{counts['train']} pairs to train, {counts['valid']} with a valid set, {counts['test']} "
        f"with a test set, {zero_shot} of these zero-shot: {args.table}"
    )
    if args.overlap:
        print(ask(questions(rows), args.overlap, args.workers))
    return 0
