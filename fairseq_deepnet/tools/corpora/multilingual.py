"""A data folder of many language pairs: one dictionary, language tokens, every pair once.

A table says what there is: one line a split and pair, `split<TAB>source<TAB>target<TAB>prefix`,
where PREFIX.SOURCE and PREFIX.TARGET (plain or .gz) are the two sides. A pair that has no `train`
line is zero-shot: it is translated, never trained. Training text is cleaned; of the other splits no
line is dropped, as scores need all of them.

Work is done in OUT.part, a file at a time and each renamed when complete, so that a run that was
killed goes on where it stopped. Pairs are shared out over processes; memory is bounded.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairseq_deepnet.files import say, write_json
from fairseq_deepnet.records import digest, write_record
from fairseq_deepnet.tools.corpora import clean, manifest, subwords, text
from fairseq_deepnet.tools.corpora.pairs import Row, directions_of, read_table
from fairseq_deepnet.tools.corpora.parallel import as_done
from fairseq_deepnet.tools.corpora.rows import binarise_row, clean_row
from fairseq_deepnet.tools.corpora.sampling import allot, spread


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How the folder is made; see the options of `deepnet pairs`."""

    subwords: subwords.SubwordOptions
    temperature: float
    limits: clean.Limits

    def __post_init__(self) -> None:
        if not self.temperature >= 1:
            raise ValueError(f"temperature is {self.temperature}; it must be at least 1")


def _each_row(
    what: str, rows: Sequence[Row], out: Path, workers: int, work: Callable[[Row], object]
) -> dict[str, dict[str, Any]]:
    """Do `work(row)` for every row that is not done, the largest first; what each one counted."""
    out.mkdir(parents=True, exist_ok=True)
    todo = [row for row in rows if not (out / f"{row.name}.json").is_file()]
    if len(todo) < len(rows):
        say(f"{what}: {len(rows) - len(todo)} of {len(rows)} files were done before")
    todo.sort(key=lambda row: -sum(side.stat().st_size for side in row.sides()))
    done = len(rows) - len(todo)
    for row in as_done(work, todo, workers):
        done += 1
        say(f"{what}: {done}/{len(rows)} {row.name}")
    return {
        row.name: json.loads((out / f"{row.name}.json").read_text(encoding="utf-8")) for row in rows
    }


def learn(rows: Sequence[Row], cleaned: Path, out: Path, recipe: Recipe) -> dict[str, int]:
    """Train the joint model on a sample of every language; returns lines taken, by language."""
    files: dict[str, list[tuple[Path, int]]] = {}
    for row in rows:
        if row.split != "train":
            continue
        kept = json.loads((cleaned / f"{row.name}.json").read_text(encoding="utf-8"))["kept"]
        for language in row.pair:
            files.setdefault(language, []).append((cleaned / f"{row.name}.{language}", kept))
    there = {language: sum(kept for _, kept in sides) for language, sides in sorted(files.items())}
    taken = allot(there, recipe.subwords.sample, recipe.temperature)
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    say(
        f"training {recipe.subwords.kind} of {recipe.subwords.vocab_size:,} pieces on"
        f" {sum(taken.values()):,} of {sum(there.values()):,} lines in {len(there)} languages"
    )
    with tempfile.TemporaryDirectory(dir=part) as folder:
        sample = Path(folder) / "sample"
        with sample.open("w", encoding="utf-8", newline="\n") as stream:
            for language, sides in sorted(files.items()):
                start = 0
                for path, kept in sides:
                    lines = text.read_lines(path)
                    for line in spread(lines, start, taken[language], there[language]):
                        stream.write(line + "\n")
                    start += kept
        subwords.train_model([sample], part / "spm", recipe.subwords)
    subwords.write_dictionary(subwords.load_model(part / "spm.model"), part / "dict.txt")
    write_json(part / "sample.json", taken)
    part.rename(out)
    return taken


def _plan(rows: Sequence[Row], recipe: Recipe, workers: int) -> tuple[dict[str, Any], Any]:
    """Settings, and the digest of every input: what a second run compares."""
    settings = dataclasses.asdict(recipe)
    inputs: dict[str, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        for row in rows:
            row.sides()  # all sides first: a missing one must not cost an hour
        digests = {
            f"{row.name}.{language}": pool.submit(digest, side)
            for row in rows
            for language, side in zip(row.pair, row.sides(), strict=True)
        }
        inputs = {name: digest.result() for name, digest in digests.items()}
    return settings, inputs


def make_folder(rows: Sequence[Row], out: Path, recipe: Recipe, workers: int, force: bool) -> bool:
    """Make the data folder OUT; returns False where it is there already, made the same way.

    Raises ValueError where OUT was made otherwise (unless `force`), and for input that cannot be.
    """
    settings, inputs = _plan(rows, recipe, workers)
    if manifest.state(out, settings, inputs, force) == "complete":
        return False
    part = out.with_name(out.name + ".part")
    manifest.prepare(part, settings, inputs, keep=not force)
    work = functools.partial(clean_row, out=part / "text", limits=recipe.limits)
    cleaned = _each_row("cleaning", rows, part / "text", workers, work)
    learnt = part / "subwords"
    if not learnt.is_dir():
        learn(rows, part / "text", learnt, recipe)
    else:
        say("training subwords: done before")
    folder = part / "binarised"
    work = functools.partial(
        binarise_row, source=part / "text", model=learnt / "spm.model", out=folder
    )
    counts = _each_row("binarising", rows, folder, workers, work)
    record = _finish(part, rows, recipe, settings | {"inputs": inputs}, cleaned, counts)
    _assemble(part, out, record)
    say(f"made {out}: {_summary(record)}")
    return True


def _finish(
    part: Path,
    rows: Sequence[Row],
    recipe: Recipe,
    plan: dict[str, Any],
    cleaned: dict[str, dict[str, Any]],
    counts: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Check all counts and return what corpus.json is to hold."""
    lines: dict[str, dict[str, int]] = {}
    for row in rows:
        sentences = {side["sentences"] for side in counts[row.name].values()}
        if sentences != {cleaned[row.name]["kept"]}:
            raise ValueError(f"{row.name}: {cleaned[row.name]} cleaned, {sentences} binarised")
        lines.setdefault(row.split, {})["-".join(row.pair)] = cleaned[row.name]["kept"]
    languages = sorted({language for row in rows for language in row.pair})
    inputs = plan.pop("inputs")
    record = {
        "languages": languages,
        "directions": directions_of(rows),
        "lines": lines,
        "vocab_size": recipe.subwords.vocab_size,
        "subwords": recipe.subwords.kind,
        "sample": json.loads((part / "subwords" / "sample.json").read_text(encoding="utf-8")),
        "binarised": counts,
        "cleaning": cleaned,
        "settings": plan,
        "inputs": inputs,
        "versions": {name: manifest.installed(name) for name in ("sentencepiece", "fairseq-fixed")},
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (part / "languages.txt").write_text(
        "".join(f"{name}\n" for name in languages), encoding="utf-8"
    )
    return record


def _assemble(part: Path, out: Path, record: dict[str, Any]) -> None:
    """Bring the stages together, record them, and give the folder its name."""
    whole = part / "whole"
    manifest.link_folder(part / "binarised", whole)
    manifest.link_folder(part / "text", whole / "text")
    for name in ("spm.model", "spm.vocab", "dict.txt"):
        shutil.copy(part / "subwords" / name, whole / name)
    for left_over in [*whole.glob("*.json"), *(whole / "text").glob("*.json")]:
        left_over.unlink()
    shutil.copy(part / "languages.txt", whole)
    write_record(whole / "corpus.json", record | {"files": manifest.folder_digests(whole)})
    manifest.put_in_place(whole, out)
    shutil.rmtree(part)


def _summary(record: dict[str, Any]) -> str:
    """One line for people."""
    directions = record["directions"]
    pairs = ", ".join(
        f"{sum(counts.values()):,} {split} in {len(counts)} pairs"
        for split, counts in sorted(record["lines"].items(), key=lambda item: item[0] != "train")
    )
    tested = {name for split, names in directions.items() for name in names}
    zero_shot = len(tested - set(directions["train"]))
    sides = [side for row in record["binarised"].values() for side in row.values()]
    unknown = 100 * sum(s["unknown"] for s in sides) / max(1, sum(s["tokens"] for s in sides))
    return (
        f"{len(record['languages'])} languages; {pairs}; {len(directions['train'])} directions are"
        f" trained, {zero_shot} are zero-shot; {record['vocab_size']:,} {record['subwords']}"
        f" subwords; {unknown:.2g}% unknown"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `deepnet pairs`."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("table", type=Path, help="split, source, target, prefix; tab-separated")
    parser.add_argument("--out", type=Path, required=True, help="data folder to make")
    parser.add_argument("--kind", default="bpe", help="bpe or unigram")
    parser.add_argument("--vocab-size", type=int, default=subwords.SubwordOptions.vocab_size)
    parser.add_argument("--character-coverage", type=float, default=1.0)
    parser.add_argument("--byte-fallback", action="store_true", help="unseen characters as bytes")
    parser.add_argument(
        "--sample", type=int, default=subwords.SubwordOptions.sample, help="lines for subwords"
    )
    parser.add_argument(
        "--temperature", type=float, default=5.0, help="of the subword sample; 1: as the text is"
    )
    parser.add_argument("--min-words", type=int, default=clean.Limits.min_words)
    parser.add_argument("--max-words", type=int, default=clean.Limits.max_words)
    parser.add_argument("--max-ratio", type=float, default=clean.Limits.max_ratio)
    parser.add_argument("--drop-duplicates", action="store_true", help="drop repeated train pairs")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--force", action="store_true", help="make it anew even if it is there")


def run(args: argparse.Namespace) -> int:
    """Make a data folder of many pairs."""
    recipe = Recipe(
        subwords.SubwordOptions(
            args.kind, args.vocab_size, args.character_coverage, args.byte_fallback, args.sample
        ),
        args.temperature,
        clean.Limits(args.min_words, args.max_words, args.max_ratio, args.drop_duplicates),
    )
    made = make_folder(read_table(args.table), args.out, recipe, args.workers, args.force)
    if not made:
        say(f"{args.out} is complete: nothing to do")
    return 0
