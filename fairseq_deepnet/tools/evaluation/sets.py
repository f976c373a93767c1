"""`deepnet evaluation-set`: the test sets of the paper's table 3 as text that can be translated.

A set is defined in configs/evaluation/NAME.yaml. This writes SET.A-B.A and SET.A-B.B for every
pair, as `deepnet evaluate RUN --text FOLDER --split SET` reads them, in the codes of the model.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fairseq_deepnet.files import ROOT, shown, whole_folder, write_json, write_text
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools.checkpoints.choice import choose_model, find_data
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.evaluation.set_readers import READERS, Text
from fairseq_deepnet.tools.languages import CODES, find, language, languages

FOLDER = ROOT / "configs" / "evaluation"


def sets() -> list[str]:
    """Names of the sets that are defined."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def definition(name: str) -> dict[str, Any]:
    """A set's definition, its languages listed; ValueError for an unknown name."""
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


def directions(content: Mapping[str, Any], codes: Sequence[str]) -> list[Direction]:
    """All directions between `codes` that a set is scored in."""
    every = [Direction(one, other) for one in codes for other in codes if one != other]
    return every if content["pairs"] == "every" else [pair for pair in every if "en" in pair]


def names_in(codes: Sequence[str], model: Sequence[str] | None, naming: str) -> dict[str, str]:
    """Code -> what the model calls the language; languages that it does not know are left out."""
    if model is None:
        return {code: language(code).in_codes_of(naming) for code in codes}
    known = {entry.code: name for name in model if (entry := find(name))}
    return {code: known[code] for code in codes if code in known}


class Writer:
    """Writes texts below a folder, each distinct one once: the rest are links to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[bytes, str] = {}

    def write(self, name: str, lines: Sequence[str]) -> None:
        """Write the lines to `name`, or link it to the file that holds the same ones."""
        content = "".join(f"{line}\n" for line in lines).encode("utf-8")
        digest = hashlib.sha256(content).digest()
        same = self._written.setdefault(digest, name)
        if same == name:
            (self.folder / name).write_bytes(content)
        else:
            (self.folder / name).symlink_to(same)


def write_set(
    name: str, texts: Iterable[Text], called: Mapping[str, str], out: Path
) -> dict[str, int]:
    """Write the texts and pairs.tsv; returns direction -> lines, in the codes of the model."""
    writer, lines, rows = Writer(out), dict[str, int](), []
    for text in texts:
        source, target = (called[code] for code in text.direction)
        pair = f"{source}-{target}"
        writer.write(f"{name}.{pair}.{source}", text.source)
        writer.write(f"{name}.{pair}.{target}", text.target)
        rows.append(f"{name}\t{source}\t{target}\t{name}.{pair}\n")
        lines[pair] = len(text.source)
        if text.reversible:
            lines[f"{target}-{source}"] = len(text.source)
    write_text(out / "pairs.tsv", "".join(rows))
    return lines


def make(
    name: str,
    raw: Path | None,
    out: Path,
    model: Sequence[str] | None = None,
    naming: str = "own",
) -> dict[str, Any]:
    """Make the folder `out`, complete or not at all; a second call does nothing.

    Arguments:
        raw: folder or archive of the published set; sacreBLEU has that of WMT itself
        model: languages that the model knows, in its own codes; by default all of the set's
        naming: whose codes to use where `model` is not given: one of languages.CODES

    Returns what evaluation.json records. Raises ValueError where the model knows no pair of the
    set, or `out` holds another set.
    """
    content = definition(name)
    called = names_in(content["languages"], model, naming)
    wanted = directions(content, list(called))
    if not wanted:
        raise ValueError(f"the model knows no two languages that {name} is scored between")
    request = {"set": name, "languages": called, "raw": str(raw.resolve()) if raw else None}
    record = out / "evaluation.json"
    if record.is_file():
        before = read_record(record, {"request": dict, "lines": dict}, "remove its folder")
        if before["request"] == request:
            print(f"{shown(out)} is there already", file=sys.stderr)
            return before
    if out.exists():
        raise ValueError(f"{out} exists and holds something else: remove it, or choose another OUT")
    if raw is None and content["reader"] != "wmt":
        raise ValueError(
            f"{name} needs RAW, the published files: bash scripts/download.sh {content['download']}"
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `deepnet evaluation-set`."""
    parser.add_argument("set", help=", ".join(sets()))
    parser.add_argument("--raw", type=Path, help="folder or archive of the published files")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--model", type=Path, help="run or checkpoint: only languages it knows")
    parser.add_argument("--data", type=Path, help="its data folder (as the run recorded it)")
    parser.add_argument("--codes", choices=CODES, default="own", help="codes without a model (own)")


def run(args: argparse.Namespace) -> int:
    """Make a set, and say how much of it the model can be scored on."""
    known = None
    if args.model is not None or args.data is not None:
        if args.model is not None:
            known = find_data(choose_model(args.model, 0), args.data).languages
        else:
            known = DataFolder.open(args.data).languages
    facts = make(args.set, args.raw, args.out, known, args.codes)
    total = sum(facts["lines"].values())
    print(
        f"{args.set}: {facts['directions']:,} of {facts['of']:,} directions, {total:,} lines"
        f" to translate: {shown(args.out)}"
    )
    return 0
