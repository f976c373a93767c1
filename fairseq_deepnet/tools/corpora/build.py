"""Construction of a data folder: cleaning text, learning subwords and binarising the text.

The input is a `Recipe`, whose fields are the options, and a list of rows, which name text files. A
folder is built as OUT.part and renamed to OUT when it is complete. Until then, OUT.part/corpus.json
contains the recipe, the digests of the sources and the results of finished steps, so that repeating
the command resumes a build that was killed. If the input is invalid, OUT.part is removed.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain, permutations
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_deepnet.files import locked, naming, put_folder_in_place, remove, say, write_text
from fairseq_deepnet.records import installed, now, read_record, sha256, write_json
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
    """The text files PREFIX.LANGUAGE[.gz] of one split, in one or two languages."""

    split: str
    languages: tuple[str, ...]
    prefix: str

    @property
    def pair(self) -> str:
        """Return the languages joined by a hyphen, such as "de-en"."""
        return "-".join(self.languages)

    def sides(self) -> list[Path]:
        """Return the paths of the files; raise FileNotFoundError if one of them is missing."""
        return [find_side(self.prefix, language) for language in self.languages]


def text_name(recipe: Recipe, row: Row) -> str:
    """Return the name of a row's text files in the data folder, without the language suffix."""
    return f"{row.split}.{row.pair}" if recipe.kind == "pairs" else row.split


def sources_of(rows: Sequence[Row]) -> dict[str, Path]:
    """Map names such as "train.de-en.de" to the raw text files that the rows describe."""
    return {
        f"{row.split}.{row.pair}.{language}": path
        for row in rows
        for language, path in zip(row.languages, row.sides(), strict=True)
    }


@contextlib.contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Hold the lock on OUT; raise ValueError if another process is building OUT."""
    lock = out.with_name(f".{out.name}.lock")  # OUT.lock may be the user's file
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with locked(lock):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
    except BlockingIOError:
        raise ValueError(f"another run is building {out}: wait, or set OUT=FOLDER") from None


def _read(folder: Path, *keys: str) -> dict[str, Any]:
    """Return a folder's record, or an empty record if nothing has been recorded in it.

    Raises ValueError if the record is damaged, or the folder contains files but no record.
    """
    record = folder / "corpus.json"
    if record.is_file():
        return read_record(record, dict.fromkeys(keys, dict), "FORCE=1 rebuilds its folder")
    if folder.exists() and any(not p.name.startswith(".corpus.json.") for p in folder.iterdir()):
        raise ValueError(f"{folder} exists but has no corpus.json; remove it, or set OUT=FOLDER")
    return {}


def is_complete(out: Path, recipe: Recipe, sources: Mapping[str, Any] | None = None) -> bool:
    """Return True if OUT was built with this recipe and, if `sources` is given, from these sources.

    Raises ValueError if OUT was built from different text or with different settings.
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
        names = old.keys() | sources.keys()
        texts = sorted(name for name in names if old.get(name) != sources.get(name))
        more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
        changes += [f"other text: {', '.join(texts[:3])}{more}"] if texts else []
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
    """Build OUT unless it is complete. The caller must hold the lock on OUT (see `claimed`).

    Raises ValueError if the text is invalid, or if OUT was built from different text or with
    different settings and `force` is False.

    Args:
        sources: mapping from names to the files whose digests identify the text.
        unpack: function that takes a folder, unpacks text into it if necessary, and returns rows.
    """
    for source in sources.values():
        if source.resolve().is_relative_to(out.resolve()):
            raise ValueError(f"{source} is in {out}, which would be replaced: choose another OUT")
    part = out.with_name(out.name + ".part")
    if not force or not (out / "corpus.json").is_file():  # `force` replaces a damaged record
        _read(out)
    unfinished = _read(part)  # without "done" if the last build only failed to rename the folder
    plan = {"recipe": recipe.options(), "sources": _digests(sources)}
    if not force and is_complete(out, recipe, plan["sources"]):
        remove(part)
        return
    if not unfinished.get("done") or any(unfinished[key] != plan[key] for key in plan):
        remove(part)
        unfinished = {"done": {}}
    part.mkdir(parents=True, exist_ok=True)
    state = {**plan, "done": unfinished["done"]}
    write_json(part / "corpus.json", state)  # before text is unpacked into the folder
    try:
        record = _Pipeline(recipe, unpack(part / "raw" / "text"), part, workers, state).run()
    except (ValueError, FileNotFoundError):  # the same input would fail again
        remove(part)
        raise
    for path in (part / "raw", part / "encoded", *part.glob(".*.part")):
        remove(path)
    tools = ["sacremoses", "subword-nmt"] if recipe.kind == "moses" else ["sentencepiece"]
    record |= {
        **plan,
        "files": folder_digests(part),
        "versions": {name: installed(name) or "not installed" for name in tools},
        "built": now(),
    }
    write_json(part / "corpus.json", record)
    put_folder_in_place(part, out)
    lines = [
        f"{sum(n.values()) if isinstance(n, dict) else n:,} {split}"
        for split, n in record["lines"].items()
    ]
    dropped = sum(sum(text.get("dropped", {}).values()) for text in record["cleaning"].values())
    say(
        f"built {out}: {', '.join(lines)} lines ({dropped:,} dropped);"
        f" {record['vocab_size']:,} {record['subwords']} subwords"
    )


class _Cleaned(NamedTuple):
    """Remaining pairs of a cleaned chunk, number of lines read, and number of drops by reason.

    A pair contains the text of both sides and, in Moses folders, also their tokens and subwords.
    """

    read: int
    pairs: list[tuple[str, ...]]
    dropped: Counter[str]


class _Pipeline:
    """Steps that build a data folder in PART from text; PART/corpus.json stores their results."""

    def __init__(
        self, recipe: Recipe, rows: Sequence[Row], part: Path, workers: int, state: dict[str, Any]
    ) -> None:
        self.recipe, self.rows, self.part, self.workers = recipe, rows, part, workers
        self.state = state
        self.languages = list(dict.fromkeys(code for row in rows for code in row.languages))
        valid = {row.languages for row in rows if row.split == "valid"}
        trained = [row for row in rows if row.split == "train"]
        self.held_out = {r: r._replace(split="valid") for r in trained if r.languages not in valid}
        if recipe.kind != "pairs" and bool(self.held_out) != bool(recipe.hold_out):
            raise ValueError("set exactly one source of validation text: either VALID or HOLD_OUT")
        pairs = ([self.held_out[row], row] if row in self.held_out else [row] for row in rows)
        self.all_rows = [row for pair in pairs for row in pair]

    def step(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run a step and record its result, unless it has already finished; return the result."""
        results = self.state["done"]
        if name not in results:
            say(name)
            results[name] = work()
            write_json(self.part / "corpus.json", self.state)
        return dict(results[name])

    def run(self) -> dict[str, Any]:
        """Run the unfinished steps and return the folder's record."""
        recipe = self.recipe
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
        for folder in ("text", "tokenised"):  # versions without pairs of too many subwords
            for path in (self.part / "encoded" / folder).glob("*"):
                path.replace(self.part / folder / path.name)
        return self._record(cleaning, learnt, counts)

    def _sift(
        self,
        work: Callable[[Chunk], _Cleaned],
        sides: Sequence[Path],
        folders: Sequence[str],
        targets: Sequence[Row],
    ) -> tuple[_Cleaned, list[int]]:
        """Clean each chunk with `work`, write the remaining pairs, and count them for each target.

        The second target, if any, receives the held-out pairs.
        """
        read = index = 0
        dropped: Counter[str] = Counter()
        remaining = [0 for _ in targets]
        with naming(self.part), ExitStack() as stack:
            files = [
                [stack.enter_context(path.open("wb")) for path in self._texts(row, folders)]
                for row in targets
            ]
            for chunk in map_in_order(work, chunks(sides), self.workers):
                read += chunk.read
                dropped += chunk.dropped
                for pair in chunk.pairs:
                    target = int(len(targets) > 1 and self._is_held_out(index))
                    index += 1
                    remaining[target] += 1
                    for file, line in zip(files[target], pair, strict=True):
                        file.write(f"{line}\n".encode())
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in dropped.items())
        reasons = f"; dropped: {reasons}" if reasons else ""
        for row, count in zip(targets, remaining, strict=True):
            if not count:
                raise ValueError(
                    f"no line of {' and '.join(map(str, sides))} remains for {row.split} ({read:,}"
                    f" lines{reasons}); provide more text, or widen the limits"
                )
        say(f"  {read:,} lines{reasons}")
        return _Cleaned(read, [], dropped), remaining

    def _clean(self, row: Row) -> dict[str, Any]:
        """Write a row's cleaned text (and Moses tokens); return the line counts by text name."""
        recipe, sides = self.recipe, row.sides()
        work = partial(_clean_chunk, paths=sides, row=row, recipe=recipe)
        folders = ["text", "tokenised"] if recipe.kind == "moses" else ["text"]
        targets = [row, self.held_out[row]] if row in self.held_out else [row]
        cleaned, lines = self._sift(work, sides, folders, targets)
        counts = {"read": cleaned.read, "kept": lines[0], "dropped": dict(cleaned.dropped)}
        result: dict[str, Any] = {text_name(recipe, row): counts}
        for target, count in zip(targets[1:], lines[1:], strict=True):
            result[text_name(recipe, target)] = {"kept": count, "held_out_of": "train"}
        return result

    def _texts(self, row: Row, folders: Sequence[str]) -> list[Path]:
        name = text_name(self.recipe, row)
        for folder in folders:
            (self.part / folder).mkdir(parents=True, exist_ok=True)
        return [
            self.part / folder / f"{name}.{code}" for folder in folders for code in row.languages
        ]

    def _is_held_out(self, index: int) -> bool:
        """Return True if the training pair with this index is held out for validation.

        fairseq needs validation text for every language pair in training. In a language pair
        without any (OPUS-100 has five), every 1,000th sentence pair is held out, up to 100 in all.
        """
        if self.recipe.kind == "pairs":
            return index % 1000 == 0 and index < 100_000
        return (index + 1) % self.recipe.hold_out == 0

    def _train_files(self, folder: str, languages: Sequence[str]) -> list[Path]:
        return [
            self.part / folder / f"{text_name(self.recipe, row)}.{language}"
            for language in languages
            for row in self.rows
            if row.split == "train" and language in row.languages
        ]

    def _learn(self, cleaning: Mapping[str, Any]) -> dict[str, Any]:
        recipe = self.recipe
        if recipe.kind == "moses":
            files = self._train_files("tokenised", self.languages)
            words = binarise.count_words(files, self.workers)
            codes = moses.learn_codes(dict(words), recipe.merges, self.part / "bpe.codes")
            say(f"  {codes:,} of {recipe.merges:,} byte-pair codes from {len(words):,} words")
            return {}
        lines = {
            language: sum(
                cleaning[text_name(recipe, row)]["kept"]
                for row in self.rows
                if row.split == "train" and language in row.languages
            )
            for language in sorted(self.languages)
        }
        if recipe.kind == "pairs":
            sample = subwords.allot(lines, recipe.sample, recipe.temperature)
            texts = (self._sample([code], sample[code], lines[code]) for code in lines)
            self._learn_model("spm", self.languages, chain.from_iterable(texts))
            return {"sample": sample}
        models = {f"spm.{language}": [language] for language in self.languages}
        if recipe.joint:
            models = {"spm": self.languages}
        for name, languages in models.items():
            total = sum(lines[language] for language in languages)
            text = self._sample(languages, min(recipe.sample, total), total)
            self._learn_model(name, languages, text)
        return {}

    def _sample(self, languages: Sequence[str], count: int, total: int) -> Iterator[str]:
        """Return `count` evenly spaced lines of the `total` training lines in these languages."""
        texts = map(read_lines, self._train_files("text", languages))
        return subwords.spread(chain.from_iterable(texts), count, total)

    def _learn_model(self, name: str, languages: Sequence[str], text: Iterable[str]) -> None:
        """Train a sentencepiece model, and write its fairseq dictionaries."""
        subwords.train_model(text, self.part / name, self.recipe)
        model = subwords.load_model(self.part / f"{name}.model")
        names = [f"dict.{code}.txt" for code in languages]
        for dictionary in names if self.recipe.kind == "pair" else ["dict.txt"]:
            subwords.write_dictionary(model, self.part / dictionary)

    def _encode(self, row: Row, cleaned: Mapping[str, Any]) -> dict[str, Any]:
        """Write the subwords, text and Moses tokens of a row's pairs that are within the limits."""
        is_limited = self.recipe.follows == "wmt14" and row.split in ("train", "valid")
        forms = self._texts(row, ["text", "tokenised"])
        limits = self.recipe if is_limited else None
        work = partial(_encode_chunk, paths=forms, codes=self.part / "bpe.codes", limits=limits)
        folders = ["encoded/text", "encoded/tokenised", "encoded"]
        result, (lines,) = self._sift(work, forms, folders, [row])
        dropped = Counter(cleaned.get("dropped", {})) + result.dropped
        return {row.split: {**cleaned, "kept": lines, "dropped": dict(dropped)}}

    def _write_dictionaries(self) -> dict[str, Any]:
        """Write a fairseq dictionary of training subwords for each language; return the sizes."""
        recipe, sizes = self.recipe, {}
        for language in self.languages:
            path = self.part / f"dict.{language}.txt"
            codes = self.languages if recipe.joint else [language]
            files = self._train_files("encoded", codes)
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
            counts[language] = binarise.binarise(*paths, self.workers)
        return counts

    def _record(
        self, cleaning: dict[str, Any], learnt: dict[str, Any], counts: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the record that `DataFolder` reads; for many pairs, also write languages.txt."""
        recipe = self.recipe
        record: dict[str, Any] = {"subwords": recipe.subwords, "vocab_size": recipe.vocab_size}
        lines: dict[str, Any] = {row.split: {} for row in self.all_rows}
        for row in self.all_rows:
            lines[row.split][row.pair] = cleaning[text_name(recipe, row)]["kept"]
        if recipe.kind != "pairs":
            lines = {split: sum(pairs.values()) for split, pairs in lines.items()}
        if recipe.kind == "pairs":
            languages = sorted(self.languages)
            write_text(self.part / "languages.txt", "".join(f"{name}\n" for name in languages))
            directions = {
                split: sorted(
                    "-".join(order) for pair in pairs for order in permutations(pair.split("-"))
                )
                for split, pairs in lines.items()
            }
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
    """Clean a chunk of training text, or select the lines of a chunk of valid or test text.

    The valid and test splits keep all lines, except that blank lines are removed from monolingual
    text, because they contain nothing to predict.
    """
    dropped: Counter[str] = Counter()
    pairs = []
    train = row.split == "train"
    for text in chunk.decode(paths):
        reason = None
        lines = tuple(line.replace("\r", " ") for line in text)
        if recipe.kind == "moses":
            sides = zip(text, row.languages, strict=True)
            tokens = [moses.tokenise(*side, recipe, train) for side in sides]
            if train and recipe.follows != "wmt14":
                reason = moses.why_dropped(tokens[0], tokens[1], recipe)
            lines += tuple(tokens)
        elif train:
            lines = tuple(map(normalise, text))
            reason = why_dropped(lines[0], lines[-1], recipe)
        elif recipe.kind == "language" and is_blank(text[0]):
            reason = "blank"
        if reason:
            dropped[reason] += 1
        else:
            pairs.append(lines)
    return _Cleaned(len(chunk.sides[0]), pairs, dropped)


def _encode_chunk(
    chunk: Chunk, paths: Sequence[Path], codes: Path, limits: Recipe | None
) -> _Cleaned:
    """Encode the tokens of a chunk as subwords, and drop pairs that exceed the limits."""
    dropped: Counter[str] = Counter()
    pairs = []
    for forms in chunk.decode(paths):
        source, target = moses.encode_lines(forms[2:], codes)
        if limits and (reason := moses.why_dropped(source, target, limits)):
            dropped[reason] += 1
        else:
            pairs.append((*forms, source, target))
    return _Cleaned(len(chunk.sides[0]), pairs, dropped)


def folder_digests(folder: Path) -> dict[str, str | None]:
    """Map the relative path of each file in a folder, except corpus.json, to its SHA-256 digest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path for path in paths if path.name != "corpus.json"}
    return _digests(names)


def _digests(files: Mapping[str, Path]) -> dict[str, str | None]:
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        return dict(zip(files, pool.map(sha256, files.values()), strict=True))
