"""Published corpora, listed in published.yaml: their files, and readers of their text."""

from __future__ import annotations

import gzip
import html
import itertools
import lzma
import re
import shutil
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

import yaml

from fairseq_deepnet.files import RESOURCES, say, whole_folder, write_text
from fairseq_deepnet.tools.corpora.build import Row
from fairseq_deepnet.tools.corpora.text import Recipe, find_side, raw_lines, read_lines
from fairseq_deepnet.tools.languages import languages as all_languages

Files = Iterator[tuple[tarfile.TarInfo, BinaryIO]]


@contextmanager
def opened(path: Path) -> Iterator[Files]:
    """Open a tar archive (plain, .gz, .bz2, .xz) and yield its files, each with its content.

    Read a content before you ask for the next file. Links and devices are left out. Raises
    ValueError for a damaged archive.
    """
    try:
        with tarfile.open(path) as tar:
            yield _files(tar)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} is not a complete archive ({error}); download it again"
        ) from error


def _files(tar: tarfile.TarFile) -> Files:
    for member in tar:
        if member.isfile():
            yield member, cast(BinaryIO, tar.extractfile(member))
    while cast(BinaryIO, tar.fileobj).read(1 << 20):
        pass  # tarfile takes a truncated archive for a whole one; the end of the stream tells


def write(content: BinaryIO, place: Path) -> None:
    """Write a file's content to `place`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as out:
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
    """A file to download from the first of its URLs that provides it.

    A file without `languages` is part of every choice of languages.
    """

    name: str
    urls: tuple[str, ...]
    languages: tuple[str, ...] = ()
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    published: str = ""


class Corpus(NamedTuple):
    """Files of a corpus, and `parts` to download instead if languages are chosen."""

    what: str
    files: tuple[File, ...]
    parts: tuple[File, ...] = ()

    def select(self, languages: Iterable[str] = ()) -> tuple[File, ...]:
        """Return the files to download: all, or the parts with no others than `languages`."""
        wanted = set(languages)
        if not wanted:
            return self.files
        languages_of_parts = {language for part in self.parts for language in part.languages}
        if not languages_of_parts:
            raise ValueError("this corpus comes whole: leave --languages out")
        if unknown := sorted(wanted - languages_of_parts):
            choices = " ".join(sorted(languages_of_parts))
            raise ValueError(f"no language {', '.join(unknown)}; choose from {choices}")
        return tuple(part for part in self.parts if wanted.issuperset(part.languages))


# Test sets in the format of NIST's scoring tools, neither valid SGML nor valid XML: in the text,
# only <seg> is a tag.
_SEGMENT: Final = re.compile(r'<seg\s+id="?([^">\s]*)"?[^>]*>(.*?)</seg>', re.I | re.S)
_ENTITY: Final = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_OPENING: Final = re.compile(r"<seg\b", re.I)


def read_segments(*sides: Path) -> list[Iterable[str]]:
    """Return the text of every segment of both sides of a test set.

    Raises ValueError for a damaged file, and if the sides have different segments.
    """
    texts: list[Iterable[str]] = []
    numbers = []
    for path in sides:
        try:
            content = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not valid UTF-8 (byte {error.start + 1})") from error
        segments = _SEGMENT.findall(content)
        text = [
            re.sub(r"[\r\n]+", " ", _ENTITY.sub(lambda match: html.unescape(match[0]), raw)).strip()
            for _, raw in segments
        ]
        if not all(text) or not text or len(text) != len(_OPENING.findall(content)):
            raise ValueError(
                f"{path}: no complete set of <seg> ... </seg> with text; download it again"
            )
        texts.append(text)
        numbers.append([number for number, _ in segments])
    if numbers[0] != numbers[1]:
        raise ValueError(f"{sides[0]} and {sides[1]} have different segments; download them again")
    return texts


# Untranslated metadata. fairseq's recipe lists the first three, which the files of 2014 contain;
# files of later years also contain the others.
_DROPPED = re.compile(r"<(?:url|talkid|keywords|speaker|reviewer|translator|doc|/doc)\b", re.I)
_KEPT_TAGS = re.compile(r"</?(?:title|description)>")


def read_talks(*sides: Path) -> list[Iterable[str]]:
    """Return the titles, descriptions and sentences of both sides of train.tags.

    Entities such as &amp; are not resolved, as in fairseq's recipe.
    """
    return [
        (_KEPT_TAGS.sub("", line).strip() for line in read_lines(path) if not _DROPPED.search(line))
        for path in sides
    ]


def _read_plain(*sides: Path) -> list[Iterable[str]]:
    return [
        (line.removesuffix(b"\n").decode("utf-8", "surrogateescape") for line in raw_lines(path))
        for path in sides
    ]


class Part(NamedTuple):
    """A piece of a split: two members of an archive, and the published number of pairs."""

    name: str
    split: str
    archive: str
    members: tuple[str, str]
    format: str
    lines: int | None = None


def unpack(parts: Sequence[Part], languages: Sequence[str], raw: Path, place: Path) -> None:
    """Write PLACE/SPLIT.LANGUAGE of all parts, one after the other, unless PLACE exists.

    Args:
        languages: languages of the two members of each part.
        raw: folder with the archives, or the only archive.
        place: folder, written atomically.
    """
    if place.is_dir():
        return
    with whole_folder(place) as folder:
        wanted: dict[str, dict[str, Path]] = defaultdict(dict)
        for part in parts:
            files = [folder / f"{part.name}.{code}.raw" for code in languages]
            wanted[part.archive] |= dict(zip(part.members, files, strict=True))
        archives = {name: raw if raw.is_file() else raw / name for name in wanted}
        if missing := [str(path) for path in archives.values() if not path.is_file()]:
            raise FileNotFoundError(f"there is no {missing[0]}; without RAW it is downloaded")
        with ThreadPoolExecutor() as pool:  # unpacking releases Python's lock
            list(pool.map(take, archives.values(), wanted.values()))
        for part in parts:
            files = [folder / f"{part.name}.{code}.raw" for code in languages]
            counts = [
                _append(folder / f"{part.split}.{language}", side)
                for language, side in zip(languages, _FORMATS[part.format](*files), strict=True)
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
    with path.open("a", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        return sum(bool(stream.write(f"{line}\n")) for line in lines)


def _archive_rows(corpus: str, recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    parts = [Part(**part) for part in _DATA["parts"][corpus]]
    unpack(parts, _DATA["folders"][corpus]["languages"], raw, place)
    languages = tuple(recipe.languages.split())
    splits = [part.split for part in parts if not (part.split == "valid" and recipe.hold_out)]
    return [Row(split, languages, str(place / split)) for split in dict.fromkeys(splits)]


def _iwslt_held_out(recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    """Hold out every 23rd raw pair with text on both sides, as fairseq's recipe does."""
    train, *tests = _archive_rows("iwslt14", recipe, raw, place)
    if not (place / "valid.en").is_file():
        sides = [read_lines(place / f"train.{code}") for code in ("de", "en")]
        pairs = [pair for pair in zip(*sides, strict=True) if all(pair)]
        for side, code in enumerate(("de", "en")):
            lines = [f"{pair[side]}\n" for pair in pairs]
            held_out = "".join(lines[22::23])
            del lines[22::23]
            write_text(place / f"remaining.{code}", "".join(lines))
            write_text(place / f"valid.{code}", held_out)
    valid = train._replace(split="valid", prefix=str(place / "valid"))
    return [train._replace(prefix=str(place / "remaining")), valid, *tests]


_MULTI30K: Final = {
    "train": ("train", 29_000),
    "valid": ("val", 1014),
    "test": ("test_2016_flickr", 1000),
}
"""Split -> published name, and lines."""


def _multi30k_rows(recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    languages = tuple(recipe.languages.split())
    rows = []
    for split, (name, lines) in _MULTI30K.items():
        has_our_name = any(raw.glob(f"{split}.{languages[0]}*"))
        prefix = raw / (split if has_our_name else name)
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
        row._replace(languages=pair)
        for pair in itertools.combinations(sorted(languages), 2)
        for row in rows
        if "en" in pair or row.split == "test"
    ]


OPUS100: Final = [code for code, entry in all_languages().items() if entry.opus100 is not None]
"""The 99 languages besides English, by the codes of the corpus's files."""
_OPUS_WHOLE: Final = "opus-100-corpus-v1.0.tar.gz"
_OPUS_SPLITS: Final = {"train": "train", "dev": "valid", "test": "test"}
_OPUS_FILE: Final = re.compile(
    r"(?:.*/)?(?P<name>(?P<kind>supervised|zero-shot)/(?P<a>[a-z]{2,3})-(?P<b>[a-z]{2,3})/"
    r"opus\.(?P=a)-(?P=b)-(?P<split>train|dev|test)\.(?P<language>(?P=a)|(?P=b)))"
)


def _opus100_file(path: str, languages: Sequence[str]) -> re.Match[str] | None:
    """Return the parts of a file name of OPUS-100; None if the file is not selected.

    Supervised pairs are selected if both languages are English or in `languages`, or if that is
    empty; of zero-shot pairs only the test sets.
    """
    match = _OPUS_FILE.fullmatch(path)
    if not match or match["a"] == match["b"]:
        return None
    is_chosen = not languages or {*languages, "en"}.issuperset((match["a"], match["b"]))
    is_read = match["kind"] == "supervised" or match["split"] == "test"
    return match if is_chosen and is_read else None


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
                        if match := _opus100_file(member.name, languages):
                            write(content, folder / match["name"])
    pairs: dict[tuple[str, tuple[str, str]], dict[str, Path]] = defaultdict(dict)
    for path in sorted((place if archives else raw).rglob("opus.*")):
        if match := _opus100_file(path.absolute().as_posix().removesuffix(".gz"), languages):
            pair = match["a"], match["b"]
            pairs[_OPUS_SPLITS[match["split"]], pair][match["language"]] = path
    trained = {code for split, pair in pairs if split == "train" for code in pair}
    if not trained or not trained.issuperset(languages):
        missing = sorted(set(languages) - trained) or ["any language"]
        raise ValueError(
            f"{raw} has no training text of {', '.join(missing)}; RAW is a folder with archives of"
            " OPUS-100, or with files such as supervised/de-en/opus.de-en-train.de"
        )
    rows = []
    for (split, pair), files in pairs.items():
        prefix = str(next(iter(files.values()))).removesuffix(".gz").rpartition(".")[0]
        if len(files) < 2:
            raise ValueError(f"{prefix}: one of the two sides is missing")
        if trained.issuperset(pair):
            rows.append(Row(split, pair, prefix))
    order = list(_OPUS_SPLITS.values())
    return sorted(rows, key=lambda row: (order.index(row.split), row.languages))


class Published(NamedTuple):
    """A data folder that is built from a published corpus; see published.yaml.

    Attributes:
        rows: returns the rows of (recipe, raw, place), after unpacking from `raw` to `place`.
        choices: languages to choose from.
    """

    what: str
    corpus: str
    recipe: Recipe
    rows: Callable[[Recipe, Path, Path], list[Row]]
    out: str
    choices: Sequence[str]
    least: int

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


_FORMATS: Final[dict[str, Callable[..., list[Iterable[str]]]]] = {
    "talks": read_talks,
    "segments": read_segments,
    "plain": _read_plain,
}
_READERS: Final[dict[str, Callable[[Recipe, Path, Path], list[Row]]]] = {
    **{name: partial(_archive_rows, name) for name in ("iwslt14", "wmt17", "sample")},
    "iwslt14-held-out": _iwslt_held_out,
    "multi30k": _multi30k_rows,
    "opus100": _opus100_rows,
}
_DATA: Final = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
PUBLISHED: Final = {
    name: Published(
        entry["what"],
        entry.get("corpus", ""),
        Recipe(**entry["recipe"]),
        _READERS[entry["reader"]],
        entry["out"],
        OPUS100 if entry["languages"] == "opus100" else entry["languages"],
        entry.get("least", 2),
    )
    for name, entry in _DATA["folders"].items()
}
SAMPLE: Final = RESOURCES / "data" / "sample" / "sample.tar.bz2"


def _read_files(entries: Iterable[dict[str, Any]]) -> Iterator[File]:
    for entry in entries:
        facts = dict(entry)
        pattern, places = facts.pop("name"), facts.pop("from")
        codes = facts.pop("languages", None)
        names: dict[str, tuple[str, ...]] = {pattern: ()}
        if codes == "opus100":
            names = {pattern.format("-".join(sorted((code, "en")))): (code,) for code in OPUS100}
        elif codes:
            names = {pattern.format(code): (code,) for code in codes}
        for name, languages in names.items():
            yield File(name, tuple(f"{place}/{name}" for place in places), languages, **facts)


CORPORA: Final = {
    name: Corpus(
        entry["what"], (*_read_files(entry["files"]),), (*_read_files(entry.get("parts", ())),)
    )
    for name, entry in _DATA["corpora"].items()
}
"""Corpora of `deepnet download`."""
