"""Test sets of the paper's table 3 as text to translate, for `deepnet m2m`.

configs/evaluation/NAME.yaml defines a set. For each direction, `make` writes files SET.A-B.A and
SET.A-B.B, named with the model's language codes, to a folder. The set can then be scored with
`deepnet evaluate RUN --text FOLDER --split SET`. There is one reader for each published layout.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import permutations
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from fairseq_deepnet.files import RESOURCES, whole_folder
from fairseq_deepnet.records import record_of, write_json
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.corpora.moses import detokenise
from fairseq_deepnet.tools.corpora.published import opened
from fairseq_deepnet.tools.corpora.text import decode
from fairseq_deepnet.tools.languages import find, languages

FOLDER: Final = RESOURCES / "configs" / "evaluation"
RECORD: Final = "evaluation.json"
ARCHIVES: Final = (".tar.gz", ".tgz", ".tar")
NO_TALK: Final = ("__NULL__", "_ _ NULL _ _", "")


class ParallelText(NamedTuple):
    """Both sides of a test set in one direction, with this project's language codes."""

    direction: Direction
    source: list[str]
    target: list[str]


def read_raw(raw: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Read the lines of the named files, which may be at any depth in a folder or tar archive.

    Raises:
        FileNotFoundError: if files are missing.
        ValueError: if an archive or a text is damaged.
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
    return {
        name: [decode(line, raw / name, n) for n, line in enumerate(BytesIO(content), start=1)]
        for name, content in contents.items()
    }


def read_files(
    raw: Path, content: Mapping[str, Any], codes: Sequence[str]
) -> Iterator[ParallelText]:
    """Read files that contain one side each; `files` in the definition is their name pattern."""
    called = {code: getattr(languages()[code], content["codes"]) for code in codes}
    names, file = {}, content["files"].format
    for pair in permutations(codes, 2):
        direction = Direction(*pair)
        names[direction] = [file(pair=direction.pair, side=called[code]) for code in pair]
    lines = read_raw(raw, sorted({name for sides in names.values() for name in sides}))
    for direction, (source, target) in names.items():
        yield ParallelText(direction, lines[source], lines[target])


def read_ted(raw: Path, content: Mapping[str, Any], codes: Sequence[str]) -> Iterator[ParallelText]:
    """Read all_talks_SPLIT.tsv, which contains Moses tokens, one language per column.

    The test set of a language pair consists of the rows that have text in both languages.
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
    """Read WMT test sets with sacreBLEU, which downloads them to $SACREBLEU or ~/.sacrebleu."""
    import sacrebleu

    for code in sorted(set(codes) - {"en"}) if "en" in codes else ():
        name = content["test_sets"][code]
        test_set = sacrebleu.DATASETS[name]
        for direction in (Direction("en", code), Direction(code, "en")):
            try:
                sources = list(test_set.source(str(direction)))  # type: ignore[no-untyped-call]
                every = test_set.references(str(direction))  # type: ignore[no-untyped-call]
            except (OSError, SystemExit) as error:
                command = f"`sacrebleu -t {name} -l {direction} --echo src`"
                raise ValueError(
                    f"sacreBLEU cannot read {name} ({error}): on another machine, run {command} and"
                    f" copy {sacrebleu.SACREBLEU_DIR}"
                ) from error
            yield ParallelText(direction, sources, [references[0].strip() for references in every])


READERS: Final[dict[str, Callable[..., Iterator[ParallelText]]]] = {
    "files": read_files,
    "ted": read_ted,
    "wmt": read_wmt,
}


def sets() -> list[str]:
    """Return the names of all test sets."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def definition(name: str) -> dict[str, Any]:
    """Return the definition of a test set."""
    return dict(yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def make(name: str, raw: Path | None, out: Path, model: Sequence[str]) -> dict[str, int]:
    """Write a set to the folder `out` atomically.

    Each distinct text is written to one file; other files with the same text are links to it.

    Args:
        raw: folder or archive of the published set; None for WMT, which sacreBLEU provides.
        model: the model's own codes for its languages.

    Returns:
        The number of lines of each direction; directions are named with the model's codes.

    Raises ValueError if the model supports no pair of the set, the sides of a direction differ in
    length, or `out` contains something else.
    """
    content = definition(name)
    own_codes = {entry.code: own for own in model if (entry := find(own))}
    called = {code: own_codes[code] for code in content["languages"] if code in own_codes}
    request = {"set": name, "languages": called}
    if out.exists() and record_of(out / RECORD, request, "remove its folder") is None:
        raise ValueError(f"{out} exists and contains something else: remove it, or choose another")
    lines, written = dict[str, int](), dict[bytes, str]()
    with whole_folder(out) as part:
        for text in READERS[content["reader"]](raw, content, list(called)):
            direction = Direction(*(called[code] for code in text.direction))
            if len(text.source) != len(text.target):
                counts = f"{len(text.source)} and {len(text.target)} lines"
                raise ValueError(f"{name} {direction} has {counts}")
            for side, sentences in zip(direction, text[1:], strict=True):
                file = part / f"{name}.{direction}.{side}"
                encoded = "".join(f"{line}\n" for line in sentences).encode("utf-8")
                same = written.setdefault(hashlib.sha256(encoded).digest(), file.name)
                if same == file.name:
                    file.write_bytes(encoded)
                else:
                    file.symlink_to(same)
            lines[str(direction)] = len(text.source)
        if not lines:
            raise ValueError(f"the model supports no two languages of {name}")
        write_json(part / RECORD, {"request": request})
    return lines
