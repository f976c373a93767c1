"""What is published, a module a corpus: its files, and the kinds of data folder made of them.

Every module of this package has CORPORA, by the name that `deepnet download` takes; their kinds are
those of `deepnet preprocess`. A module is found by being here.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from fairseq_deepnet.tools.corpora.builder import Row

Fetch = Callable[..., Path]
"""Returns RAW, or the folder of the files (of the languages given) after downloading them."""


@dataclass(frozen=True)
class File:
    """A file to download, from the first of its URLs that has it.

    A checksum stands here only where somebody else published it, and `published` says who; where
    nobody did, the first download is trusted and remembered. A file without `languages` comes with
    every choice of them.
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    published: str = ""
    languages: tuple[str, ...] = ()


def file_at(places: Iterable[str], name: str, **known: Any) -> File:
    """Return a file that lies under its name in several places."""
    return File(name, tuple(f"{place}/{name}" for place in places), **known)


class DataKind(NamedTuple):
    """A kind of data folder. Values are those of variables, by name in small letters.

    Attributes:
        help: one line.
        folder: pair, pairs, language or moses: how text becomes data.
        rows: where the text is; called when no other run is making OUT.
        out: default of OUT in data/, with the names of values.
        defaults: other than those of the folder.
        options: variables besides the folder's own.
        required: variables that must be set.
        check: refuses values before anything is fetched, and may complete them.
        extracts: the text is in OUT.raw meanwhile, which goes at the end.
        has_valid: there is a validation set, so that no training pairs need be held out.
    """

    help: str
    folder: str
    rows: Callable[[SimpleNamespace, Fetch], Sequence[Row]]
    out: str = ""
    defaults: Mapping[str, Any] = {}
    options: str = "RAW DOWNLOADS JOBS"
    required: str = ""
    check: Callable[[SimpleNamespace], None] = lambda value: None
    extracts: bool = False
    has_valid: bool = False


@dataclass(frozen=True)
class Corpus:
    """Files, their smaller `parts` if one can ask for some languages, and what becomes of them."""

    what: str
    files: tuple[File, ...]
    parts: tuple[File, ...] = ()
    kinds: Mapping[str, DataKind] = field(default_factory=dict)

    def select(self, languages: Iterable[str] = ()) -> tuple[File, ...]:
        """Return the files to fetch: all, or those parts that hold nothing but `languages`.

        Raises ValueError if the corpus has no parts, or no such language.
        """
        wanted = set(languages)
        if not wanted:
            return self.files
        known = sorted({language for part in self.parts for language in part.languages})
        if not known:
            raise ValueError("this corpus comes whole: leave --languages out")
        if unknown := sorted(wanted.difference(known)):
            raise ValueError(f"no language {', '.join(unknown)}; choose from {' '.join(known)}")
        return tuple(part for part in self.parts if wanted.issuperset(part.languages))


@functools.cache
def catalogue() -> dict[str, Corpus]:
    """Return every corpus by its name."""
    found: dict[str, Corpus] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= importlib.import_module(f"{__name__}.{module.name}").CORPORA
    return found
