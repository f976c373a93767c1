"""OPUS-100: from its archives, or an unpacked folder, to the table of pairs that is binarised.

Zhang, Williams, Titov and Sennrich 2020 (arXiv 2004.11867): English with 99 languages, at most 1 M
sentence pairs each, up to 2,000 for dev and for test in 94 of them, and test sets for the 15 pairs
of ar, de, fr, nl, ru and zh. The archives hold, below opus-100-corpus/v1.0 (not looked at here),
supervised/de-en/opus.de-en-{train,dev,test}.{de,en} and zero-shot/ar-de/opus.ar-de-test.{ar,de}.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from fairseq_deepnet.files import ROOT, say, write_json, write_text
from fairseq_deepnet.records import read_record, write_record
from fairseq_deepnet.tools.corpora.archive import opened, write
from fairseq_deepnet.tools.corpora.builder import Row
from fairseq_deepnet.tools.corpora.parallel import map_in_order
from fairseq_deepnet.tools.corpora.published import Corpus, DataKind, Fetch, File, file_at
from fairseq_deepnet.tools.corpora.text import find_side, raw_lines
from fairseq_deepnet.tools.corpora.text_folders import read_table
from fairseq_deepnet.tools.languages import languages

LANGUAGES: Final = tuple(code for code, one in languages().items() if one.opus100 is not None)
"""The 99 languages besides English, by the codes of its files."""
_FILE: Final = re.compile(
    r"(?:.*/)?(?P<kind>supervised|zero-shot)/(?P<a>[a-z]{2,3})-(?P<b>[a-z]{2,3})/"
    r"opus\.(?P=a)-(?P=b)-(?P<split>train|dev|test)\.(?P<language>(?P=a)|(?P=b))(?P<gz>\.gz)?"
)
_WHOLE: Final = "opus-100-corpus-v1.0.tar.gz"
_SPLITS: Final = {"train": "train", "dev": "valid", "test": "test"}
_MARK: Final = "unpacked.json"


class OpusFile(NamedTuple):
    """What the name of one of OPUS-100's files says."""

    kind: str
    pair: tuple[str, str]
    split: str
    language: str
    packed: bool

    @property
    def path(self) -> str:
        """Return where the file stands below the corpus's top folder."""
        pair = "-".join(self.pair)
        end = ".gz" if self.packed else ""
        return f"{self.kind}/{pair}/opus.{pair}-{self.split}.{self.language}{end}"


def read_name(name: str) -> OpusFile | None:
    """Return the meaning of a path, or None for one that is no text of OPUS-100."""
    match = _FILE.fullmatch(name)
    if not match or match["a"] == match["b"]:
        return None
    pair = (match["a"], match["b"])
    return OpusFile(match["kind"], pair, match["split"], match["language"], bool(match["gz"]))


def is_wanted(side: OpusFile, chosen: Iterable[str]) -> bool:
    """Return True if languages (none: all) need a file. Zero-shot pairs are only tested."""
    known = not chosen or {*chosen, "en"}.issuperset(side.pair)
    return known and (side.kind == "supervised" or side.split == "test")


def unpack(archives: Sequence[Path], out: Path, chosen: Sequence[str] = ()) -> None:
    """Unpack what languages need into `out`, one file at a time; a second call does nothing.

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
        # What was unpacked before for other languages stays, and counts; no language is all.
        had = before["languages"] if same and before["whole"] else None
        if had is not None and (not had or (chosen and set(had).issuperset(chosen))):
            continue
        done[archive.name] = {"identity": identity, "languages": [], "whole": False}
        write_json(mark, done)
        say(f"[opus100] unpacking {archive.name}")
        with opened(archive) as files:
            for member, content in files:
                side = read_name(member.name)
                if not side or not is_wanted(side, chosen):
                    continue
                place = out / side.path
                if same and place.is_file() and place.stat().st_size == member.size:
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                write(content, place)
        union = sorted({*chosen, *(had or ())}) if chosen else []
        done[archive.name] |= {"languages": union, "whole": True}
        write_json(mark, done)


def find_archives(raw: Path) -> list[Path]:
    """Return the archives that `raw` is or holds; empty if it is a folder of unpacked text.

    The whole corpus is preferred to the archives of its pairs.
    """
    if raw.is_file():
        return [raw]
    names = [raw.glob(f"opus-100-corpus*{end}") for end in (".tar.gz", ".tgz")]
    found = sorted(path for paths in names for path in paths)
    return [path for path in found if path.name.startswith("opus-100-corpus-v")] or found


def tabulate(raw: Path, chosen: Sequence[str] = ()) -> list[Row]:
    """Return the rows of the unpacked text below `raw`: training first, then valid, then test.

    Raises ValueError if a side is missing or there twice, if a language has no training text, or
    if nothing is there at all.
    """
    sides: dict[tuple[str, tuple[str, str]], dict[str, Path]] = defaultdict(dict)
    for path in sorted(raw.rglob("opus.*")):
        side = read_name(path.absolute().as_posix())
        if not side or not is_wanted(side, chosen) or not path.is_file():
            continue
        files = sides[side.split, side.pair]
        if side.language in files:
            raise ValueError(f"both {files[side.language]} and {path} are there; remove one")
        files[side.language] = path.absolute()
    if not sides and chosen and any(raw.rglob("opus.*-train.*")):
        raise ValueError(
            f"{raw} has no text of {', '.join(chosen)} with English: name other languages in LANGS"
        )
    if not sides:
        raise ValueError(
            f"{raw} holds no text of OPUS-100: neither supervised/de-en/opus.de-en-train.de and "
            "the like, nor opus-100-corpus*.tar.gz"
        )
    trained = {language for split, pair in sides if split == "train" for language in pair}
    if missing := sorted(set(chosen) - trained):
        raise ValueError(f"{raw} has no training text of {', '.join(missing)}; see LANGS and RAW")
    rows = []
    for (split, pair), files in sides.items():
        if absent := [language for language in pair if language not in files]:
            raise ValueError(
                f"{next(iter(files.values()))} is there, but no {absent[0]} side of it"
            )
        if trained.issuperset(pair):
            prefixes = [
                str(files[language]).removesuffix(".gz").removesuffix(f".{language}")
                for language in pair
            ]
            if prefixes[0] != prefixes[1]:
                raise ValueError(f"{files[pair[0]]} and {files[pair[1]]} are in different folders")
            rows.append(Row(_SPLITS[split], pair, prefixes[0]))
    order = list(_SPLITS.values())
    return sorted(rows, key=lambda row: (order.index(row.split), row.pair))


class Question(NamedTuple):
    """Is the `language` side of `test` in that of `train`? Both are prefixes of files."""

    pair: str
    language: str
    test: str
    train: str


def questions(rows: Sequence[Row]) -> list[Question]:
    """Return which test text to look for in which training text.

    A pair's own; for a zero-shot pair, either side in the training text with English.
    """
    training = {row.pair: row for row in rows if row.split == "train"}
    asked = []
    for row in rows:
        for language in row.pair if row.split == "test" else ():
            with_english = (min(language, "en"), max(language, "en"))
            if train := training.get(row.pair) or training.get(with_english):
                asked.append(Question("-".join(row.pair), language, row.prefix, train.prefix))
    return asked


def count_overlap(question: Question) -> tuple[int, int]:
    """Return the lines of the test side, and how many are also a line of the training side.

    Lines are compared as bytes, without white space at either end; blank lines are left out.
    """
    lines = [line.strip() for line in raw_lines(find_side(question.test, question.language))]
    lines = [line for line in lines if line]
    wanted, found = set(lines), set[bytes]()
    for line in raw_lines(find_side(question.train, question.language)):
        stripped = line.strip()
        if stripped in wanted:
            found.add(stripped)
    return len(lines), sum(line in found for line in lines)


def report_overlap(asked: Sequence[Question], report: Path, workers: int = 1) -> str:
    """Count test sentences in the training text into `report`; return one line that sums it up.

    A report that answers the same questions, of files that are as they were, is not made anew.
    """
    paths = {find_side(prefix, q.language) for q in asked for prefix in (q.test, q.train)}
    request: dict[str, Any] = {
        "questions": [list(question) for question in asked],
        "files": [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in sorted(paths)],
    }
    try:
        record = read_record(report, {"files": list, "pairs": dict})
    except (FileNotFoundError, ValueError):
        record = {}
    if {key: record.get(key) for key in request} != request:
        answers: dict[str, dict[str, dict[str, int]]] = {}
        counted = map_in_order(count_overlap, asked, workers)
        for question, (lines, seen) in zip(asked, counted, strict=True):
            sides = answers.setdefault(question.pair, {})
            sides[question.language] = {"lines": lines, "in_training_text": seen}
        record = {**request, "pairs": answers}
        write_record(report, record)
    pairs = record["pairs"]
    found = [(name, code, x) for name, both in pairs.items() for code, x in both.items()]
    lines = sum(x["lines"] for _, _, x in found)
    seen = sum(x["in_training_text"] for _, _, x in found)
    said = f"{seen:,} of {lines:,} test sentences ({len(pairs)} pairs, both sides) are also in the"
    said += " training text"
    if seen:
        name, code, worst = max(found, key=lambda x: x[2]["in_training_text"])
        said += f"; most in {name} ({code}): {worst['in_training_text']:,} of {worst['lines']:,}"
    return said


def check(value: SimpleNamespace) -> None:
    """Refuse what is no language; `chosen` names OUT."""
    value.languages = sorted({code for code in value.langs.split() if code != "en"})
    for code in value.languages:
        if not re.fullmatch("[a-z]{2,3}", code):
            raise ValueError(f"LANGS has {code!r}; it must be codes such as: de fr nl")
    if value.langs and not value.languages:
        raise ValueError(f"LANGS is {value.langs!r}; name a language besides English")
    codes = "-".join(value.languages)
    value.chosen = f".{codes}" if codes else ""
    if len(codes) > 60:
        value.chosen = f".{len(value.languages)}-languages"


def _lists(table: Path, languages: Sequence[str]) -> bool:
    """Tell whether the table of OUT has these languages, or all of them if none are named."""
    if not table.is_file():
        return False
    trained = {code for row in read_table(table) if row.split == "train" for code in row.pair}
    return trained - {"en"} == set(languages or LANGUAGES)


def rows(value: SimpleNamespace, fetch: Fetch) -> list[Row]:
    """Unpack what is needed; return the rows of OUT.pairs.tsv, which is written first."""
    table = Path(f"{value.out}.pairs.tsv")
    if getattr(value, "is_complete", False) and _lists(table, value.languages):
        return read_table(table)
    whole = (Path(value.downloads) / _WHOLE).is_file()  # it holds the pairs, too
    raw = fetch([] if whole else value.languages)
    if archives := find_archives(raw):
        raw = Path(value.unpacked)
        unpack(archives, raw, value.languages)
    found = tabulate(raw, value.languages)
    write_text(table, "".join("\t".join([r.split, *r.pair, r.prefix]) + "\n" for r in found))
    counts = {split: sum(row.split == split for row in found) for split in _SPLITS.values()}
    trained = {row.pair for row in found if row.split == "train"}
    zero_shot = sum(row.split == "test" and row.pair not in trained for row in found)
    say(
        f"{counts['train']} pairs to train, {counts['valid']} with a valid set, {counts['test']} "
        f"with a test set, {zero_shot} of these zero-shot: {table}"
    )
    if value.overlap:
        report = Path(f"{value.out}.overlap.json")
        say(report_overlap(questions(found), report, value.workers))
    return read_table(table)


_PLACES: Final = ("https://object.pouta.csc.fi/OPUS-100/v1.0",)


def _pair_file(language: str) -> File:
    pair = "-".join(sorted((language, "en")))
    return file_at(_PLACES, f"opus-100-corpus-{pair}-v1.0.tar.gz", languages=(language,))


CORPORA: Final = {
    "opus100": Corpus(
        "OPUS-100: English with 99 languages and 15 zero-shot pairs; --languages takes some pairs",
        (file_at(_PLACES, _WHOLE),),
        # All zero-shot pairs are in one small archive, which comes with every choice of languages.
        (*map(_pair_file, LANGUAGES), file_at(_PLACES, "opus-100-corpus-zeroshot-v1.0.tar.gz")),
        {
            "opus100": DataKind(
                "OPUS-100, English with 99 languages",
                folder="pairs",
                rows=rows,
                out="opus100{chosen}",
                defaults={
                    **{"CHARACTER_COVERAGE": 0.9995, "VOCAB_SIZE": 64_000, "SUBWORDS": "unigram"},
                    **{"BYTE_FALLBACK": True, "SAMPLE": 10_000_000},
                    "UNPACKED": str(ROOT / "data" / "opus100.raw"),
                },
                options="RAW DOWNLOADS JOBS LANGS UNPACKED OVERLAP",
                check=check,
            )
        },
    )
}
