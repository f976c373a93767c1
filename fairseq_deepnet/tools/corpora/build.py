"""From text to a data folder: clean, learn subwords, encode, binarise.

Text is a list of rows, and a recipe is a dataclass whose fields are the options. The folder is
built as OUT.part, which is renamed to OUT when it is complete. OUT.part/corpus.json contains the
plan and the results of finished steps, and becomes the record of the folder. The same command
resumes a run that was killed or has failed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_deepnet.files import locked, put_folder_in_place, remove, say, write_text
from fairseq_deepnet.records import installed, now, read_record, sha256, write_record
from fairseq_deepnet.tools.corpora import binarise, moses, subwords
from fairseq_deepnet.tools.corpora.text import (
    Chunk,
    Recipe,
    chunks,
    find_side,
    is_blank,
    map_in_order,
    normalise,
    read_lines,
    why_dropped,
)


class Row(NamedTuple):
    """One split of a pair of languages, or of one language: the files PREFIX.LANGUAGE[.gz]."""

    split: str
    languages: tuple[str, ...]
    prefix: str

    @property
    def pair(self) -> str:
        """Return "de-en"."""
        return "-".join(self.languages)

    def sides(self) -> list[Path]:
        """Return the raw text of each language; FileNotFoundError for a missing file."""
        return [find_side(self.prefix, language) for language in self.languages]


def text_name(recipe: Recipe, row: Row) -> str:
    """Return the name of a row's text, without the language."""
    return f"{row.split}.{row.pair}" if recipe.kind == "pairs" else row.split


def sources_of(rows: Sequence[Row]) -> dict[str, Path]:
    """Return the raw files of some rows, each named as in "train.de-en.de"."""
    return {
        f"{row.split}.{row.pair}.{language}": path
        for row in rows
        for language, path in zip(row.languages, row.sides(), strict=True)
    }


@contextlib.contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Lock OUT; raise ValueError if another run has it."""
    lock = out.with_name(out.name + ".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock))
        except BlockingIOError:
            raise ValueError(f"another run is building {out}: wait, or set OUT=FOLDER") from None
        stack.callback(lock.unlink, missing_ok=True)
        yield


def _read(folder: Path, *keys: str) -> dict[str, Any]:
    """Return the record of a folder, empty if there is none; ValueError for any other folder."""
    record = folder / "corpus.json"
    if record.is_file():
        return read_record(record, dict.fromkeys(keys, dict), "FORCE=1 rebuilds its folder")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} exists but has no corpus.json; remove it, or set OUT=FOLDER")
    return {}


def is_complete(out: Path, recipe: Recipe, sources: Mapping[str, Any] | None = None) -> bool:
    """Return True if OUT was built by this recipe, from these sources unless they are None.

    Raises ValueError if OUT was built otherwise.
    """
    record = _read(out, "recipe", "sources")
    if not record:
        return False
    before = record["recipe"]
    changes = [
        f"{name} was {before[name]!r}, now {value!r}"
        for name, value in recipe.options().items()
        if before.get(name, value) != value
    ]
    if sources is not None:
        old = record["sources"]
        names = sorted(old.keys() | sources.keys())
        changed = [name for name in names if old.get(name) != sources.get(name)]
        states = {name: "changed" if name in old else "is new" for name in sources}
        changes += [f"{name} {states.get(name, 'is left out')}" for name in changed]
    if changes:
        raise ValueError(
            f"{out} was built with other settings or text ({'; '.join(changes)}); FORCE=1"
            " (--force) rebuilds it, OUT=FOLDER (--out) builds another"
        )
    say(f"{out} is complete: nothing to do")
    return True


def build(
    recipe: Recipe,
    sources: Mapping[str, Path],
    unpack: Callable[[Path], Sequence[Row]],
    out: Path,
    workers: int,
    force: bool = False,
) -> None:
    """Build OUT, which is claimed, unless it is complete.

    Raises ValueError for bad text, and if OUT was built otherwise (unless `force`).

    Args:
        sources: files that identify the text, by name.
        unpack: returns the rows of text, which it may write to a folder.
    """
    part = out.with_name(out.name + ".part")
    if not force or not (out / "corpus.json").is_file():  # it may be damaged
        _read(out)
    unfinished = _read(part, "recipe", "sources", "done")
    plan = {"recipe": recipe.options(), "sources": _digests(sources)}
    if not force and is_complete(out, recipe, plan["sources"]):
        remove(part)
        return
    if not unfinished.get("done") or any(unfinished[key] != plan[key] for key in plan):
        remove(part)
        unfinished = {"done": {}}
    part.mkdir(parents=True, exist_ok=True)
    pipeline = _Pipeline(recipe, part, workers, plan, unfinished["done"])
    pipeline.save()  # before text is unpacked into the folder
    record = pipeline.run(unpack(part / "raw"))
    for name in ("raw", "encoded"):
        remove(part / name)
    tools = ["sacremoses", "subword-nmt"] if recipe.kind == "moses" else ["sentencepiece"]
    record |= {
        **plan,
        "files": folder_digests(part),
        "versions": {name: installed(name) or "not installed" for name in tools},
        "built": now(),
    }
    write_record(part / "corpus.json", record)
    put_folder_in_place(part, out)
    say(f"built {out}: {_summary(record)}")


def _summary(record: dict[str, Any]) -> str:
    """Return "28,998 train, 1,014 valid, 1,000 test lines (2 dropped); 4,000 bpe subwords"."""
    totals = {
        split: sum(lines.values()) if isinstance(lines, dict) else lines
        for split, lines in record["lines"].items()
    }
    lines = ", ".join(f"{total:,} {split}" for split, total in totals.items())
    dropped = sum(sum(row.get("dropped", {}).values()) for row in record["cleaning"].values())
    vocabulary = f"{record['vocab_size']:,} {record['subwords']} subwords"
    return f"{lines} lines ({dropped:,} dropped); {vocabulary}"


class _Cleaned(NamedTuple):
    """A chunk after cleaning: lines read, the remaining pairs, and reasons for dropping others.

    A pair is its text, its tokens and its subwords, as far as there are, of both sides each.
    """

    read: int
    pairs: list[tuple[str, ...]]
    dropped: Counter[str]


class _Pipeline:
    """Steps from text to a data folder in PART."""

    def __init__(
        self, recipe: Recipe, part: Path, workers: int, plan: dict[str, Any], done: dict[str, Any]
    ) -> None:
        self.recipe, self.part, self.workers = recipe, part, workers
        self.plan, self.done = plan, done
        self.rows: list[Row] = []
        self.languages: list[str] = []
        self.held_out: dict[Row, Row] = {}  # a training row and that of its validation text

    def save(self) -> None:
        """Write the plan and the results so far."""
        write_record(self.part / "corpus.json", {**self.plan, "done": self.done})

    def step(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a step, computed unless it is done."""
        if name not in self.done:
            say(name)
            self.done[name] = work()
            self.save()
        return dict(self.done[name])

    def run(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Run all steps that are not done; return the record of the folder."""
        recipe, self.rows = self.recipe, list(rows)
        self.languages = list(dict.fromkeys(code for row in rows for code in row.languages))
        valid = {row.languages for row in rows if row.split == "valid"}
        for row in rows:
            if row.split == "train" and row.languages not in valid:
                self.held_out[row] = Row("valid", row.languages, row.prefix)
        if self.held_out and recipe.kind != "pairs" and not recipe.hold_out:
            raise ValueError(
                "there is no validation text: set VALID=PREFIX"
                + (", or HOLD_OUT=N to take every Nth pair" if recipe.kind == "moses" else "")
            )
        if recipe.kind == "moses" and recipe.hold_out and not self.held_out:
            raise ValueError("both VALID and HOLD_OUT are set; choose one")
        cleaning: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            cleaning |= self.step(f"clean {text_name(recipe, row)}", partial(self._clean, row))
        learnt = self.step("learn subwords", partial(self._learn, cleaning))
        if recipe.kind == "moses":
            for row in self.all_rows:
                work = partial(self._encode, row, cleaning[row.split])
                cleaning |= self.step(f"encode {row.split}", work)
            learnt |= self.step("write dictionaries", self._write_dictionaries)
        counts = {}
        for row in self.all_rows:
            name = text_name(recipe, row)
            counts[name] = self.step(f"binarise {name}", partial(self._binarise, row))
        for folder in ("text", "tokenised"):  # subwords may be too long: these pairs remain
            for path in (self.part / "encoded" / folder).glob("*"):
                path.replace(self.part / folder / path.name)
        return self._record(cleaning, learnt, counts)

    @property
    def all_rows(self) -> list[Row]:
        """Return the rows, with held-out validation text before its training text."""
        pairs = ([self.held_out[row], row] if row in self.held_out else [row] for row in self.rows)
        return [row for pair in pairs for row in pair]

    def _clean(self, row: Row) -> dict[str, Any]:
        """Write the text (and Moses tokens) of a row; return counts by name."""
        recipe, sides, held = self.recipe, row.sides(), self.held_out.get(row)
        work = partial(_clean_chunk, paths=sides, row=row, recipe=recipe)
        folders = ["text", "tokenised"] if recipe.kind == "moses" else ["text"]
        deduplicates = row.split == "train" and recipe.drop_duplicates
        seen: set[bytes] = set()
        read = index = 0
        dropped: Counter[str] = Counter()
        remaining = dict.fromkeys([row, held] if held else [row], 0)
        with ExitStack() as stack:
            files = {target: self._open(stack, target, folders) for target in remaining}
            for chunk in map_in_order(work, chunks(sides), self.workers):
                read += chunk.read
                dropped += chunk.dropped
                for pair in chunk.pairs:
                    if deduplicates and _is_repeated(pair, seen):
                        dropped["duplicate"] += 1
                        continue
                    target = held if held and self._is_held_out(index) else row
                    index += 1
                    remaining[target] += 1
                    _write(pair, files[target])
        if not all(remaining.values()):
            reasons = ", ".join(f"{n} {reason}" for reason, n in dropped.most_common())
            raise ValueError(
                f"no line of {' and '.join(map(str, sides))} is left for"
                f" {' or '.join(target.split for target, count in remaining.items() if not count)}"
                f" ({reasons or 'too few lines'}); provide more text, or widen the limits"
            )
        counts: dict[str, Any] = {"read": read, "kept": remaining[row], "dropped": dict(dropped)}
        result = {text_name(recipe, row): counts}
        if held:
            result[text_name(recipe, held)] = {"kept": remaining[held], "held_out_of": "train"}
        return result

    def _texts(self, row: Row, folders: Sequence[str]) -> list[Path]:
        name = text_name(self.recipe, row)
        return [
            self.part / folder / f"{name}.{code}" for folder in folders for code in row.languages
        ]

    def _open(self, stack: ExitStack, row: Row, folders: Sequence[str]) -> list[Any]:
        texts = self._texts(row, folders)
        for text in texts:
            text.parent.mkdir(parents=True, exist_ok=True)
        return [stack.enter_context(text.open("wb")) for text in texts]

    def _is_held_out(self, index: int) -> bool:
        """Return True if the training pair of this index is validation text.

        fairseq validates on every pair that it trains. For pairs without validation text (five in
        OPUS-100), every 1,000th training pair is held out, at most 100.
        """
        if self.recipe.kind == "pairs":
            return index % 1000 == 0 and index < 100_000
        return (index + 1) % self.recipe.hold_out == 0

    def _train_files(self, folder: str, language: str) -> list[Path]:
        return [
            self.part / folder / f"{text_name(self.recipe, row)}.{language}"
            for row in self.rows
            if row.split == "train" and language in row.languages
        ]

    def _learn(self, cleaning: Mapping[str, Any]) -> dict[str, Any]:
        recipe = self.recipe
        if recipe.kind == "moses":
            files = [
                file for code in self.languages for file in self._train_files("tokenised", code)
            ]
            words = binarise.count_words(files, self.workers)
            codes = moses.learn_codes(dict(words), recipe.merges, self.part / "bpe.codes")
            say(f"{codes:,} of {recipe.merges:,} byte-pair codes from {len(words):,} words")
        elif recipe.kind == "pairs":
            kept = {
                self.part / "text" / f"{name}.{language}": int(counts["kept"])
                for name, counts in cleaning.items()
                for language in self.languages
            }
            lines = {
                language: sum(kept[path] for path in self._train_files("text", language))
                for language in sorted(self.languages)
            }
            taken = subwords.allot(lines, recipe.sample, recipe.temperature)
            say(f"{sum(taken.values()):,} of {sum(lines.values()):,} lines")
            self._learn_model("spm", self.languages, self._sample(lines, taken))
            return {"sample": taken}
        elif recipe.kind == "language" or recipe.joint:
            self._learn_model("spm", self.languages)
        else:
            for language in self.languages:
                self._learn_model(f"spm.{language}", [language])
        return {}

    def _sample(self, lines: Mapping[str, int], taken: Mapping[str, int]) -> Iterator[str]:
        """Yield `taken` of the `lines` of training text of each language."""
        for language, total in lines.items():
            texts = map(read_lines, self._train_files("text", language))
            yield from subwords.spread(chain.from_iterable(texts), taken[language], total)

    def _learn_model(
        self, name: str, languages: Sequence[str], sample: Iterator[str] | None = None
    ) -> None:
        """Train one sentencepiece model, and write the dictionaries that follow from it."""
        files = [path for code in languages for path in self._train_files("text", code)]
        subwords.train_model(files, self.part / name, self.recipe, sample)
        model = subwords.load_model(self.part / f"{name}.model")
        names = [f"dict.{code}.txt" for code in languages]
        for dictionary in names if self.recipe.kind == "pair" else ["dict.txt"]:
            subwords.write_dictionary(model, self.part / dictionary)

    def _encode(self, row: Row, cleaned: Mapping[str, Any]) -> dict[str, Any]:
        """Write the subwords of a Moses row, and the text and tokens of the remaining pairs."""
        is_limited = self.recipe.limits_subwords and row.split in ("train", "valid")
        forms = self._texts(row, ["text", "tokenised"])
        limits = self.recipe if is_limited else None
        work = partial(_encode_chunk, paths=forms, codes=self.part / "bpe.codes", limits=limits)
        dropped, remaining = Counter(cleaned.get("dropped", {})), 0
        with ExitStack() as stack:
            files = self._open(stack, row, ["encoded/text", "encoded/tokenised", "encoded"])
            for chunk in map_in_order(work, chunks(forms), self.workers):
                dropped += chunk.dropped
                remaining += len(chunk.pairs)
                for pair in chunk.pairs:
                    _write(pair, files)
        if not remaining:
            raise ValueError(f"no pair of {row.split} is left ({dict(dropped)}); widen the limits")
        return {row.split: {**cleaned, "kept": remaining, "dropped": dict(dropped)}}

    def _write_dictionaries(self) -> dict[str, Any]:
        """Write fairseq's dictionaries of the words in encoded training text."""
        recipe, sizes = self.recipe, {}
        for language in self.languages:
            path = self.part / f"dict.{language}.txt"
            codes = self.languages if recipe.joint else [language]
            files = [file for code in codes for file in self._train_files("encoded", code)]
            sizes[language] = binarise.write_word_dictionary(files, path, self.workers)
        return {"vocabularies": sizes}

    def _binarise(self, row: Row) -> dict[str, Any]:
        counts = {}
        for language in row.languages:
            name = f"{row.split}.{row.pair}.{language}"
            if self.recipe.kind == "language":
                name = row.split
            text = f"{text_name(self.recipe, row)}.{language}"
            if self.recipe.kind == "moses":
                folder, vocabulary = "encoded", self.part / f"dict.{language}.txt"
            else:
                own = self.part / f"spm.{language}.model"
                folder, vocabulary = "text", own if own.is_file() else self.part / "spm.model"
            paths = vocabulary, self.part / folder / text, self.part / name
            counts[language] = binarise.binarise(*paths, self.workers)._asdict()
        return counts

    def _record(
        self, cleaning: dict[str, Any], learnt: dict[str, Any], counts: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the record of the folder, for `DataFolder` and others."""
        recipe = self.recipe
        record: dict[str, Any] = {"subwords": recipe.subwords, "vocab_size": recipe.vocab_size}
        lines: dict[str, Any] = {}
        for row in self.all_rows:
            kept = cleaning[text_name(recipe, row)]["kept"]
            if recipe.kind == "pairs":
                lines.setdefault(row.split, {})[row.pair] = kept
            else:
                lines[row.split] = kept
        if recipe.kind == "pairs":
            languages = sorted(self.languages)
            write_text(self.part / "languages.txt", "".join(f"{name}\n" for name in languages))
            directions: dict[str, list[str]] = {}
            for row in self.all_rows:
                both = [row.pair, "-".join(reversed(row.languages))]
                directions[row.split] = sorted([*directions.get(row.split, []), *both])
            record |= {"languages": languages, "directions": directions, **learnt}
        elif recipe.kind == "language":
            record["language"] = self.languages[0]
            counts = {name: sides[self.languages[0]] for name, sides in counts.items()}
        else:
            record |= {"source": self.languages[0], "target": self.languages[1]}
            record["joint"] = recipe.joint
        if recipe.kind == "moses":
            sizes = learnt["vocabularies"]
            record |= {"subwords": "subword-nmt", "vocab_size": max(sizes.values())}
            record |= {"tokenisation": "moses", "lowercase": recipe.lowercase, **learnt}
        return record | {"lines": lines, "binarised": counts, "cleaning": cleaning}


def _clean_chunk(chunk: Chunk, paths: Sequence[Path], row: Row, recipe: Recipe) -> _Cleaned:
    """Clean a chunk of training text, or normalise one of valid or test, of which all lines remain.

    Only text of one language loses its blank lines there, as they contain nothing to predict.
    """
    dropped: Counter[str] = Counter()
    pairs = []
    train = row.split == "train"
    for text in chunk.decode(paths):
        reason = None
        lines: tuple[str, ...]
        if recipe.kind == "moses":
            lines = tuple(line.replace("\r", " ") for line in text)
            tokens = [
                moses.tokenise(*side, recipe, train)
                for side in zip(text, row.languages, strict=True)
            ]
            if train and not recipe.limits_subwords:
                reason = moses.why_dropped(tokens[0], tokens[1], recipe)
            lines += tuple(tokens)
        elif train:
            lines = tuple(map(normalise, text))
            reason = why_dropped(lines[0], lines[-1], recipe)
        else:
            lines = tuple(line.replace("\r", " ") for line in text)
        if not train and any(map(is_blank, text)):
            reason = "blank" if recipe.kind == "language" else None
            dropped["blank"] += reason is None
        if not train and any("\r" in line for line in text):
            dropped["carriage return"] += 1
        if reason:
            dropped[reason] += 1
        else:
            pairs.append(lines)
    return _Cleaned(len(chunk.sides[0]), pairs, +dropped)


def _write(pair: tuple[str, ...], files: Sequence[Any]) -> None:
    for file, line in zip(files, pair, strict=True):
        file.write(f"{line}\n".encode())


def _is_repeated(pair: tuple[str, ...], seen: set[bytes]) -> bool:
    """Return True if a pair occurred before; this takes some 100 bytes of memory per pair."""
    digest = hashlib.blake2b("\n".join(pair).encode(), digest_size=12).digest()
    repeated = digest in seen
    seen.add(digest)
    return repeated


def _encode_chunk(
    chunk: Chunk, paths: Sequence[Path], codes: Path, limits: Recipe | None
) -> _Cleaned:
    """Encode the tokens of a chunk; drop pairs whose subwords exceed the limits."""
    dropped: Counter[str] = Counter()
    rows = list(chunk.decode(paths))
    source, target = (moses.encode_lines((row[side] for row in rows), codes) for side in (2, 3))
    pairs = []
    for row, *pieces in zip(rows, source, target, strict=True):
        if limits and (reason := moses.why_dropped(pieces[0], pieces[1], limits)):
            dropped[reason] += 1
        else:
            pairs.append((*row, *pieces))
    return _Cleaned(len(rows), pairs, dropped)


def folder_digests(folder: Path) -> dict[str, str | None]:
    """Return the SHA-256 of every file in a folder except corpus.json, by its relative name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path for path in paths if path.name != "corpus.json"}
    return _digests(names)


def _digests(files: Mapping[str, Path]) -> dict[str, str | None]:
    with ThreadPoolExecutor() as pool:  # hashing releases Python's lock
        return dict(zip(files, pool.map(sha256, files.values()), strict=True))
