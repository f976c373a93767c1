"""Make a data folder OUT: stage by stage in OUT.part, which gets its name when all is there.

What kinds of folder there are stands in text_folders.py and moses_folder.py. A second run compares
settings and inputs with the record in corpus.json; a run that was killed goes on where it stopped.
On the standard library alone: finding that there is nothing to do takes no time.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fairseq_deepnet.files import (
    locked,
    put_folder_in_place,
    remove,
    replaced,
    say,
    write_json,
)
from fairseq_deepnet.provenance import installed, now, sha256
from fairseq_deepnet.records import read_record, write_record
from fairseq_deepnet.tools.corpora.parallel import as_done
from fairseq_deepnet.tools.corpora.text import find_side, text_sha256

_WAIT = 2.0
"""Seconds that a second run waits for one that may be at its end."""
_MARKS = "counted"
"""In the folder of a stage: NAME.json for every row that is done, with what it counted."""
_CLEAN_TEXT = ("text", "tokenised")
"""Folders of the first stage: the text, checked and cleaned."""
_OF_SUBWORDS = {
    *("vocab_size", "subwords", "joint", "merges", "temperature", "sample"),
    *("character_coverage", "byte_fallback"),
}
"""Settings on which that text does not depend."""
_STAGES = 2
"""Changes with what stages leave in PART: what an earlier version left is not gone on with."""


class Row(NamedTuple):
    """One split of a pair of languages, or of one: the files PREFIX.LANGUAGE[.gz]."""

    split: str
    pair: tuple[str, ...]
    prefix: str
    held_out: bool = False
    """True if its training text also has to serve as validation set."""

    @property
    def name(self) -> str:
        """Return the name of its files among many pairs, without the language: "train.de-en"."""
        return f"{self.split}.{'-'.join(self.pair)}"

    def sides(self) -> list[Path]:
        """Return the raw text of each language; FileNotFoundError for what is not there."""
        return [find_side(self.prefix, language) for language in self.pair]


def rows_of(
    pair: tuple[str, ...], train: str, valid: str | None, tests: str | None = None
) -> list[Row]:
    """Return the rows of one pair or language.

    `tests` is a prefix, or several between commas: test, test1, test2, ... as fairseq names them.
    """
    prefixes = filter(None, (tests or "").split(","))
    splits = {"train": train, "valid": valid}
    splits |= {f"test{index or ''}": prefix for index, prefix in enumerate(prefixes)}
    return [Row(split, pair, prefix) for split, prefix in splits.items() if prefix]


class Blueprint(ABC):
    """What a data folder is made of, and how.

    Attributes:
        rows: the splits, each with its languages and the prefix of its files.
        workers: processes.
        tools: distributions whose versions are recorded.
    """

    rows: Sequence[Row]
    workers: int
    tools: ClassVar[tuple[str, ...]] = ("sentencepiece",)

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return all that decides what the folder holds, besides the text."""

    @property
    def has_many_pairs(self) -> bool:
        """True if the rows are of more than one pair of languages."""
        return len({row.pair for row in self.rows}) > 1

    def name(self, row: Row) -> str:
        """Return the name of a row's text, without the language."""
        return row.split

    @abstractmethod
    def make(self, part: Path) -> tuple[dict[str, Any], str]:
        """Run all stages in PART, fill PART/whole; return its record, and a line for people."""

    def input_names(self) -> set[str]:
        """Return "NAME.LANGUAGE" of every input, there or not."""
        return {f"{self.name(row)}.{language}" for row in self.rows for language in row.pair}

    def digests(self) -> dict[str, str]:
        """Return SHA-256 of every input that is there, by "NAME.LANGUAGE"."""
        found = {}
        for row in self.rows:
            for language in row.pair:
                with contextlib.suppress(FileNotFoundError):
                    found[f"{self.name(row)}.{language}"] = find_side(row.prefix, language)
        with ThreadPoolExecutor() as pool:  # hashing and unpacking leave Python's lock to others
            return dict(zip(found, pool.map(text_sha256, found.values()), strict=True))

    def each_row(
        self, what: str, work: Callable[[Row, Path, int], dict[str, Any]], folder: Path
    ) -> None:
        """Do `work(row, folder, processes)` for every row that is not done.

        Many pairs are shared out over the processes, the largest first; the text of one pair is
        shared out inside `work`.
        """
        marks = folder / _MARKS
        marks.mkdir(parents=True, exist_ok=True)
        todo = [row for row in self.rows if not (marks / f"{self.name(row)}.json").is_file()]
        done = len(self.rows) - len(todo)
        if done:
            say(f"{what}: {done} of {len(self.rows)} files were done before")
        across = self.has_many_pairs
        if across:
            todo.sort(key=lambda row: -sum(side.stat().st_size for side in row.sides()))
        one = functools.partial(
            self._one_row, work=work, folder=folder, workers=1 if across else self.workers
        )
        for row in as_done(one, todo, self.workers if across else 1):
            done += 1
            say(f"{what}: {done}/{len(self.rows)} {self.name(row)}")

    def _one_row(
        self, row: Row, work: Callable[[Row, Path, int], Any], folder: Path, workers: int
    ) -> None:
        write_json(folder / _MARKS / f"{self.name(row)}.json", work(row, folder, workers))

    def counted(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Return what `each_row` has counted, by name."""
        names = [self.name(row) for row in self.rows]
        return {
            name: json.loads((folder / _MARKS / f"{name}.json").read_text(encoding="utf-8"))
            for name in names
        }


def build(
    design: Callable[[], Blueprint],
    out: Path,
    force: bool = False,
    clean_up: Callable[[], None] = lambda: None,
    names_text: bool = True,
) -> bool:
    """Make the data folder OUT; return False where it is there already, made the same way.

    A killed run is resumed by the same settings, with `force`, too. With `names_text` the user has
    named the text: where OUT is complete it may be gone since, but not be named otherwise, or a
    mistyped name would pass for the text of OUT.

    No other run is making OUT when `design` and, however it ends, `clean_up` are called. Raises
    ValueError or OSError where OUT was made otherwise (unless `force`), where another run is at it,
    and for input that cannot be.
    """
    part = out.with_name(out.name + ".part")
    with held(out), contextlib.ExitStack() as ending:
        ending.callback(clean_up)
        blueprint = design()
        places = {blueprint.name(row): str(Path(row.prefix).absolute()) for row in blueprint.rows}
        if names_text:
            _refuse_other_text(blueprint, places, out)
        inputs = blueprint.digests()
        if is_complete(out, blueprint.settings, inputs, force, blueprint.input_names()):
            if (part / "plan.json").is_file():  # of a run that was killed in its last moment
                shutil.rmtree(part)
                remove(replaced(out))
            say(f"{out} is complete: nothing to do")
            return False
        for row in blueprint.rows:
            row.sides()  # raises for what is not there
        prepare(part, blueprint.settings, inputs)
        try:
            record, said = blueprint.make(part)
        except ValueError:  # of the input: what another run could not go on with goes
            for unfinished in part.glob("*.part"):
                finished_pairs = blueprint.has_many_pairs and any(unfinished.glob(f"{_MARKS}/*"))
                if not finished_pairs:
                    shutil.rmtree(unfinished)
            if not any(entry.is_dir() for entry in part.iterdir()):
                shutil.rmtree(part)
            raise
        record |= {
            "settings": blueprint.settings,
            "inputs": inputs,
            "places": places,
            "files": folder_digests(part / "whole"),
            "versions": {
                name: installed(name) or "not installed"
                for name in (*blueprint.tools, "fairseq-fixed")
            },
            "made": now(),
        }
        write_record(part / "whole" / "corpus.json", record)
        put_folder_in_place(part / "whole", out)
        shutil.rmtree(part)
    say(f"made {out}: {said}")
    return True


def _refuse_other_text(blueprint: Blueprint, places: dict[str, str], out: Path) -> None:
    """Raise FileNotFoundError for text that is missing, unless OUT was made of it."""
    record = out / "corpus.json"
    recorded = read_record(record).get("places") or {} if record.is_file() else {}
    for row in blueprint.rows:
        name = blueprint.name(row)
        if recorded.get(name) != places[name]:
            row.sides()


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep other runs from making OUT; ValueError where one is at it."""
    path = out.with_name(out.name + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _WAIT
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(path))
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"another run is making {out}; wait for it, or set OUT=FOLDER"
                    raise ValueError(message) from None
                time.sleep(0.1)
        stack.callback(path.unlink, missing_ok=True)
        yield


def is_complete(
    out: Path,
    settings: dict[str, Any],
    inputs: dict[str, str],
    force: bool = False,
    wanted: Collection[str] | None = None,
) -> bool:
    """Return True if OUT was made with these settings from these inputs.

    Raises ValueError if OUT was made otherwise (unless `force`) or is no data folder at all. Inputs
    that are gone since are not compared, those that are not `wanted` any more are.
    """
    record = out / "corpus.json"
    if out.exists() and not record.is_file():
        raise ValueError(f"{out} exists but has no corpus.json; remove it, or set OUT=FOLDER")
    if force or not record.is_file():
        return False
    made = read_record(record, remedy="FORCE=1 makes its folder anew")
    before, inputs_before = made.get("settings") or {}, made.get("inputs") or {}
    changed = [
        f"{key} was {before.get(key)!r}, now {settings.get(key)!r}"
        for key in sorted(before.keys() | settings.keys())
        if before.get(key) != settings.get(key)
    ]
    changed += [f"input {key} changed" for key in inputs if inputs[key] != inputs_before.get(key)]
    if wanted is not None:
        changed += [f"input {key} is left out" for key in sorted(inputs_before.keys() - wanted)]
    if changed:
        raise ValueError(
            f"{out} was made with other settings or inputs ({'; '.join(changed)}); "
            "FORCE=1 makes it anew, OUT=FOLDER makes another"
        )
    return True


def prepare(part: Path, settings: dict[str, Any], inputs: dict[str, str]) -> None:
    """Ready the folder that stages work in.

    The finished stages of a killed run stay if it wanted the same, and the clean text if it wanted
    other subwords of it, such as another vocabulary size; all else goes.
    """
    plan = {"settings": settings, "inputs": inputs, "stages": _STAGES}
    planned = json.dumps(plan, indent=2) + "\n"
    record = part / "plan.json"
    before = record.read_text(encoding="utf-8") if record.is_file() else ""
    if before == planned:
        return
    if before and _text_plan(before) == _text_plan(planned):
        for entry in part.iterdir():
            if entry.name not in _CLEAN_TEXT:
                remove(entry)
        record.write_text(planned, encoding="utf-8")
        return
    if part.is_dir() and any(part.iterdir()):
        if not record.is_file():
            raise ValueError(f"{part} is in the way and was not made by this script; remove it")
        shutil.rmtree(part)
    part.mkdir(exist_ok=True)
    record.write_text(planned, encoding="utf-8")


def _text_plan(planned: str) -> Any:
    """Return what of a plan the clean text depends on."""
    plan = json.loads(planned)
    if plan["settings"].get("clean_on") != "subwords":
        plan["settings"] = {k: v for k, v in plan["settings"].items() if k not in _OF_SUBWORDS}
    return plan


def stage(
    part: Path, name: str, what: str, fill: Callable[[Path], object], by_row: bool = False
) -> Path:
    """Return the folder PART/NAME, after `fill(PART/NAME.part)` unless it was there before.

    With `by_row`, `fill` goes on with what a killed run left; `what` is done, for people.
    """
    folder = part / name
    if folder.is_dir():
        say(f"{what}: done before")
        return folder
    say(what)
    unfinished = part / f"{name}.part"
    if not by_row:
        shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(exist_ok=True)
    fill(unfinished)
    return unfinished.rename(folder)


def link_folder(source: Path, target: Path) -> None:
    """Add the files of `source` to `target`, not copied where links are possible."""

    def link(origin: str, copy: str) -> None:
        try:
            os.link(origin, copy)
        except OSError:
            shutil.copy2(origin, copy)

    ignored = shutil.ignore_patterns(_MARKS)
    shutil.copytree(source, target, copy_function=link, ignore=ignored, dirs_exist_ok=True)


def folder_digests(folder: Path) -> dict[str, str | None]:
    """Return SHA-256 of every file of a folder by its name there; not of corpus.json and logs."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [str(path.relative_to(folder)) for path in paths if path.suffix != ".log"]
    names = [name for name in names if name != "corpus.json"]
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(sha256, map(folder.joinpath, names)), strict=True))


def summary(record: dict[str, Any], counts: dict[str, dict[str, Any]]) -> str:
    """Return one line for people: lines, directions of many, vocabulary, length, unknown share."""
    lines = {
        split: sum(found.values()) if isinstance(found, dict) else found
        for split, found in record["lines"].items()
    }
    said = [", ".join(f"{count:,} {split}" for split, count in lines.items())]
    said[0] += " lines"
    if "directions" in record:
        trained = set(record["directions"]["train"])
        untrained = {name for names in record["directions"].values() for name in names} - trained
        said[0] += f" in {len(record['languages'])} languages"
        said.append(f"{len(trained)} directions are trained, {len(untrained)} are zero-shot")
    sides = [side for found in counts.values() for side in found.values()]
    train = [s for name, f in counts.items() if name.startswith("train") for s in f.values()]
    length = sum(s["tokens"] for s in train) / max(1, sum(s["sentences"] for s in train))
    unknown = 100 * sum(s["unknown"] for s in sides) / max(1, sum(s["tokens"] for s in sides))
    said.append(f"{record['vocab_size']:,} {record['subwords']} subwords")
    said.append(f"{length:.1f} tokens a training line; {unknown:.2g}% unknown")
    return "; ".join(said)
