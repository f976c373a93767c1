"""Published test sets in their own layouts: Flores-101, TED talks, OPUS-100's zero-shot pairs, WMT.

Each reader yields pairs of text in this project's language codes. RAW is the folder or tar archive
as it was published; files are found by their names at any depth.
"""

from __future__ import annotations

import csv
import io
import itertools
import tarfile
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.tools.corpora.archive import opened
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.languages import language

ARCHIVES: Final = (".tar.gz", ".tgz", ".tar")
NO_TALK: Final = ("__NULL__", "_ _ NULL _ _", "")


@dataclass(frozen=True)
class Text:
    """Both sides of a test set; `reversible` where it also serves the opposite direction."""

    direction: Direction
    source: list[str]
    target: list[str]
    reversible: bool = True


def read_raw(raw: Path, names: Sequence[str]) -> dict[str, str]:
    """The files called `names` in a folder, an archive, or the archives of a folder.

    Raises FileNotFoundError for what is not there, ValueError for an archive that is cut short or
    text that is not UTF-8.
    """
    if not raw.exists():
        raise FileNotFoundError(f"there is no folder or archive {raw}")
    wanted, found = set(names), dict[str, bytes]()
    if raw.is_dir():
        for path in sorted(raw.rglob("*")):
            if path.name in wanted and path.is_file():
                found.setdefault(path.name, path.read_bytes())
    for path in [raw] if raw.is_file() else sorted(raw.iterdir()):
        if path.name.endswith(ARCHIVES) and wanted - set(found):
            with opened(path) as files:
                for member, stream in files:
                    if (name := Path(member.name).name) in wanted:
                        found.setdefault(name, stream.read())
    missing = sorted(wanted - set(found))
    if missing:
        named = ", ".join(missing[:3])
        raise FileNotFoundError(
            f"{raw} lacks {len(missing)} of {len(wanted)} files, among them {named}"
        )
    texts = {}
    for name, content in found.items():
        try:
            texts[name] = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} of {raw} is not UTF-8: {error}") from error
    return texts


def lines_of(text: str) -> list[str]:
    """Lines, which end at "\\n" and nowhere else."""
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def _check(one: Sequence[str], other: Sequence[str], what: str) -> None:
    if len(one) != len(other) or not one:
        raise ValueError(f"{what} has {len(one)} and {len(other)} lines: the files do not belong")


def read_flores101(
    raw: Path, definition: Mapping[str, Any], codes: Sequence[str]
) -> Iterator[Text]:
    """flores101_dataset/{dev,devtest}/LANG.{dev,devtest}; all languages have the same sentences."""
    split = definition["split"]
    names = {code: f"{language(code).in_codes_of('flores101')}.{split}" for code in codes}
    files = read_raw(raw, list(names.values()))
    sides = {code: lines_of(files[name]) for code, name in names.items()}
    for one, other in itertools.combinations(sorted(codes), 2):
        _check(sides[one], sides[other], f"Flores-101 {one}-{other}")
        yield Text(Direction(one, other), sides[one], sides[other])


def read_opus100(raw: Path, definition: Mapping[str, Any], codes: Sequence[str]) -> Iterator[Text]:
    """zero-shot/A-B/opus.A-B-test.{A,B}."""
    names = {
        (one, other): [f"opus.{one}-{other}-{definition['split']}.{side}" for side in (one, other)]
        for one, other in itertools.combinations(sorted(codes), 2)
    }
    files = read_raw(raw, [name for pair in names.values() for name in pair])
    for (one, other), sides in names.items():
        source, target = (lines_of(files[name]) for name in sides)
        _check(source, target, f"OPUS-100 {one}-{other}")
        yield Text(Direction(one, other), source, target)


def read_ted(raw: Path, definition: Mapping[str, Any], codes: Sequence[str]) -> Iterator[Text]:
    """all_talks_{dev,test}.tsv: a column a language, one sentence a row, tokenised as by Moses."""
    name = f"all_talks_{definition['split']}.tsv"
    text = read_raw(raw, [name])[name]
    rows = list(
        csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    )
    columns = {code: language(code).ted or code for code in codes}
    absent = sorted(set(columns.values()) - set(rows[0] if rows else ()))
    if absent:
        raise ValueError(f"{name} has no column {', '.join(absent)}")
    sides = {
        code: _detokenised([row[column] for row in rows], code) for code, column in columns.items()
    }
    for one, other in itertools.combinations(sorted(codes), 2):
        both = [pair for pair in zip(sides[one], sides[other], strict=True) if all(pair)]
        if not both:
            raise ValueError(f"{name} has no sentence in both {one} and {other}")
        yield Text(Direction(one, other), [pair[0] for pair in both], [pair[1] for pair in both])


def _detokenised(cells: Sequence[str | None], code: str) -> list[str]:
    """Plain text; "" where a talk has no translation."""
    try:
        from sacremoses import MosesDetokenizer
    except ImportError as error:
        raise ValueError(
            "the TED talks are published tokenised; detokenising them needs sacremoses: "
            "pip install 'fairseq_deepnet[moses]'"
        ) from error
    detokenizer = MosesDetokenizer(lang=code)
    plain = [" ".join((cell or "").split()) for cell in cells]
    return ["" if cell in NO_TALK else detokenizer.detokenize(cell.split()) for cell in plain]


def read_wmt(
    raw: Path | None, definition: Mapping[str, Any], codes: Sequence[str]
) -> Iterator[Text]:
    """sacreBLEU's own test sets, from its folder (SACREBLEU, or ~/.sacrebleu) or fetched by it."""
    for code in codes:
        if code == "en":
            continue
        name = definition["test_sets"][code]
        out_of, into = Direction("en", code), Direction(code, "en")
        forth, back = _sacrebleu_set(name, out_of), _sacrebleu_set(name, into)
        reversible = forth == (back[1], back[0])
        yield Text(out_of, *forth, reversible=reversible)
        if not reversible:
            yield Text(into, *back, reversible=False)


def _sacrebleu_set(name: str, direction: Direction) -> tuple[list[str], list[str]]:
    import sacrebleu

    test_set, pair = sacrebleu.DATASETS[name], str(direction)
    if pair not in test_set.langpairs:
        raise ValueError(f"sacreBLEU's {name} has no {pair}")
    try:
        sources = list(test_set.source(pair))  # type: ignore[no-untyped-call]
        every = test_set.references(pair)  # type: ignore[no-untyped-call]
        references = [references[0].strip() for references in every]
    except (urllib.error.URLError, OSError, EOFError, SystemExit, tarfile.TarError) as error:
        raise ValueError(
            f"sacreBLEU cannot read or fetch {name} {pair} ({getattr(error, 'reason', error)}):"
            f" run 'sacrebleu -t {name} -l {pair} --echo src' where there is a network, and copy "
            "its folder ~/.sacrebleu here, or name the copy with SACREBLEU=FOLDER"
        ) from error
    _check(sources, references, f"{name} {pair}")
    return sources, references


READERS: Final[dict[str, Callable[[Any, Mapping[str, Any], Sequence[str]], Iterator[Text]]]] = {
    "flores101": read_flores101,
    "opus100": read_opus100,
    "ted": read_ted,
    "wmt": read_wmt,
}
