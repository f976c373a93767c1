"""Test sets of the paper's table 3 as text to translate, for `deepnet m2m`.

A set is defined in configs/evaluation/NAME.yaml. `make` writes SET.A-B.A and SET.A-B.B for every
pair, in the language codes of the model, for `deepnet evaluate RUN --text FOLDER --split SET`. For
each published layout, a reader yields pairs of text in this project's language codes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from fairseq_deepnet.files import RESOURCES, whole_folder, write_json
from fairseq_deepnet.records import record_of
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.corpora.moses import detokenise
from fairseq_deepnet.tools.corpora.published import opened
from fairseq_deepnet.tools.languages import find, languages

FOLDER: Final = RESOURCES / "configs" / "evaluation"
RECORD: Final = "evaluation.json"
ARCHIVES: Final = (".tar.gz", ".tgz", ".tar")
NO_TALK: Final = ("__NULL__", "_ _ NULL _ _", "")


class ParallelText(NamedTuple):
    """Both sides of a test set."""

    direction: Direction
    source: list[str]
    target: list[str]


def read_raw(raw: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Read the lines of the files called `names`, at any depth of a folder or tar archive.

    Raises FileNotFoundError for missing files, ValueError for a damaged archive or text.
    """
    contents = dict[str, bytes]()
    for path in sorted(raw.rglob("*")) if raw.is_dir() else [raw]:
        if path.name.endswith(ARCHIVES):
            with opened(path) as files:
                for member, stream in files:
                    if (name := Path(member.name).name) in names:
                        contents.setdefault(name, stream.read())
        elif path.name in names and path.is_file():
            contents.setdefault(path.name, path.read_bytes())
    if missing := sorted(set(names) - set(contents)):
        raise FileNotFoundError(f"{raw} lacks {len(missing)} files: {', '.join(missing[:3])} ...")
    # str.splitlines would also split at characters such as U+2028
    texts = {name: content.decode("utf-8-sig") for name, content in contents.items()}
    return {
        name: [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
        for name, text in texts.items()
    }


def read_files(
    raw: Path, content: Mapping[str, Any], codes: Sequence[str]
) -> Iterator[ParallelText]:
    """Read files with one side each, whose names are given by `files` of the definition."""
    called = {code: getattr(languages()[code], content["codes"]) for code in codes}
    names, file = {}, content["files"].format
    for pair in permutations(codes, 2):
        direction = Direction(*pair)
        names[direction] = [file(pair=direction.pair, side=called[code]) for code in pair]
    lines = read_raw(raw, sorted({name for sides in names.values() for name in sides}))
    for direction, (source, target) in names.items():
        yield ParallelText(direction, lines[source], lines[target])


def read_ted(raw: Path, content: Mapping[str, Any], codes: Sequence[str]) -> Iterator[ParallelText]:
    """Read all_talks_SPLIT.tsv: a column per language, one sentence per row, tokenised by Moses.

    A pair contains the sentences that exist in both languages.
    """
    name = f"all_talks_{content['split']}.tsv"
    header, *rows = (line.split("\t") for line in read_raw(raw, [name])[name])
    sides = {}
    for code in codes:
        column = header.index(languages()[code].ted or code)
        cells = (" ".join(row[column].split()) if column < len(row) else "" for row in rows)
        sides[code] = ["" if cell in NO_TALK else detokenise(cell, code) for cell in cells]
    for pair in permutations(codes, 2):
        both = [cells for cells in zip(*(sides[code] for code in pair), strict=True) if all(cells)]
        source, target = map(list, zip(*both, strict=True))
        yield ParallelText(Direction(*pair), source, target)


def read_wmt(raw: None, content: Mapping[str, Any], codes: Sequence[str]) -> Iterator[ParallelText]:
    """Read a test set of sacreBLEU from its folder (SACREBLEU, or ~/.sacrebleu), or download it."""
    import sacrebleu

    for code in sorted(set(codes) - {"en"}) if "en" in codes else ():
        test_set = sacrebleu.DATASETS[content["test_sets"][code]]
        for direction in (Direction("en", code), Direction(code, "en")):
            sources = list(test_set.source(str(direction)))  # type: ignore[no-untyped-call]
            every = test_set.references(str(direction))  # type: ignore[no-untyped-call]
            yield ParallelText(direction, sources, [references[0].strip() for references in every])


READERS: Final[dict[str, Callable[..., Iterator[ParallelText]]]] = {
    "files": read_files,
    "ted": read_ted,
    "wmt": read_wmt,
}


def sets() -> list[str]:
    """Return the names of all defined sets."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def definition(name: str) -> dict[str, Any]:
    """Return the definition of one of `sets`."""
    return dict(yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def write_set(
    name: str, texts: Iterable[ParallelText], called: Mapping[str, str], out: Path
) -> dict[str, int]:
    """Write the texts; each distinct text is written once, and others are links to it.

    Returns direction -> lines, in the codes of the model. Raises ValueError for sides of different
    lengths.
    """
    lines, written = dict[str, int](), dict[bytes, str]()
    for text in texts:
        direction = Direction(*(called[code] for code in text.direction))
        if len(text.source) != len(text.target):
            raise ValueError(f"{name} {direction}: {len(text.source)} and {len(text.target)} lines")
        for side, sentences in zip(direction, text[1:], strict=True):
            file = out / f"{name}.{direction}.{side}"
            content = "".join(f"{line}\n" for line in sentences).encode("utf-8")
            same = written.setdefault(hashlib.sha256(content).digest(), file.name)
            if same == file.name:
                file.write_bytes(content)
            else:
                file.symlink_to(same)
        lines[str(direction)] = len(text.source)
    return lines


def make(name: str, raw: Path | None, out: Path, model: Sequence[str]) -> dict[str, int]:
    """Write the folder `out` atomically, unless it exists.

    Args:
        raw: folder or archive of the published set; None for WMT, which sacreBLEU provides.
        model: languages of the model, in its own codes.

    Returns direction -> lines. Raises ValueError if the model covers no pair of the set, or if
    `out` contains another set.
    """
    content = definition(name)
    own_codes = {entry.code: own for own in model if (entry := find(own))}
    called = {code: own_codes[code] for code in content["languages"] if code in own_codes}
    request = {"set": name, "languages": called, "raw": str(raw.resolve()) if raw else None}
    facts = record_of(out / RECORD, request, "remove its folder")
    if facts is not None:
        return dict(facts["lines"])
    if out.exists():
        raise ValueError(f"{out} exists and contains something else: remove it, or choose another")
    with whole_folder(out) as part:
        texts = READERS[content["reader"]](raw, content, list(called))
        lines = write_set(name, texts, called, part)
        if not lines:
            raise ValueError(f"the model knows no two languages that {name} is scored between")
        write_json(part / RECORD, {"request": request, "lines": lines})
    return lines
