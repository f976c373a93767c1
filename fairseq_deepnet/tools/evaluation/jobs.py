"""Directions to translate and score: their texts, the processes that work on them, the records.

A language pair is a list of one direction. Each process loads the model once; a direction is cut
into parts, so that all processes have work. A direction is finished when its JSON is there.
"""

from __future__ import annotations

import collections
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tqdm import tqdm

from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.provenance import sha256
from fairseq_deepnet.records import record_of, write_record
from fairseq_deepnet.tools.corpora.folder import BareFolder, DataFolder, Direction
from fairseq_deepnet.tools.corpora.parallel import end_with_parent
from fairseq_deepnet.tools.corpora.text import find_side, read_lines
from fairseq_deepnet.tools.devices import use_gpu
from fairseq_deepnet.tools.evaluation import off_target, scoring
from fairseq_deepnet.tools.translation.engines import WINDOW, Engine

_SHARES: Final = 8
"""Parts of a direction for each process, so that none waits long for the last."""
_FEWEST: Final = 16
"""Lines of a part."""
_FEW_SENTENCES: Final = 20
_NEARLY_ALL: Final = 0.9


class Texts(NamedTuple):
    """A direction, what to translate, and what to score it against."""

    direction: Direction
    source: Path
    reference: Path


def texts_of_folder(folder: DataFolder, split: str) -> list[Texts]:
    """Return the texts of every direction of a split; FileNotFoundError where there are none."""
    directions = folder.directions(split)
    if not directions and isinstance(folder, BareFolder):
        raise FileNotFoundError(
            f"{shown(folder.path)} has no raw text to score against: name a folder of"
            f" {split}.A-B.A and {split}.A-B.B with --text"
        )
    if not directions:
        splits = {path.name.partition(".")[0] for path in (folder.path / "text").glob("*.*")}
        raise FileNotFoundError(
            f"{shown(folder.path)} has no {split} set: choose a split with --split (SPLIT=) from"
            f" {', '.join(sorted(splits)) or 'none'}, give preprocess.sh a TEST set, or name a"
            " folder of text with --text (TEXT=)"
        )
    return [
        Texts(direction, *(folder.text(split, direction, language) for language in direction))
        for direction in directions
    ]


def texts_in(place: Path, split: str, folder: DataFolder) -> list[Texts]:
    """Return the texts that `place` has of the directions which a model of this data folder has:
    SPLIT.A-B.A and SPLIT.A-B.B, plain or .gz.

    They serve B-A too, where there is no SPLIT.B-A.B. Raises ValueError where there is no text, or
    for a language that is not the folder's; FileNotFoundError for a side that is not there.
    """
    names = {path.name.removesuffix(".gz") for path in place.glob(f"{split}.*-*.*")}
    one = None if folder.is_multilingual else folder.directions("train")
    found: dict[Direction, Texts] = {}
    for name in sorted(names):
        pair, source = name.removeprefix(f"{split}.").rsplit(".", 1)
        first, _, second = pair.partition("-")
        if source not in (first, second):
            continue
        if source != first and f"{split}.{second}-{first}.{second}" in names:
            continue
        direction = Direction(source, second if source == first else first)
        unknown = sorted(set(direction) - set(folder.languages))
        if unknown:
            raise ValueError(f"{place / name}: the model knows no {', '.join(unknown)}")
        if f"{split}.{pair}.{direction.target}" not in names:
            raise FileNotFoundError(
                f"{place / name} has no other side {place / f'{split}.{pair}.{direction.target}'}"
            )
        if one is None or direction in one:
            sides = (find_side(place / f"{split}.{pair}", language) for language in direction)
            found[direction] = Texts(direction, *sides)
    if not found:
        raise ValueError(
            f"{place} has no text to translate: {split}.A-B.A and {split}.A-B.B are expected"
        )
    return list(found.values())


@dataclass(frozen=True)
class Job:
    """One direction: what to translate, what to score it against, and where results go.

    Args:
        record: the JSON that says it is finished; the translations lie beside it.
        folder: the model's data folder; one of Moses tokens is translated as it was binarised.
        request: all that decides the score, besides the texts and the tokenizer.
    """

    direction: Direction
    source: Path
    reference: Path
    record: Path
    folder: DataFolder
    split: str
    tokenizer: str | None
    request: dict[str, Any]

    @property
    def zero_shot(self) -> bool:
        """True if the model was not trained in this direction."""
        return self.direction not in self.folder.directions("train")

    @property
    def files(self) -> list[Path]:
        """The files that the score follows from."""
        if not self.folder.is_moses:
            return [self.source, self.reference]
        binarised = self.folder.binarised_source(self.split)
        tokens = self.folder.tokenised(self.split, self.direction.target)
        return [self.source, self.reference, tokens, *binarised]

    def wanted(self) -> dict[str, Any]:
        """Return the request with the digests of its files."""
        names = ("source", "reference", "tokens", "bin", "idx")
        digests = dict(zip(names, map(sha256, self.files), strict=False))
        return self.request | digests | {"tokenizer": self.tokenizer}

    def is_done(self) -> bool:
        """Return True if this very score is recorded, and its hypotheses are there."""
        if not (self.record.is_file() and self.record.with_suffix(".txt").is_file()):
            return False
        return record_of(self.record, self.wanted(), "remove it to score again") is not None

    def lines(self) -> list[str]:
        """Return what an engine is given: text, or subwords of Moses tokens.

        Raises ValueError where the reference has another number of lines.
        """
        moses = self.folder.is_moses
        lines = self.folder.subwords(self.split) if moses else list(read_lines(self.source))
        references = sum(1 for _ in read_lines(self.reference))
        if len(lines) != references:
            raise ValueError(
                f"{self.source} has {len(lines):,} lines and {self.reference} {references:,}:"
                " both must be translations line by line; create the data folder again"
            )
        return lines


_engine: Engine | Exception | None = None
"""This process's model, or why there is none."""


def _start(load: Callable[..., Engine], threads: int, devices: Any) -> None:
    """Load the model in a new process, on a device of its own."""
    global _engine
    import torch

    end_with_parent()
    device = devices.get()
    use_gpu(device)
    torch.set_num_threads(threads)
    try:
        _engine = load(cpu=device is None)
    except (ValueError, FileNotFoundError) as error:
        _engine = error  # raised here it would be lost: the pool would only say that it broke


class Translated(NamedTuple):
    """Translations, how many of the lines were cut, and the seconds that it took."""

    lines: list[str]
    cut: int
    seconds: float


def translate(lines: Sequence[str], direction: Direction) -> Translated:
    """Translate lines with this process's model."""
    if isinstance(_engine, Exception):
        raise _engine
    assert _engine is not None
    started, _engine.cut = time.monotonic(), 0
    found = _engine.translate(lines, direction)
    return Translated(found, _engine.cut, time.monotonic() - started)


def finish(job: Job, facts: dict[str, Any], found: Translated) -> dict[str, Any]:
    """Score a direction; writes hypotheses, then the JSON, and returns it.

    Args:
        facts: what the record says of the model and the search.
    """
    folder, target = job.folder, job.direction.target
    references = list(read_lines(job.reference))
    hypotheses = folder.decode(found.lines, target) if folder.is_moses else found.lines
    scores = scoring.score(
        hypotheses,
        references,
        target_language=target,
        tokenizer=job.tokenizer,
        lowercase=folder.is_lowercase,
    )
    if folder.is_moses:
        tokens = list(read_lines(folder.tokenised(job.split, target)))
        scores |= scoring.score_tokens(found.lines, tokens, folder.is_lowercase)
    if folder.is_multilingual:
        try:
            told = off_target.off_target_record(hypotheses, references, target, folder.languages)
        except ValueError as error:  # an extra: a score without this rate is one still
            told = {"off_target": None, "off_target_missing": str(error)}
        scores |= told
    elif said := degenerate(hypotheses):
        say(said)
    text = job.record.with_suffix(".txt")
    scores |= facts | {
        "direction": str(job.direction),
        "split": job.split,
        "reference": shown(job.reference),
        "zero_shot": job.zero_shot,
        "cut": found.cut,
        "seconds": round(found.seconds, 1),
        "hypotheses": text.name,
        "request": job.wanted(),
    }
    text.parent.mkdir(parents=True, exist_ok=True)
    write_text(text, "".join(f"{line}\n" for line in hypotheses))
    write_record(job.record, scores)
    return scores


def degenerate(hypotheses: Sequence[str]) -> str:
    """Say so if nearly all translations are the same: the model ignores its source."""
    text, count = collections.Counter(hypotheses).most_common(1)[0]
    if len(hypotheses) < _FEW_SENTENCES or count < _NEARLY_ALL * len(hypotheses):
        return ""
    return (
        f"{count:,} of {len(hypotheses):,} translations are {text[:60]!r}: the model has not"
        " learnt to translate; train longer, or look at its loss (deepnet plot RUN)"
    )


@dataclass
class _Work:
    """A job while its parts are translated: the translations so far, by line."""

    job: Job
    size: int
    lines: dict[int, str] = field(default_factory=dict)
    cut: int = 0
    seconds: float = 0.0

    def add(self, numbers: Sequence[int], part: Translated) -> Translated | None:
        """Add a part; return everything once it is complete."""
        self.lines |= zip(numbers, part.lines, strict=True)
        self.cut += part.cut
        self.seconds += part.seconds
        if len(self.lines) < self.size:
            return None
        return Translated([self.lines[n] for n in range(self.size)], self.cut, self.seconds)


def parts_of(lines: Sequence[str], processes: int, threads: int) -> Iterator[list[int]]:
    """Yield the numbers of the lines of each part: the longest lines first, alike together."""
    share = math.ceil(len(lines) / (_SHARES * processes))
    size = min(WINDOW * threads, max(_FEWEST, share))
    order = sorted(range(len(lines)), key=lambda number: -len(lines[number]))
    yield from (order[start : start + size] for start in range(0, len(order), size))


def translate_all(
    jobs: Sequence[Job],
    facts: dict[str, Any],
    load: Callable[..., Engine],
    threads: int,
    processes: int,
    gpus: int,
    done: int = 0,
    preload: Sequence[str] = (),
) -> None:
    """Translate and score, with a line on standard error for each of several directions.

    Args:
        facts: what the records say of the model and the search.
        load: loads the model; called in each process with `cpu`, True to leave GPUs alone.
        threads: of each process.
        processes: how many at once; each holds the model.
        gpus: GPUs that they share; 0 for the CPU.
        done: directions that were scored before.
        preload: modules that `load` imports.
    """
    # what is missing is said before hours of translation, not after
    for name in {job.tokenizer or scoring.tokenizer_of(job.direction.target) for job in jobs}:
        scoring.check_tokenizer(name)
    # processes that are forked from one which has imported these modules start at once; but what
    # asks for a GPU while it is imported makes it useless to them
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *(() if gpus else preload)])
    devices = context.Queue()
    for index in range(processes):
        devices.put(index % gpus if gpus else None)
    total = done + len(jobs)
    working: dict[Future[Any], tuple[_Work, list[int]]] = {}
    pause = 1 if sys.stderr.isatty() else 10
    bar = tqdm(unit=" sentences", mininterval=pause, disable=len(jobs) > 1, leave=False)

    def collect() -> None:
        nonlocal done
        for future in wait(working, return_when=FIRST_COMPLETED).done:
            work, numbers = working.pop(future)
            result = future.result()
            if isinstance(result, dict):
                done += 1
                if total > 1:
                    say(f"{done}/{total} {work.job.direction}: {_line(result)}")
            else:
                bar.update(len(numbers))
                if whole := work.add(numbers, result):
                    working[pool.submit(finish, work.job, facts, whole)] = work, []

    with ProcessPoolExecutor(processes, context, _start, (load, threads, devices)) as pool, bar:
        try:
            for job in sorted(jobs, key=lambda job: -job.source.stat().st_size):
                lines = job.lines()
                work, bar.total = _Work(job, len(lines)), len(lines)
                for numbers in parts_of(lines, processes, threads):
                    while len(working) > 2 * processes:  # not all texts in memory at once
                        collect()
                    part = [lines[number] for number in numbers]
                    working[pool.submit(translate, part, job.direction)] = work, numbers
            while working:
                collect()
        except BrokenProcessPool as error:
            raise ValueError(
                "a process that translates was killed, for want of memory perhaps; what is scored"
                " stays scored: run again with fewer PROCESSES or a smaller BATCH"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _line(scores: dict[str, Any]) -> str:
    parts = [scoring.numbers(scores, ", "), f"{scores['lines']:,} lines"]
    if scores.get("off_target") is not None:
        parts.append(f"{100 * scores['off_target']:.1f}% off-target")
    parts += ["zero-shot"] if scores["zero_shot"] else []
    parts.append(f"{scores['seconds']:.0f} s")
    if scores["cut"]:
        parts.append(f"{scores['cut']} source lines were cut to what the model takes")
    return ", ".join(parts)
