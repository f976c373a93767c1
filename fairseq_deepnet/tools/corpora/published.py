"""Published corpora: their files, and the data folders that are built from them.

Sources: fairseq's prepare-iwslt14.sh and prepare-wmt14en2de.sh for IWSLT-14 and WMT-17; Zhang et
al. 2020 (arXiv 2004.11867) for OPUS-100; github.com/multi30k/dataset.
"""

from __future__ import annotations

import bz2
import gzip
import html
import lzma
import re
import shutil
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from fairseq_deepnet.files import RESOURCES, say, whole, whole_folder
from fairseq_deepnet.tools.corpora.build import Recipe, Row
from fairseq_deepnet.tools.corpora.text import find_side, raw_lines, read_lines
from fairseq_deepnet.tools.languages import languages as all_languages

_OPENERS: Final[dict[str, Any]] = {
    **dict.fromkeys((".gz", ".tgz"), gzip.open),
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
Files = Iterator[tuple[tarfile.TarInfo, BinaryIO]]


@contextmanager
def opened(path: Path) -> Iterator[Files]:
    """Open a tar archive (plain, .gz, .bz2, .xz) and yield its files, each with its content.

    Read a content before you ask for the next file. Links and devices are left out. Raises
    ValueError for a damaged archive.
    """
    try:
        with (
            _OPENERS.get(path.suffix, open)(path, "rb") as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            yield _files(stream, tar)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} is not a complete archive ({error}); download it again"
        ) from error


def _files(stream: BinaryIO, tar: tarfile.TarFile) -> Files:
    for member in tar:
        if member.isfile():
            yield member, cast(BinaryIO, tar.extractfile(member))
    while stream.read(1 << 20):
        pass  # tarfile takes a truncated archive for a whole one; the end of the stream tells


def write(content: BinaryIO, place: Path) -> None:
    """Write a file's content to `place`, which appears only when it is complete."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with whole(place) as part, part.open("wb") as out:
        shutil.copyfileobj(content, out, 1 << 20)


def take(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Write the members named in `wanted` to their places; ValueError if one is missing."""
    missing = dict(wanted)
    with opened(archive) as files:
        for member, content in files:
            if place := missing.pop(member.name.removeprefix("./"), None):
                write(content, place)
            if not missing:
                return
    raise ValueError(f"{archive} has no {', '.join(sorted(missing))}; download it again")


@dataclass(frozen=True)
class File:
    """A file to download, from the first of its URLs that has it.

    Only checksums that somebody else published are listed, and `published` names who. A file
    without `languages` is part of every choice of languages.
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    published: str = ""
    languages: tuple[str, ...] = ()


def _at(places: Iterable[str], name: str, **facts: Any) -> File:
    return File(name, tuple(f"{place}/{name}" for place in places), **facts)


class Corpus(NamedTuple):
    """Files, and their smaller `parts` where single languages can be downloaded."""

    what: str
    files: tuple[File, ...]
    parts: tuple[File, ...] = ()

    def select(self, languages: Iterable[str] = ()) -> tuple[File, ...]:
        """Return the files to download: all, or the parts with no others than `languages`."""
        wanted = set(languages)
        if not wanted:
            return self.files
        known = {language for part in self.parts for language in part.languages}
        if not known:
            raise ValueError("this corpus comes whole: leave --languages out")
        if unknown := sorted(wanted - known):
            raise ValueError(
                f"no language {', '.join(unknown)}; choose from {' '.join(sorted(known))}"
            )
        return tuple(part for part in self.parts if wanted.issuperset(part.languages))


# Test sets in the SGM or XML of NIST's scoring tools, neither good SGML nor good XML: in the text
# only <seg> is a tag.
_SEGMENT: Final = re.compile(r'<seg\s+id="?([^">\s]*)"?[^>]*>(.*?)</seg>', re.I | re.S)
_ENTITY: Final = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_OPENING: Final = re.compile(r"<seg\b", re.I)


def _unescape(text: str) -> str:
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def read_segments(path: Path) -> list[tuple[str, str]]:
    """Return number and text of every segment of a set; ValueError for a damaged file."""
    try:
        content = b"".join(raw_lines(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid UTF-8 (byte {error.start + 1})") from error
    segments = [
        (match[1], re.sub(r"[\r\n]+", " ", _unescape(match[2])).strip())
        for match in _SEGMENT.finditer(content)
    ]
    if not segments or len(segments) != len(_OPENING.findall(content)):
        raise ValueError(f"{path}: no complete set of <seg> ... </seg>; download it again")
    return segments


def _read_set(*sides: Path) -> list[Iterable[str]]:
    segments = [read_segments(path) for path in sides]
    numbers = [[number for number, _ in side] for side in segments]
    if numbers[0] != numbers[1]:
        raise ValueError(f"{sides[0]} and {sides[1]} have different segments; download them again")
    for path, side in zip(sides, segments, strict=True):
        if empty := next((number for number, text in side if not text), None):
            raise ValueError(f"{path}: segment {empty} is empty; download it again")
    return [[text for _, text in side] for side in segments]


# Metadata, never translated. fairseq's recipe names the first three, which its 2014 files have;
# files of later years have the others, too.
_DROPPED = re.compile(r"<(?:url|talkid|keywords|speaker|reviewer|translator|doc|/doc)\b", re.I)
_KEPT_TAGS = re.compile(r"</?(?:title|description)>")


def read_talks(path: Path) -> Iterator[str]:
    """Yield the sentences of a train.tags file: tag lines dropped, titles and descriptions kept.

    Entities such as &amp; stay, as in fairseq's recipe.
    """
    for line in read_lines(path):
        if not _DROPPED.search(line):
            yield _KEPT_TAGS.sub("", line).strip()


def _read_talks(*sides: Path) -> list[Iterable[str]]:
    return [read_talks(path) for path in sides]


def _read_plain(*sides: Path) -> list[Iterable[str]]:
    return [
        (line.removesuffix(b"\n").decode("utf-8", "surrogateescape") for line in raw_lines(path))
        for path in sides
    ]


class Part(NamedTuple):
    """A piece of a split: two files of an archive, and the number of pairs as published."""

    name: str
    split: str
    archive: str
    members: tuple[str, str]
    read: Callable[..., list[Iterable[str]]]
    lines: int | None = None


def unpack(parts: Sequence[Part], languages: Sequence[str], raw: Path, place: Path) -> None:
    """Write PLACE/SPLIT.LANGUAGE of all parts, one after the other, unless it is there.

    Args:
        languages: of the two members of each part.
        raw: folder with the archives, or the only archive.
        place: a folder that appears only when it is complete.
    """
    if place.is_dir():
        return
    with whole_folder(place) as folder:
        wanted: dict[str, dict[str, Path]] = defaultdict(dict)
        for part in parts:
            files = [folder / f"{part.name}.{code}.raw" for code in languages]
            wanted[part.archive] |= dict(zip(part.members, files, strict=True))
        archives = {name: raw if raw.is_file() else raw / name for name in wanted}
        for archive in archives.values():
            if not archive.is_file():
                raise FileNotFoundError(f"there is no {archive}; without RAW it is downloaded")
        with ThreadPoolExecutor() as pool:  # unpacking releases Python's lock
            list(pool.map(lambda name: take(archives[name], wanted[name]), wanted))
        for part in parts:
            files = [folder / f"{part.name}.{code}.raw" for code in languages]
            counts = [
                _append(folder / f"{part.split}.{language}", side)
                for language, side in zip(languages, part.read(*files), strict=True)
            ]
            if counts[0] != counts[1]:
                raise ValueError(
                    f"{part.name} has {counts[0]:,} and {counts[1]:,} lines; download"
                    f" {part.archive} again"
                )
            if part.lines not in (None, counts[0]):
                say(f"warning: {part.name} has {counts[0]:,} pairs, as published {part.lines:,}")
            for path in files:
                path.unlink()


def _append(path: Path, lines: Iterable[str]) -> int:
    count = 0
    with path.open("a", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        for line in lines:
            stream.write(line + "\n")
            count += 1
    return count


_IWSLT: Final = "de-en.tgz"
_TALKS: Final = "de-en/train.tags.de-en"
_SETS: Final = {  # in the order of fairseq's recipe, with the pairs counted in the published sets
    "TED.dev2010": 887,
    "TEDX.dev2012": 1165,
    "TED.tst2010": 1565,
    "TED.tst2011": 1433,
    "TED.tst2012": 1700,
}
IWSLT14: Final = (
    Part("train", "train", _IWSLT, (f"{_TALKS}.de", f"{_TALKS}.en"), _read_talks),
    *(
        Part(name, "test", _IWSLT, (f"{stem}.de.xml", f"{stem}.en.xml"), _read_set, lines)
        for name, lines in _SETS.items()
        for stem in [f"de-en/IWSLT14.{name}.de-en"]
    ),
)


def _wmt_text(name: str, archive: str, stem: str, lines: int) -> Part:
    members = (f"{stem}.de-en.en", f"{stem}.de-en.de")
    return Part(name, "train", f"training-parallel-{archive}.tgz", members, _read_plain, lines)


def _wmt_set(name: str, split: str, archive: str, stem: str, lines: int) -> Part:
    return Part(
        name, split, archive, (f"{stem}-src.en.sgm", f"{stem}-ref.de.sgm"), _read_set, lines
    )


WMT17: Final = (
    _wmt_text("europarl-v7", "europarl-v7", "training/europarl-v7", 1_920_209),
    _wmt_text("commoncrawl", "commoncrawl", "commoncrawl", 2_399_123),
    _wmt_text("news-commentary-v12", "nc-v12", "training/news-commentary-v12", 270_769),
    _wmt_set("newstest2013", "valid", "dev.tgz", "dev/newstest2013", 3000),
    _wmt_set("newstest2014", "test", "dev.tgz", "dev/newstest2014-deen", 3003),
    _wmt_set("newstest2017", "test1", "test.tgz", "test/newstest2017-ende", 3004),
)


def _archive_rows(
    parts: Sequence[Part], codes: tuple[str, str], recipe: Recipe, raw: Path, place: Path
) -> list[Row]:
    unpack(parts, codes, raw, place)
    languages = tuple(recipe.languages.split())
    splits = [part.split for part in parts if not (part.split == "valid" and recipe.hold_out)]
    return [Row(split, languages, str(place / split)) for split in dict.fromkeys(splits)]


def _iwslt_held_out(recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    """Hold every 23rd raw pair with text on both sides out for validation, as fairseq's recipe."""
    rows = _archive_rows(IWSLT14, ("de", "en"), recipe, raw, place)
    if not (place / "valid.en").is_file():
        sides = [list(read_lines(place / f"train.{code}")) for code in ("de", "en")]
        pairs = [pair for pair in zip(*sides, strict=True) if all(pair)]
        for side, code in enumerate(("de", "en")):
            chosen = [pair[side] for number, pair in enumerate(pairs, 1) if number % 23]
            _append(place / f"kept.{code}", chosen)
            _append(place / f"valid.{code}", [pair[side] for pair in pairs[22::23]])
    return [
        Row("train", rows[0].languages, str(place / "kept")),
        Row("valid", rows[0].languages, str(place / "valid")),
        *rows[1:],
    ]


MULTI30K: Final = ("de", "en", "fr", "cs")
_MULTI30K_LINES: Final = {"train": 29_000, "valid": 1014, "test": 1000}
_MULTI30K_NAMES: Final = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def _multi30k_rows(recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    languages = tuple(recipe.languages.split())
    rows = []
    for split, lines in _MULTI30K_LINES.items():
        names = (split, _MULTI30K_NAMES[split])  # ours, and that of the published files
        prefix = next(
            (raw / name for name in names if any(raw.glob(f"{name}.{languages[0]}*"))),
            raw / names[1],
        )
        for language in languages:
            count = sum(1 for _ in raw_lines(find_side(prefix, language)))
            if count != lines:
                raise ValueError(
                    f"{prefix}.{language} has {count} lines instead of {lines}; download it again"
                )
        rows.append(Row(split, languages, str(prefix)))
    if recipe.kind != "pairs":
        return rows
    return [  # pairs with English are trained, all are tested
        row._replace(languages=(one, other))
        for one in languages
        for other in languages
        for row in rows
        if one < other and ("en" in (one, other) or row.split == "test")
    ]


OPUS100: Final = tuple(code for code, one in all_languages().items() if one.opus100 is not None)
"""The 99 languages besides English, by the codes of the corpus's files."""
_OPUS_WHOLE: Final = "opus-100-corpus-v1.0.tar.gz"
_OPUS_SPLITS: Final = {"train": "train", "dev": "valid", "test": "test"}
_OPUS_FILE: Final = re.compile(
    r"(?:.*/)?(supervised|zero-shot)/(?P<a>[a-z]{2,3})-(?P<b>[a-z]{2,3})/"
    r"opus\.(?P=a)-(?P=b)-(?P<split>train|dev|test)\.(?P<language>(?P=a)|(?P=b))"
)


def opus100_side(path: str, languages: Sequence[str]) -> tuple[str, tuple[str, str], str] | None:
    """Return split, pair and language of one of OPUS-100's files; None if it is not wanted.

    The files of supervised pairs are wanted if no languages are named or if both languages are
    among them or English; of zero-shot pairs only the test sets.
    """
    match = _OPUS_FILE.fullmatch(path)
    if not match or match["a"] == match["b"]:
        return None
    pair = match["a"], match["b"]
    if languages and not {*languages, "en"}.issuperset(pair):
        return None
    if match[1] == "zero-shot" and match["split"] != "test":
        return None
    return _OPUS_SPLITS[match["split"]], pair, match["language"]


def _opus100_rows(recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    """Unpack the archives, or take a folder of unpacked text in the corpus's layout."""
    languages = recipe.languages.split()
    archives = [raw] if raw.is_file() else sorted(raw.glob("opus-100-corpus*.tar.gz"))
    whole = [path for path in archives if path.name == _OPUS_WHOLE]
    if archives and not place.is_dir():
        with whole_folder(place) as folder:
            for archive in whole or archives:
                say(f"unpacking {archive.name}")
                with opened(archive) as members:
                    for member, content in members:
                        if side := opus100_side(member.name, languages):
                            split, (a, b), language = side
                            name = f"opus.{a}-{b}-{split.replace('valid', 'dev')}.{language}"
                            kind = "supervised" if "en" in (a, b) else "zero-shot"
                            write(content, folder / kind / f"{a}-{b}" / name)
    found: dict[tuple[str, tuple[str, str]], dict[str, Path]] = defaultdict(dict)
    for path in sorted((place if archives else raw).rglob("opus.*")):
        if side := opus100_side(path.absolute().as_posix().removesuffix(".gz"), languages):
            found[side[:2]][side[2]] = path
    trained = {code for split, pair in found if split == "train" for code in pair}
    if not trained or not trained.issuperset(languages):
        missing = sorted(set(languages) - trained) or ["any language"]
        raise ValueError(
            f"{raw} has no training text of {', '.join(missing)}: it needs archives of OPUS-100 or"
            " supervised/de-en/opus.de-en-train.de and the like; see LANGS and RAW"
        )
    rows = []
    for (split, pair), files in found.items():
        if lacking := set(pair) - set(files):
            raise ValueError(f"{next(iter(files.values()))} has no {min(lacking)} side beside it")
        if trained.issuperset(pair):
            path = files[pair[0]]
            prefix = str(path).removesuffix(".gz").removesuffix(f".{pair[0]}")
            rows.append(Row(split, pair, prefix))
    order = list(_OPUS_SPLITS.values())
    return sorted(rows, key=lambda row: (order.index(row.split), row.languages))


def _sample_rows(recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    names = [f"{split}.{code}" for split in ("train", "valid", "test") for code in ("de", "en")]
    if not place.is_dir():
        with whole_folder(place) as folder, opened(raw) as files:
            for member, content in files:
                if (name := Path(member.name).name) in names:
                    write(content, folder / name)
    languages = tuple(recipe.languages.split())
    return [Row(split, languages, str(place / split)) for split in ("train", "valid", "test")]


class Published(NamedTuple):
    """A data folder that is built from a published corpus.

    Attributes:
        what: one line.
        corpus: the name of the files; empty for the sample, which is part of this project.
        recipe: defaults of its options; its `languages` are the default, too.
        rows: returns the rows of (recipe, raw, place), after unpacking from `raw` to `place`.
        out: name of the data folder, with the languages' codes.
        choices: languages to choose from; empty if they are fixed.
        least: number of languages at least.
    """

    what: str
    corpus: str
    recipe: Recipe
    rows: Callable[[Recipe, Path, Path], list[Row]]
    out: str
    choices: tuple[str, ...] = ()
    least: int = 2

    def check(self, recipe: Recipe) -> None:
        """Raise ValueError for languages that the corpus does not have."""
        chosen = recipe.languages.split()
        if len(set(chosen)) != len(chosen) or not set(chosen) <= set(self.choices):
            raise ValueError(
                f"languages {recipe.languages!r}: choose different ones of {' '.join(self.choices)}"
            )
        pairs = recipe.kind == "pairs" and chosen
        if len(chosen) < self.least or (pairs and self.least and "en" not in chosen):
            raise ValueError(f"languages {recipe.languages!r}: English and at least one other")


_MOSES: Final = Recipe(kind="moses", joint=False, max_words=175, max_ratio=1.5)
PUBLISHED: Final[dict[str, Published]] = {
    "iwslt14": Published(
        "IWSLT 2014 German-English, as fairseq's recipe",
        "iwslt14",
        replace(_MOSES, languages="de en", hold_out=23, lowercase=True, apostrophes=True),
        partial(_archive_rows, IWSLT14, ("de", "en")),
        "iwslt14.tokenized.{}-{}",
        ("de", "en"),
    ),
    "iwslt14-sentencepiece": Published(
        "IWSLT 2014 German-English, raw cased text",
        "iwslt14",
        Recipe(languages="de en", vocab_size=10_000),
        _iwslt_held_out,
        "iwslt14.sentencepiece.{}-{}",
        ("de", "en"),
    ),
    "wmt17": Published(
        "WMT 2017 English-German, raw cased text",
        "wmt17",
        Recipe(languages="en de", vocab_size=32_000),
        partial(_archive_rows, WMT17, ("en", "de")),
        "wmt17.{}-{}",
        ("en", "de"),
    ),
    "wmt17-tokenized": Published(
        "WMT 2017 English-German, as fairseq's recipe",
        "wmt17",
        replace(
            _MOSES,
            languages="en de",
            hold_out=100,
            merges=40_000,
            max_words=250,
            clean_on="subwords",
            joint=True,
            aggressive=True,
            punctuation=True,
            apostrophes=True,
        ),
        partial(_archive_rows, WMT17, ("en", "de")),
        "wmt17.tokenized.{}-{}",
        ("en", "de"),
    ),
    "multi30k": Published(
        "Multi30k captions, one pair",
        "multi30k",
        Recipe(languages="de en", vocab_size=4000),
        _multi30k_rows,
        "multi30k.{}-{}",
        MULTI30K,
    ),
    "multi30k-lm": Published(
        "Multi30k captions, one language",
        "multi30k",
        Recipe(kind="language", languages="en", vocab_size=4000, max_words=1000),
        _multi30k_rows,
        "multi30k_lm.{}",
        MULTI30K,
        least=1,
    ),
    "multi30k-multilingual": Published(
        "Multi30k captions, English with several languages",
        "multi30k",
        Recipe(kind="pairs", languages="cs de en fr", vocab_size=8000, temperature=1.0),
        _multi30k_rows,
        "multi30k_multilingual",
        MULTI30K,
    ),
    "opus100": Published(
        "OPUS-100, English with 99 languages (or --languages)",
        "opus100",
        # 64,000 as Zhang et al.; the parameter counts of the paper's Table 2 fit 250,000
        Recipe(
            kind="pairs",
            vocab_size=64_000,
            subwords="unigram",
            character_coverage=0.9995,
            byte_fallback=True,
            sample=10_000_000,
        ),
        _opus100_rows,
        "opus100",
        OPUS100,
        least=0,
    ),
    "sample": Published(
        "sentences of a grammar, part of this project",
        "",
        Recipe(languages="de en", vocab_size=2000),
        _sample_rows,
        "sample.{}-{}",
        ("de", "en"),
    ),
}
SAMPLE: Final = RESOURCES / "data" / "sample" / "sample.tar.bz2"

_TFDS: Final = "TensorFlow Datasets, url_checksums"
_WMT13: Final = ("https://www.statmt.org/wmt13", "http://www.statmt.org/wmt13")
_WMT: Final = tuple(f"{s}://data.statmt.org/wmt17/translation-task" for s in ("https", "http"))
_FAIR: Final = "https://dl.fbaipublicfiles.com"
_OPUS: Final = ("https://object.pouta.csc.fi/OPUS-100/v1.0",)
_FLICKR: Final = (
    "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw",
    "https://cdn.jsdelivr.net/gh/multi30k/dataset@master/data/task1/raw",
)
_MULTI30K_FILES: Final = tuple(
    _at(_FLICKR, f"{split}.{language}.gz", languages=(language,))
    for split in _MULTI30K_NAMES.values()
    for language in MULTI30K
)
_M2M100: Final = (
    "spm.128k.model",
    "data_dict.128k.txt",
    "model_dict.128k.txt",
    "language_pairs_small_models.txt",
)
CORPORA: Final[dict[str, Corpus]] = {
    "iwslt14": Corpus(
        "IWSLT 2014 German-English: TED talks (19 MB)",
        (
            _at(
                [
                    f"{_FAIR}/fairseq/data/iwslt14",
                    "https://wit3.fbk.eu/archive/2014-01/texts/de/en",
                ],
                _IWSLT,
            ),
        ),
    ),
    "wmt17": Corpus(
        "WMT 2017 English-German: Europarl, Common Crawl, News Commentary, test sets (1.8 GB)",
        (
            _at(
                _WMT13,
                "training-parallel-europarl-v7.tgz",
                size=657632379,
                sha256="0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
                published=_TFDS,
            ),
            _at(
                _WMT13,
                "training-parallel-commoncrawl.tgz",
                size=918311367,
                sha256="c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
                published=_TFDS,
            ),
            _at(
                _WMT,
                "training-parallel-nc-v12.tgz",
                size=168591139,
                sha256="2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
                published=_TFDS,
            ),
            _at(_WMT[:1], "dev.tgz"),
            _at(
                _WMT,
                "test.tgz",
                md5="86a1724c276004aa25455ae2a04cef26",
                published="sacreBLEU, dataset/__init__.py",
            ),
        ),
    ),
    "multi30k": Corpus(
        "Multi30k captions in German, English, French and Czech (12 files, 3 MB)",
        _MULTI30K_FILES,
        _MULTI30K_FILES,
    ),
    "opus100": Corpus(
        "OPUS-100: English with 99 languages and 15 zero-shot pairs; --languages takes some pairs",
        (_at(_OPUS, _OPUS_WHOLE),),
        (
            *(
                _at(
                    _OPUS,
                    f"opus-100-corpus-{'-'.join(sorted((code, 'en')))}-v1.0.tar.gz",
                    languages=(code,),
                )
                for code in OPUS100
            ),
            _at(_OPUS, "opus-100-corpus-zeroshot-v1.0.tar.gz"),
        ),
    ),
    "flores101": Corpus(
        "Flores-101: dev and devtest in 101 languages, and the sentencepiece model of spBLEU",
        (
            _at([f"{_FAIR}/flores101/dataset"], "flores101_dataset.tar.gz"),
            _at([f"{_FAIR}/fairseq/models/flores"], "sacrebleu_tokenizer_spm.model"),
        ),
    ),
    "ted": Corpus(
        "Multilingual TED talks in 60 languages (352 MB)",
        (
            _at(
                ["http://phontron.com/data"],
                "ted_talks.tar.gz",
                size=352222045,
                sha256="03457b9ebc6d60839f1a48c5a03c940266aff78b81fcda4c6d9e2a5a7fb670ae",
                published=_TFDS,
            ),
        ),
    ),
    "m2m100": Corpus(
        "M2M-100's sentencepiece model, dictionaries and language list (no weights)",
        tuple(_at([f"{_FAIR}/m2m_100"], name) for name in _M2M100),
    ),
}
"""What `deepnet download` knows."""
