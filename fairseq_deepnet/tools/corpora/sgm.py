"""Dev and test sets in the SGM/XML of NIST's scoring tools, as IWSLT and WMT publish them.

    <srcset setid="..."> <doc docid="..."> <seg id="1"> text </seg> ... </doc> ... </srcset>

Such files are neither good SGML nor good XML: ampersands and angle brackets in the text may or may
not be escaped, tags come in either case. Only the tags of the format are tags here; all else is
text.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

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
        """How to find it: "document 69, segment 1"."""
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
    """The segments of a file, plain or .gz, in its order; entities become characters.

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
    """The text of both sides; ValueError unless they have the same documents and segments."""
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
        _require_text(path, side)
    left_text, right_text = ([segment.text for segment in side] for side in sides)
    return left_text, right_text


def _require_text(path: Path, segments: Sequence[Segment]) -> None:
    for segment in segments:
        if not segment.text:
            raise ValueError(f"{path}: {segment.name} is empty; fetch the file again")
