"""Definitions of data folders and corpora from published.yaml, and readers of published text."""

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

from fairseq_deepnet.files import RESOURCES, say, whole_folder
from fairseq_deepnet.tools.corpora.build import Row
from fairseq_deepnet.tools.corpora.text import Recipe, raw_lines, read_lines
from fairseq_deepnet.tools.languages import languages as all_languages

Files = Iterator[tuple[tarfile.TarInfo, BinaryIO]]


@contextmanager
def opened(path: Path) -> Iterator[Files]:
    """Open a tar archive, and yield an iterator over its files, each with a stream of its content.

    A stream must be read before the next file is requested. Links and devices are skipped. Raises
    ValueError if the archive is damaged.
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
        pass  # gzip compares its checksum at the end; tarfile does not notice a truncated archive


def _write(content: BinaryIO, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        shutil.copyfileobj(content, out, 1 << 20)


def _extract(archive: Path, paths: Mapping[str, Path]) -> None:
    """Extract each member in `paths` to the path given; raise ValueError if one is missing."""
    missing = dict(paths)
    with opened(archive) as files:
        for member, content in files:
            if path := missing.pop(member.name.removeprefix("./"), None):
                _write(content, path)
    if missing:
        raise ValueError(f"{archive} has no {', '.join(sorted(missing))}; download it again")


@dataclass(frozen=True)
class File:
    """A file to download from the first of its URLs that provides it.

    A file without `languages` belongs to every selection of languages.
    """

    name: str
    urls: tuple[str, ...]
    languages: tuple[str, ...] = ()
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    published: str = ""


class Corpus(NamedTuple):
    """A corpus: its files, and the `parts` to download instead if languages are selected."""

    what: str
    files: tuple[File, ...]
    parts: tuple[File, ...] = ()

    def select(self, languages: Iterable[str] = ()) -> tuple[File, ...]:
        """Return the parts for these languages, or all files if `languages` is empty."""
        chosen = set(languages)
        if not chosen:
            return self.files
        choices = {language for part in self.parts for language in part.languages}
        if unknown := sorted(chosen - choices):
            names = " ".join(sorted(choices)) or "none, as this corpus has only one archive"
            raise ValueError(f"no language {', '.join(unknown)}; choose from {names}")
        return tuple(part for part in self.parts if chosen.issuperset(part.languages))


# The format of NIST's scoring tools is neither valid SGML nor valid XML. In the text, only <seg> is
# a tag.
_SEGMENT: Final = re.compile(r'<seg\s+id="?([^">\s]*)"?[^>]*>(.*?)</seg>', re.I | re.S)
_ENTITY: Final = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_OPENING: Final = re.compile(r"<seg\b", re.I)


def read_segments(*sides: Path) -> list[Iterable[str]]:
    """Return the text of the segments on both sides of a test set.

    If a file is damaged or the two sides have different segments, raise ValueError.
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


# Untranslated metadata. fairseq's recipe lists the first three, which the files of 2014 contain.
# Later files also contain the others.
_DROPPED = re.compile(r"<(?:url|talkid|keywords|speaker|reviewer|translator|doc|/doc)\b", re.I)
_KEPT_TAGS = re.compile(r"</?(?:title|description)>")


def read_talks(*sides: Path) -> list[Iterable[str]]:
    """Return the titles, descriptions and sentences in both of IWSLT's train.tags files.

    As in fairseq's recipe, entities such as &amp; are not resolved.
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


def _archive_rows(corpus: str, recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    """Return a row for each split; unless PLACE exists, first write files PLACE/SPLIT.LANGUAGE."""
    parts = _DATA["parts"][corpus]
    if not place.is_dir():
        with whole_folder(place) as folder:
            _unpack(parts, _DATA["folders"][corpus]["choices"], raw, folder)
    splits = dict.fromkeys(part["split"] for part in parts)
    if recipe.hold_out:
        splits.pop("valid", None)
    return [Row(split, tuple(recipe.languages.split()), str(place / split)) for split in splits]


def _unpack(
    parts: Sequence[dict[str, Any]], languages: Sequence[str], raw: Path, folder: Path
) -> None:
    """Extract all parts from the archives in `raw`, and append each to its split in `folder`."""
    members: dict[Path, dict[str, Path]] = defaultdict(dict)
    texts = [[folder / f"{part['name']}.{code}.raw" for code in languages] for part in parts]
    for part, files in zip(parts, texts, strict=True):
        archive = raw if raw.is_file() else raw / part["archive"]
        members[archive] |= dict(zip(part["members"], files, strict=True))
    if missing := [str(path) for path in members if not path.is_file()]:
        raise FileNotFoundError(f"there is no {missing[0]}; without RAW it is downloaded")
    with ThreadPoolExecutor() as pool:  # unpacking releases the GIL
        list(pool.map(_extract, members.keys(), members.values()))
    for part, files in zip(parts, texts, strict=True):
        for language, side in zip(languages, _FORMATS[part["format"]](*files), strict=True):
            path = folder / f"{part['split']}.{language}"
            with path.open("a", encoding="utf-8", errors="surrogateescape", newline="\n") as out:
                lines = sum(bool(out.write(f"{line}\n")) for line in side)
        if (published := part.get("lines", lines)) != lines:
            say(f"warning: {part['name']} has {lines:,} pairs, not {published:,} as published")
        for path in files:
            path.unlink()


def _multi30k_rows(recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    languages = tuple(recipe.languages.split())
    rows = []
    for split, published in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        name = split if any(raw.glob(f"{split}.{languages[0]}*")) else published
        rows.append(Row(split, languages, str(raw / name)))
    if recipe.kind != "pairs":
        return rows
    return [  # pairs with English are used for training, all pairs for tests
        row._replace(languages=pair)
        for pair in itertools.combinations(sorted(languages), 2)
        for row in rows
        if "en" in pair or row.split == "test"
    ]


OPUS100: Final = [code for code, entry in all_languages().items() if entry.opus100 is not None]
"""Codes of the 99 languages besides English, as in the corpus's file names."""
_OPUS_WHOLE: Final = "opus-100-corpus-v1.0.tar.gz"
_OPUS_SPLITS: Final = {"train": "train", "dev": "valid", "test": "test"}
_OPUS_FILE: Final = re.compile(
    r"(?:.*/)?(?P<name>(?P<kind>supervised|zero-shot)/(?P<a>[a-z]{2,3})-(?P<b>[a-z]{2,3})/"
    r"opus\.(?P=a)-(?P=b)-(?P<split>train|dev|test)\.(?P<language>(?P=a)|(?P=b)))"
)


def _opus100_file(path: str, languages: Sequence[str]) -> re.Match[str] | None:
    """Match the path of an OPUS-100 file; return None if the file is not selected.

    A pair is selected if `languages` is empty or contains both languages of the pair, of which
    English may be omitted. For zero-shot pairs, only the test sets are selected.
    """
    match = _OPUS_FILE.fullmatch(path)
    if not match or match["a"] == match["b"]:
        return None
    is_chosen = not languages or {*languages, "en"}.issuperset((match["a"], match["b"]))
    is_read = match["kind"] == "supervised" or match["split"] == "test"
    return match if is_chosen and is_read else None


def _opus100_rows(recipe: Recipe, raw: Path, place: Path) -> list[Row]:
    """Return the rows of OPUS-100, after unpacking any archives."""
    languages = recipe.languages.split()
    archives = [raw] if raw.is_file() else [*raw.glob(_OPUS_WHOLE)]
    archives = archives or sorted(raw.glob("opus-100-corpus*.tar.gz"))
    if archives and not place.is_dir():
        with whole_folder(place) as folder:
            for archive in archives:
                say(f"unpacking {archive.name}")
                with opened(archive) as members:
                    for member, content in members:
                        if match := _opus100_file(member.name, languages):
                            _write(content, folder / match["name"])
    rows: dict[tuple[Any, ...], Row] = {}
    for path in (place if archives else raw).rglob("opus.*"):
        name = path.absolute().as_posix().removesuffix(".gz")
        if match := _opus100_file(name, languages):
            split = _OPUS_SPLITS[match["split"]]
            row = Row(split, (match["a"], match["b"]), name.rpartition(".")[0])
            if rows.setdefault(row[:2], row) != row:
                raise ValueError(f"{raw} has more than one copy of {split} {row.pair}: remove one")
    trained = {code for row in rows.values() if row.split == "train" for code in row.languages}
    if not trained or not trained.issuperset(languages):
        missing = sorted(set(languages) - trained) or ["any language"]
        raise ValueError(
            f"{raw} has no training text of {', '.join(missing)}; RAW is a folder with archives of"
            " OPUS-100, or with files such as supervised/de-en/opus.de-en-train.de"
        )
    if not languages and (missing := sorted({*OPUS100} - trained)):
        say(f"note: {raw} has no training text of {', '.join(missing)}")
    order = list(_OPUS_SPLITS.values())
    return sorted(
        (row for row in rows.values() if trained.issuperset(row.languages)),
        key=lambda row: (order.index(row.split), row.languages),
    )


class Folder(NamedTuple):
    """A data folder that `deepnet preprocess` can build, as defined in published.yaml.

    Attributes:
        rows: function of (recipe, raw, place) that unpacks `raw` into `place` and returns the rows;
            None for the user's own text.
        choices: languages that can be selected; English is not listed if every pair includes it.
    """

    what: str
    recipe: Recipe
    out: str = ""
    rows: Callable[[Recipe, Path, Path], list[Row]] | None = None
    choices: Sequence[str] = ()
    corpus: str = ""

    def check(self, recipe: Recipe) -> None:
        """Raise ValueError unless the recipe's languages can be selected from this corpus."""
        codes = recipe.languages.split()
        rule = f"choose different ones of {' '.join(self.choices)}"
        if len(set(codes)) == len(codes) and set(codes) <= set(self.choices):
            if recipe.kind != "pairs" or "en" not in self.choices or {"en"} < set(codes):
                return
            rule = "English and at least one other"
        raise ValueError(f"languages {recipe.languages!r}: {rule}")


_FORMATS: Final[dict[str, Callable[..., list[Iterable[str]]]]] = {
    "talks": read_talks,
    "segments": read_segments,
    "plain": _read_plain,
}
_DATA: Final = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_READERS: Final[dict[str | None, Callable[[Recipe, Path, Path], list[Row]]]] = {
    **{name: partial(_archive_rows, name) for name in _DATA["parts"]},
    "multi30k": _multi30k_rows,
    "opus100": _opus100_rows,
}
FOLDERS: Final = {
    name: Folder(
        **{
            **entry,
            "recipe": Recipe(corpus=entry.get("rows", ""), **entry["recipe"]),
            "rows": _READERS[entry["rows"]] if "rows" in entry else None,
            "choices": OPUS100 if name == "opus100" else entry.get("choices", ()),
        }
    )
    for name, entry in _DATA["folders"].items()
}
"""Name of a recipe of `deepnet preprocess` -> its data folder."""
SAMPLE: Final = RESOURCES / "data" / "sample" / "sample.tar.bz2"


def _read_files(entries: Iterable[dict[str, Any]]) -> Iterator[File]:
    for entry in entries:
        facts = {key: entry[key] for key in entry.keys() - {"name", "from", "languages"}}
        pairs = {code: "-".join(sorted((code, "en"))) for code in OPUS100}
        codes = entry.get("languages", [""])
        for code, place in pairs.items() if codes == "opus100" else zip(codes, codes, strict=True):
            name = entry["name"].format(place)
            urls = tuple(f"{address}/{name}" for address in entry["from"])
            yield File(name, urls, (code,) if code else (), **facts)


CORPORA: Final = {
    name: Corpus(
        entry["what"], (*_read_files(entry["files"]),), (*_read_files(entry.get("parts", ())),)
    )
    for name, entry in _DATA["corpora"].items()
}
"""Name of a corpus of `deepnet download` -> its files."""
