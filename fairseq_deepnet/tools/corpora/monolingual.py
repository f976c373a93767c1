"""A data folder of one language, for language models: checked text, subwords, binarised data.

A split is PREFIX.LANGUAGE (plain or .gz): UTF-8, not tokenised, a sentence (or a paragraph) a line.
Training lines are cleaned as the sides of a pair are. Of valid and test only blank lines are left
out, which hold nothing to predict: perplexities need all others.

Work is done in OUT.part, a stage at a time and each renamed when complete, so that a run that was
killed goes on where it stopped. Memory is bounded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairseq_deepnet.files import say, write_json
from fairseq_deepnet.records import write_record
from fairseq_deepnet.tools.corpora import clean, manifest, subwords, text

MAX_WORDS = 1000  # paragraphs are lines too, where sentences of a translation are not


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How the folder is made; see the options of `deepnet monolingual`."""

    language: str
    subwords: subwords.SubwordOptions
    limits: clean.Limits


def cleaned_lines(
    path: Path, split: str, limits: clean.Limits, dropped: Counter[str]
) -> Iterator[str]:
    """The lines of a split that stay; `dropped` counts the reasons of the others."""
    lines = text.read_lines(path)
    if split == "train":
        # one text is a pair with itself, whose length ratio is 1
        for line, _ in clean.clean_train(((line, line) for line in lines), limits, dropped):
            yield line
        return
    for line in lines:
        if text.is_blank(line):
            dropped["empty"] += 1
        else:
            yield line.replace("\r", " ")


def clean_split(
    split: str, prefix: str, language: str, out: Path, limits: clean.Limits
) -> dict[str, Any]:
    """Write OUT/SPLIT.LANGUAGE; return what was kept and dropped.

    Raises ValueError for text that is not UTF-8, and where no line is left.
    """
    source = text.find_side(prefix, language)
    dropped: Counter[str] = Counter()
    kept = 0
    with (out / f"{split}.{language}").open("w", encoding="utf-8", newline="\n") as stream:
        for line in cleaned_lines(source, split, limits, dropped):
            stream.write(line + "\n")
            kept += 1
    if not kept:
        raise ValueError(f"no line of {source} is left ({dict(dropped)}); give text with words")
    return {"kept": kept, "dropped": dict(dropped)}


def _stage(part: Path, name: str, what: str, fill: Callable[[Path], None]) -> Path:
    """The folder PART/NAME, filled now unless it was before."""
    folder = part / name
    if folder.is_dir():
        say(f"{what}: done before")
        return folder
    say(what)
    unfinished = folder.with_name(name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    fill(unfinished)
    return unfinished.rename(folder)


def _tidy(part: Path) -> None:
    """After a failure OUT.part holds finished stages, or is not there at all."""
    for unfinished in part.glob("*.part"):
        shutil.rmtree(unfinished)
    if not any(entry.is_dir() for entry in part.iterdir()):
        shutil.rmtree(part)


def make_folder(prefixes: dict[str, str], out: Path, recipe: Recipe, force: bool = False) -> bool:
    """Make the data folder OUT; returns False where it is there already, made the same way.

    Arguments:
        prefixes: "train", "valid", "test", "test1", ... -> PREFIX of PREFIX.LANGUAGE[.gz]
        out: the folder to make
        recipe: how
        force: make it anew even if it is there

    Raises ValueError where OUT was made otherwise (unless `force`), and for input that cannot be.
    """
    settings = dataclasses.asdict(recipe)
    inputs = manifest.digests(prefixes, [recipe.language])
    if manifest.state(out, settings, inputs, force) == "complete":
        return False
    manifest.require(prefixes, [recipe.language], inputs)
    part = out.with_name(out.name + ".part")
    manifest.prepare(part, settings, inputs, keep=not force)
    try:
        record = _make(prefixes, part, recipe)
    except BaseException:
        _tidy(part)
        raise
    record |= {"settings": settings, "inputs": inputs}
    whole = part / "binarised"
    record["files"] = manifest.folder_digests(whole)
    write_record(whole / "corpus.json", record)
    manifest.put_in_place(whole, out)
    shutil.rmtree(part)
    say(f"made {out}: {_summary(record)}")
    return True


def _make(prefixes: dict[str, str], part: Path, recipe: Recipe) -> dict[str, Any]:
    """All stages; afterwards PART/binarised is the data folder but for its record."""
    # binarising takes fairseq and torch; a bad input is told in less time without them
    from fairseq_deepnet.tools.corpora.binarise import binarise

    language = recipe.language

    def clean_all(folder: Path) -> None:
        splits = {
            split: clean_split(split, prefix, language, folder, recipe.limits)
            for split, prefix in prefixes.items()
        }
        write_json(folder / "clean.json", splits | {"limits": dataclasses.asdict(recipe.limits)})

    def learn(folder: Path) -> None:
        subwords.train_model([cleaned / f"train.{language}"], folder / "spm", recipe.subwords)
        model = subwords.load_model(folder / "spm.model")
        subwords.write_dictionary(model, folder / "dict.txt")

    def binarise_all(folder: Path) -> None:
        model = subwords.load_model(learnt / "spm.model")
        counts = {}
        for split in prefixes:
            counted = binarise(model, cleaned / f"{split}.{language}", folder / split)
            counts[split] = dataclasses.asdict(counted)
        write_json(part / "counts.json", counts)

    cleaned = _stage(part, "text", "checking and cleaning the text", clean_all)
    learnt = _stage(part, "subwords", "training subwords", learn)
    folder = _stage(part, "binarised", "binarising", binarise_all)
    counts = json.loads((part / "counts.json").read_text(encoding="utf-8"))
    cleaning = json.loads((cleaned / "clean.json").read_text(encoding="utf-8"))
    for split in prefixes:
        if counts[split]["sentences"] != cleaning[split]["kept"]:
            raise ValueError(f"{split}: {cleaning[split]} cleaned, {counts[split]} binarised")
    manifest.link_folder(cleaned, folder / "text")
    for file in learnt.iterdir():
        shutil.copy(file, folder)
    return {
        "language": language,
        "lines": {split: cleaning[split]["kept"] for split in prefixes},
        "vocab_size": recipe.subwords.vocab_size,
        "subwords": recipe.subwords.kind,
        "binarised": counts,
        "cleaning": cleaning,
        "versions": {name: manifest.installed(name) for name in ("sentencepiece", "fairseq-fixed")},
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _summary(record: dict[str, Any]) -> str:
    """One line for people."""
    lines = ", ".join(f"{count:,} {split}" for split, count in record["lines"].items())
    counts = record["binarised"]
    length = counts["train"]["tokens"] / counts["train"]["sentences"]
    unknown = max(100 * split["unknown"] / split["tokens"] for split in counts.values())
    return (
        f"{lines} lines; {record['vocab_size']:,} {record['subwords']} subwords;"
        f" {length:.1f} tokens a training line; at most {unknown:.2g}% unknown"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet monolingual`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--language", required=True, help="the files' ending")
    parser.add_argument("--train", required=True, metavar="PREFIX", help="of PREFIX.LANGUAGE[.gz]")
    parser.add_argument("--valid", required=True, metavar="PREFIX", help="the same")
    parser.add_argument(
        "--test", metavar="PREFIX[,PREFIX]", help="the same; more than one: test, test1, ..."
    )
    parser.add_argument("--out", type=Path, required=True, help="data folder to make")
    parser.add_argument("--kind", default=subwords.SubwordOptions.kind, help="bpe or unigram")
    parser.add_argument("--vocab-size", type=int, default=subwords.SubwordOptions.vocab_size)
    parser.add_argument(
        "--character-coverage", type=float, default=subwords.SubwordOptions.character_coverage
    )
    parser.add_argument("--byte-fallback", action="store_true", help="unseen characters as bytes")
    parser.add_argument(
        "--sample", type=int, default=subwords.SubwordOptions.sample, help="lines for subwords"
    )
    parser.add_argument("--min-words", type=int, default=clean.Limits.min_words)
    parser.add_argument("--max-words", type=int, default=MAX_WORDS)
    parser.add_argument("--drop-duplicates", action="store_true", help="drop repeated train lines")
    parser.add_argument("--force", action="store_true", help="make it anew even if it is there")


def run(args: argparse.Namespace) -> int:
    """Make a data folder of one language."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", args.language):
        raise ValueError(f"--language {args.language!r}; it must be a language code such as en")
    recipe = Recipe(
        args.language,
        subwords.SubwordOptions(
            args.kind, args.vocab_size, args.character_coverage, args.byte_fallback, args.sample
        ),
        clean.Limits(args.min_words, args.max_words, drop_duplicates=args.drop_duplicates),
    )
    prefixes = {"train": args.train, "valid": args.valid} | manifest.test_sets(args.test)
    if not make_folder(prefixes, args.out, recipe, args.force):
        say(f"{args.out} is complete: nothing to do")
    return 0
