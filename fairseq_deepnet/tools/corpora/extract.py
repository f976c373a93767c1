"""Raw parallel text out of the published archives of one pair.

A corpus is a list of parts: training text line by line, or a dev or test set in the SGM or XML of
NIST's scoring tools, as IWSLT and WMT publish them. Only the files that are needed are read out of
the archives, which hold many languages.

    <srcset setid="..."> <doc docid="..."> <seg id="1"> text </seg> ... </doc> ... </srcset>

Such files are neither good SGML nor good XML: ampersands and angle brackets in the text may or may
not be escaped, tags come in either case. Only the tags of the format are tags here; all else is
text.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Final, NamedTuple

from fairseq_deepnet.files import say, whole_folder, write_json
from fairseq_deepnet.provenance import stamp
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.corpora import archive
from fairseq_deepnet.tools.corpora.clean import read_pairs
from fairseq_deepnet.tools.corpora.text import open_bytes

_TAGS = "mteval|srcset|refset|tstset|doc|seg|hl|p|url|talkid|keywords|description|speaker"
_NO_TAG = re.compile(rf"<(?!/?(?:{_TAGS})[\s>/]|\?xml|!DOCTYPE|!--)", re.IGNORECASE)
_NO_ENTITY = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});)")


class Segment(NamedTuple):
    """One sentence, or whatever stands between <seg> and </seg>."""

    document: str
    number: str
    text: str

    @property
    def name(self) -> str:
        """Return how to find it: "document 69, segment 1"."""
        return f"document {self.document}, segment {self.number}"


class _Reader(HTMLParser):
    """Collects the segments; what is between them (titles, addresses) is passed over."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.path = path
        self.segments: list[Segment] = []
        self.document = ""
        self.number: str | None = None
        self.text: list[str] = []

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{self.path}, line {self.getpos()[0]}: {what}; fetch the file again")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if self.number is not None:
            raise self.fail(f"<{tag}> inside segment {self.number}, which has no </seg>")
        if tag == "doc":
            self.document = values.get("docid") or ""
        elif tag == "seg":
            self.number = values.get("id") or ""
            self.text = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "seg":
            if self.number is None:
                raise self.fail("</seg> without <seg>")
            # a line end inside a segment is no more than a space
            text = re.sub(r"[\r\n]+", " ", "".join(self.text)).strip()
            self.segments.append(Segment(self.document, self.number, text))
            self.number = None
        elif self.number is not None:
            raise self.fail(f"</{tag}> inside segment {self.number}, which has no </seg>")

    def handle_data(self, data: str) -> None:
        if self.number is not None:
            self.text.append(data)


def read_segments(path: Path) -> list[Segment]:
    """Return the segments of a file, plain or .gz, in its order; entities become characters.

    Raises ValueError for what is not UTF-8, holds no segment, or ends inside one.
    """
    try:
        with open_bytes(path) as stream:
            data = stream.read()
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a complete gzip file: {error}; fetch it again") from error
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid UTF-8 (byte {error.start + 1})") from error
    reader = _Reader(path)
    reader.feed(_NO_TAG.sub("&lt;", _NO_ENTITY.sub("&amp;", content)))
    reader.close()
    if reader.number is not None:
        raise reader.fail(f"the file ends inside segment {reader.number}")
    if not reader.segments:
        raise ValueError(f"{path}: there is no <seg> in it; give a dev or test set in SGM or XML")
    return reader.segments


def read_pair(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Return the text of both sides; ValueError unless documents and segments are the same."""
    sides = read_segments(source), read_segments(target)
    for left, right in zip(*sides, strict=False):
        if left[:2] != right[:2]:
            raise ValueError(
                f"{source} has {left.name} where {target} has {right.name}; "
                "the two must be sides of the same set"
            )
    counts = [len(side) for side in sides]
    if counts[0] != counts[1]:
        raise ValueError(f"{source} has {counts[0]} segments, {target} has {counts[1]}")
    for path, side in zip((source, target), sides, strict=True):
        if empty := next((segment for segment in side if not segment.text), None):
            raise ValueError(f"{path}: {empty.name} is empty; fetch the file again")
    left_text, right_text = ([segment.text for segment in side] for side in sides)
    return left_text, right_text


MARK: Final = "extracted.json"
"""What a folder of extracted text was made of."""
Sides = tuple[Iterable[str], Iterable[str]]


def plain_text(*sides: Path) -> Sides:
    """Read both sides of training text as they are; a line ends at "\\n" and nowhere else."""
    first, second = (_plain_lines(path) for path in sides)
    return first, second


def _plain_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        for line in stream:
            yield line.removesuffix("\n")


@dataclass(frozen=True)
class Part:
    """A piece of a corpus.

    Args:
        name: what people call it.
        split: train, valid, test, ...; the parts of a split follow one another.
        archive: the archive that holds it.
        members: its two files within the archive, in the order of the corpus's languages.
        read: what reads the two sides.
        lines: how many pairs it has, as published; None where nobody counted.
    """

    name: str
    split: str
    archive: str
    members: tuple[str, str]
    read: Callable[[Path, Path], Sides]
    lines: int | None = None


@dataclass(frozen=True)
class Archives:
    """The archives of a corpus of two languages, and the parts that they hold."""

    languages: tuple[str, str]
    parts: tuple[Part, ...]

    def locate(self, origin: Path) -> dict[str, Path]:
        """Return the place of every archive, by its name: itself, or a folder of its files.

        `origin` is an archive, or a folder that holds archives or what was in them. Raises
        ValueError where an archive is nowhere.
        """
        places: dict[str, Path] = {}
        names = sorted({part.archive for part in self.parts})
        for name in names:
            files = [file for part in self.parts if part.archive == name for file in part.members]
            if (origin / name).is_file():
                places[name] = origin / name
            elif (
                len(names) == 1  # by any name; `take` says what it lacks
                or (origin.is_file() and origin.name == name)
                or all(archive.find_in_folder(origin, file) for file in files)
            ):
                places[name] = origin
        if missing := [name for name in names if name not in places]:
            raise ValueError(f"no {', '.join(missing)} in {origin}; give the published archives")
        return places

    def extract(self, origin: Path, out: Path, hold_out: int = 0) -> dict[str, int]:
        """Write OUT/SPLIT.LANGUAGE for every split; return the pairs of every part, by its name.

        With `hold_out`, every such pair of train that has text on both sides goes to valid
        instead, and those that have not are dropped. OUT appears only when complete; where it was
        made of the same archives, nothing is done.

        Raises ValueError where the sides of a part differ, where a file is not there, and for an
        OUT that was not made so, which is never touched.
        """
        places = self.locate(origin)
        request = {name: stamp(place) for name, place in places.items()}
        request["hold_out"] = {"every": hold_out}
        record = out / MARK
        refuse_strange(out)
        if record.is_file():
            made = read_record(record, {"from": object, "lines": dict}, "remove its folder")
            if made["from"] == request:
                return dict(made["lines"])
        with whole_folder(out) as part:
            with tempfile.TemporaryDirectory(dir=part) as scratch:
                lines = self._write(places, Path(scratch), part)
            if hold_out:
                lines |= self._hold_out(part, hold_out)
            write_json(part / record.name, {"from": request, "lines": lines})
        return lines

    def _write(self, places: dict[str, Path], scratch: Path, out: Path) -> dict[str, int]:
        """Take the files out of the archives into `scratch`, and write the text into `out`."""
        wanted: dict[str, dict[str, Path]] = {name: {} for name in places}
        files = {}
        for part in self.parts:
            files[part.name] = [scratch / f"{part.name}.{code}" for code in self.languages]
            wanted[part.archive] |= zip(part.members, files[part.name], strict=True)
        with ThreadPoolExecutor(len(wanted)) as pool:  # unpacking leaves Python's lock to others
            list(pool.map(lambda name: archive.take(places[name], wanted[name]), wanted))
        lines = {}
        for part in self.parts:
            sides = part.read(*files[part.name])
            counts = [
                _append(out / f"{part.split}.{language}", side)
                for language, side in zip(self.languages, sides, strict=True)
            ]
            if counts[0] != counts[1]:
                found = " and ".join(
                    f"{n:,} in {code}" for n, code in zip(counts, self.languages, strict=True)
                )
                raise ValueError(f"{part.name} has {found}; fetch {part.archive} again")
            lines[part.name] = counts[0]
            for path in files[part.name]:
                path.unlink()
        return lines

    def _hold_out(self, out: Path, every: int) -> dict[str, int]:
        """Move every such pair of OUT/train to OUT/valid; pairs with an empty side go."""
        train = [out / f"train.{language}" for language in self.languages]
        full = [pair for pair in read_pairs(*train) if all(pair)]
        held = full[every - 1 :: every]
        del full[every - 1 :: every]
        for path in train:
            path.unlink()
        for split, chosen in (("train", full), ("valid", held)):
            for side, language in enumerate(self.languages):
                _append(out / f"{split}.{language}", (pair[side] for pair in chosen))
        return {"train": len(full), "valid": len(held)}

    def describe(self, lines: dict[str, int]) -> list[str]:
        """Return a line for people, and one for every part that is not as long as published."""
        said = [", ".join(f"{part.name} {lines[part.name]:,}" for part in self.parts) + " pairs"]
        said += [
            f"warning: {part.name} has {lines[part.name]:,} pairs, the published one {part.lines:,}"
            for part in self.parts
            if part.lines not in (None, lines[part.name])
        ]
        return said

    def raw_text(
        self, value: SimpleNamespace, fetch: Callable[[], Path], hold_out: int = 0
    ) -> Path:
        """Return OUT.raw, after taking the text out of the archives: unless OUT is there, and no
        RAW is given, whose text may be another than OUT was made of.
        """
        folder = Path(f"{value.out}.raw")
        if value.force or value.raw or not (value.out / "corpus.json").is_file():
            origin = fetch()
            say("reading the archives")
            say("\n".join(self.describe(self.extract(origin, folder, hold_out))))
        return folder


def refuse_strange(folder: Path) -> None:
    """Refuse a folder for extracted text that holds something else."""
    if folder.exists() and not (folder / MARK).is_file():
        raise ValueError(
            f"{folder} exists and holds something else; remove it or give another folder"
        )


def require_pair(value: SimpleNamespace, wanted: Sequence[str], must: str) -> None:
    """Refuse other languages than the corpus has."""
    if f"{value.src} {value.tgt}" not in wanted:
        raise ValueError(f"SRC and TGT are {value.src!r} and {value.tgt!r}; {must}")


def _append(path: Path, lines: Iterable[str]) -> int:
    """Append lines to a file and count them."""
    count = 0
    with path.open("a", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        for line in lines:
            stream.write(line + "\n")
            count += 1
    return count
