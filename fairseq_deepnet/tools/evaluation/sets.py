"""The test sets of the paper's table 3 as text that can be translated, for `deepnet m2m`.

A set is defined in configs/evaluation/NAME.yaml. This writes SET.A-B.A and SET.A-B.B for every
pair, as `deepnet evaluate RUN --text FOLDER --split SET` reads them, in the codes of the model.

A reader for each published layout yields pairs of text in this project's language codes. RAW is the
folder or tar archive as it was published; files are found by their names at any depth.
"""

from __future__ import annotations

import hashlib
import tarfile
import urllib.error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, Final

import yaml

from fairseq_deepnet.files import RESOURCES, say, shown, whole_folder, write_json, write_text
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.corpora.archive import opened
from fairseq_deepnet.tools.corpora.folder import Direction
from fairseq_deepnet.tools.corpora.moses import detokenise
from fairseq_deepnet.tools.languages import find, language, languages

FOLDER: Final = RESOURCES / "configs" / "evaluation"
ARCHIVES: Final = (".tar.gz", ".tgz", ".tar")
NO_TALK: Final = ("__NULL__", "_ _ NULL _ _", "")


@dataclass(frozen=True)
class ParallelText:
    """Both sides of a test set; `reversible` where it also serves the opposite direction."""

    direction: Direction
    source: list[str]
    target: list[str]
    reversible: bool = True

    def checked(self, name: str) -> ParallelText:
        """Return itself; ValueError where the sides differ in length or are empty."""
        if len(self.source) != len(self.target) or not self.source:
            raise ValueError(
                f"{name} {self.direction} has {len(self.source)} and {len(self.target)} lines:"
                " the files do not belong"
            )
        return self


def read_raw(raw: Path, names: Sequence[str]) -> dict[str, str]:
    """Read the files called `names` in a folder, an archive, or the archives of a folder.

    Raises FileNotFoundError for what is not there, ValueError for an archive that is cut short or
    text that is not UTF-8.
    """
    if not raw.exists():
        raise FileNotFoundError(f"there is no folder or archive {raw}")
    wanted, found = set(names), dict[str, bytes]()
    for path in sorted(raw.rglob("*")) if raw.is_dir() else ():
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
    """Return the lines, which end at "\\n" and nowhere else."""
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def read_files(
    raw: Path, definition: Mapping[str, Any], codes: Sequence[str]
) -> Iterator[ParallelText]:
    """Read files that hold one side each, called as `files` of the definition says."""
    called = {code: language(code).in_codes_of(definition["codes"]) for code in codes}
    names = {
        pair: [definition["files"].format(pair="-".join(pair), side=called[code]) for code in pair]
        for pair in combinations(sorted(codes), 2)
    }
    files = read_raw(raw, sorted({name for sides in names.values() for name in sides}))
    lines = {name: lines_of(text) for name, text in files.items()}
    for pair, sides in names.items():
        source, target = (lines[name] for name in sides)
        yield ParallelText(Direction(*pair), source, target).checked(definition["title"])


def read_ted(
    raw: Path, definition: Mapping[str, Any], codes: Sequence[str]
) -> Iterator[ParallelText]:
    """Read all_talks_SPLIT.tsv: a column a language, one sentence a row, tokenised as by Moses."""
    name = f"all_talks_{definition['split']}.tsv"
    header, *lines = (line.split("\t") for line in lines_of(read_raw(raw, [name])[name]) or [""])
    rows = [dict(zip(header, cells, strict=False)) for cells in lines]
    columns = {code: language(code).ted or code for code in codes}
    absent = sorted(set(columns.values()) - set(header))
    if absent:
        raise ValueError(f"{name} has no column {', '.join(absent)}")
    sides = {
        code: _detokenised([row.get(column) for row in rows], code)
        for code, column in columns.items()
    }
    for one, other in combinations(sorted(codes), 2):
        both = [pair for pair in zip(sides[one], sides[other], strict=True) if all(pair)]
        if not both:
            raise ValueError(f"{name} has no sentence in both {one} and {other}")
        source, target = map(list, zip(*both, strict=True))
        yield ParallelText(Direction(one, other), source, target)


def _detokenised(cells: Sequence[str | None], code: str) -> list[str]:
    """Return plain text; "" where a talk has no translation."""
    plain = [" ".join((cell or "").split()) for cell in cells]
    return ["" if cell in NO_TALK else detokenise(cell, code) for cell in plain]


def read_wmt(
    raw: Path | None, definition: Mapping[str, Any], codes: Sequence[str]
) -> Iterator[ParallelText]:
    """Read sacreBLEU's own test sets, from its folder (SACREBLEU, or ~/.sacrebleu) or fetched."""
    for code in codes:
        if code == "en":
            continue
        name = definition["test_sets"][code]
        forth, back = (
            _sacrebleu_set(name, Direction(*pair)) for pair in (("en", code), (code, "en"))
        )
        if (forth.source, forth.target) == (back.target, back.source):
            yield ParallelText(forth.direction, forth.source, forth.target)
        else:
            yield from (forth, back)


def _sacrebleu_set(name: str, direction: Direction) -> ParallelText:
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
    return ParallelText(direction, sources, references, reversible=False).checked(name)


READERS: Final[dict[str, Callable[..., Iterator[ParallelText]]]] = {
    "files": read_files,
    "ted": read_ted,
    "wmt": read_wmt,
}


def sets() -> list[str]:
    """Return the names of the sets that are defined."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def definition(name: str) -> dict[str, Any]:
    """Return a set's definition, its languages listed; ValueError for an unknown name."""
    if name not in sets():
        raise ValueError(f"there is no evaluation set {name!r}; choose from {', '.join(sets())}")
    content: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    chosen = content["languages"]
    if isinstance(chosen, dict):
        chosen = [
            entry.code
            for entry in languages().values()
            if all(getattr(entry, corpus) is not None for corpus in chosen["with"])
        ]
    return content | {"languages": sorted(chosen)}


def directions_of(content: Mapping[str, Any], codes: Sequence[str]) -> list[Direction]:
    """Return all directions between `codes` that a set is scored in."""
    every = [Direction(*pair) for pair in permutations(codes, 2)]
    return every if content["pairs"] == "every" else [pair for pair in every if "en" in pair]


def write_set(
    name: str, texts: Iterable[ParallelText], called: Mapping[str, str], out: Path
) -> dict[str, int]:
    """Write the texts, each distinct one once with links to it for the rest.

    Returns direction -> lines, in the codes of the model.
    """
    lines, written = dict[str, int](), dict[bytes, str]()
    for text in texts:
        source, target = (called[code] for code in text.direction)
        pair = f"{source}-{target}"
        for side, sentences in ((source, text.source), (target, text.target)):
            file = f"{name}.{pair}.{side}"
            content = "".join(f"{line}\n" for line in sentences).encode("utf-8")
            same = written.setdefault(hashlib.sha256(content).digest(), file)
            if same == file:
                (out / file).write_bytes(content)
            else:
                (out / file).symlink_to(same)
        lines[pair] = len(text.source)
        if text.reversible:
            lines[f"{target}-{source}"] = len(text.source)
    return lines


def make(
    name: str,
    raw: Path | None,
    out: Path,
    model: Sequence[str],
) -> dict[str, Any]:
    """Make the folder `out`, complete or not at all; a second call does nothing.

    Args:
        raw: folder or archive of the published set; sacreBLEU has that of WMT itself.
        model: languages that the model knows, in its own codes.

    Returns what evaluation.json records. Raises ValueError where the model knows no pair of the
    set, or `out` holds another set.
    """
    content = definition(name)
    codes = content["languages"]
    known = {entry.code: own for own in model if (entry := find(own))}
    called = {code: known[code] for code in codes if code in known}
    if not directions_of(content, list(called)):
        raise ValueError(f"the model knows no two languages that {name} is scored between")
    request = {"set": name, "languages": called, "raw": str(raw.resolve()) if raw else None}
    record = out / "evaluation.json"
    if record.is_file():
        before = read_record(record, {"request": dict, "lines": dict}, "remove its folder")
        if before["request"] == request:
            say(f"{shown(out)} is there already")
            return before
    if out.exists():
        raise ValueError(f"{out} exists and holds something else: remove it, or choose another OUT")
    if raw is None and content["reader"] != "wmt":
        raise ValueError(
            f"{name} needs RAW, the published files: deepnet download {content['download']}"
        )
    texts = READERS[content["reader"]](raw, content, list(called))
    with whole_folder(out) as part:
        lines = write_set(name, texts, called, part)
        facts = {
            "request": request,
            "split": name,
            "tokenizer": content["tokenizer"],
            "paper": content["paper"],
            "directions": len(lines),
            "of": content["directions"],
            "lines": lines,
        }
        write_text(part / "directions.txt", "".join(f"{pair}\n" for pair in sorted(lines)))
        write_json(part / "evaluation.json", facts)
    return facts
