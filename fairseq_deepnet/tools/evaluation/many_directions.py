"""Translate and score every direction of a multilingual model: in parallel, and resumable.

Each process loads the model once and takes one direction after another, the longest first. A
direction is finished when its JSON is there; one that was scored the same way before is left alone.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.provenance import sha256
from fairseq_deepnet.records import read_record, write_record
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.parallel import end_with_parent
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.evaluation import off_target, scoring
from fairseq_deepnet.tools.translation.ctranslate2_engine import CTranslate2Model
from fairseq_deepnet.tools.translation.engine import Engine, Search
from fairseq_deepnet.tools.translation.fairseq_engine import Translator, use_device


@dataclass(frozen=True)
class Job:
    """One direction: what to translate, what to score it against, and where results go."""

    direction: Direction
    source: Path
    reference: Path
    zero_shot: bool
    tokenizer: str | None
    languages: tuple[str, ...]
    out: Path
    request: dict[str, Any]
    """All that decides the score, besides the texts; where it is as recorded, nothing is done."""

    @property
    def record(self) -> Path:
        """The JSON that says it is finished."""
        return self.out / f"{self.direction}.json"

    def wanted(self) -> dict[str, Any]:
        """The request with the digests of both texts."""
        texts = {"source": sha256(self.source), "reference": sha256(self.reference)}
        return self.request | texts | {"tokenizer": self.tokenizer}

    def is_done(self) -> bool:
        """Whether this very score is recorded, and its hypotheses are there."""
        if not self.record.is_file() or not self.record.with_suffix(".txt").is_file():
            return False
        recorded = read_record(self.record, remedy="remove it to score again")
        return bool(recorded.get("request") == self.wanted())


@dataclass(frozen=True)
class EngineSettings:
    """What every process loads.

    Arguments:
        arguments: of fairseq-generate
        threads: of each process
        exported: a CTranslate2 model, which is loaded instead of the checkpoint
        search: how it searches
    """

    checkpoint: Path
    folder: Path
    arguments: tuple[str, ...]
    threads: int
    exported: Path | None = None
    search: Search = field(default_factory=Search)


_loaded: Engine | Exception | None = None
"""This process's model, or why there is none."""


def _start(settings: EngineSettings, devices: Any) -> None:
    """Load the model in a new process, on a device of its own."""
    global _loaded
    import torch

    end_with_parent()
    device = devices.get()
    use_device(device)
    torch.set_num_threads(settings.threads)
    try:
        cpu = device is None
        if settings.exported is not None:
            _loaded = CTranslate2Model(
                settings.exported, settings.search, threads=settings.threads, cpu=cpu
            )
        else:
            folder = DataFolder.open(settings.folder)
            _loaded = Translator(settings.checkpoint, folder, settings.arguments, cpu)
    except (ValueError, FileNotFoundError) as error:
        _loaded = error  # raised here it would be lost: the pool would only say that it broke


def _work(job: Job) -> dict[str, Any]:
    """Translate, score and record one direction."""
    if isinstance(_loaded, Exception):
        raise _loaded
    assert _loaded is not None
    return finish(job, _loaded)


def finish(job: Job, translator: Engine) -> dict[str, Any]:
    """Translate and score one direction; writes hypotheses, then the JSON, and returns it."""
    started = time.monotonic()
    sources, references = list(read_lines(job.source)), list(read_lines(job.reference))
    translator.cut = 0
    hypotheses = translator.translate(sources, job.direction)
    seconds = round(time.monotonic() - started, 1)
    target = job.direction.target
    scores = scoring.score(hypotheses, references, target_language=target, tokenizer=job.tokenizer)
    try:
        scores |= off_target.off_target_record(hypotheses, references, target, job.languages)
    except ValueError as error:  # the identifier is an extra: a score without its rate is one still
        scores |= {"off_target": None, "off_target_missing": str(error)}
    scores |= {
        "direction": str(job.direction),
        "reference": shown(job.reference),
        "zero_shot": job.zero_shot,
        "cut": translator.cut,
        "seconds": seconds,
        "request": job.wanted(),
    }
    job.out.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in hypotheses)
    write_text(job.record.with_suffix(".txt"), text)
    write_record(job.record, scores)
    return scores


def translate_all(jobs: Sequence[Job], settings: EngineSettings, processes: int, gpus: int) -> None:
    """Do what is not done yet, with a line on standard error for each direction.

    Arguments:
        processes: how many at once; each holds the model
        gpus: GPUs that they share; 0 for the CPU
    """
    todo = [job for job in jobs if not job.is_done()]
    if len(todo) < len(jobs):
        say(f"{len(jobs) - len(todo)} of {len(jobs)} directions are scored already")
    if not todo:
        return
    # what is missing is said before hours of translation, not after
    for name in {job.tokenizer or scoring.tokenizer_of(job.direction.target) for job in todo}:
        scoring.check_tokenizer(name)
    todo.sort(key=lambda job: -job.source.stat().st_size)
    processes = min(processes, len(todo))
    # processes that are forked from one which has imported this module start at once
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    devices = context.Queue()
    for index in range(processes):
        devices.put(index % gpus if gpus else None)
    done = len(jobs) - len(todo)
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_start, initargs=(settings, devices)
    ) as pool:
        working = {pool.submit(_work, job): job for job in todo}
        try:
            for result in as_completed(working):
                scores = result.result()
                done += 1
                say(f"{done}/{len(jobs)} {working[result].direction}: {_line(scores)}")
        except BrokenProcessPool as error:
            raise ValueError(
                "a process that translates was killed, for want of memory perhaps; what is scored"
                " stays scored: run again with fewer PROCESSES or a smaller BATCH"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _line(scores: dict[str, Any]) -> str:
    share = scores.get("off_target")
    return (
        f"BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}, {scores['lines']:,} lines"
        + (f", {100 * share:.1f}% off-target" if share is not None else "")
        + (", zero-shot" if scores["zero_shot"] else "")
        + f", {scores['seconds']:.0f} s"
        + (f"; {scores['cut']} source lines were cut to what the model takes" * bool(scores["cut"]))
    )


class Texts(NamedTuple):
    """A direction, what to translate, and what to score it against."""

    direction: Direction
    source: Path
    reference: Path


def texts_of_folder(folder: DataFolder, split: str, only: Sequence[str]) -> list[Texts]:
    """The texts of every direction of a split; `only` names some of them.

    Raises ValueError for a split or a direction that is not there.
    """
    directions = folder.directions(split)
    if not directions:
        raise ValueError(f"{folder.path} has no {split} text; set SPLIT to one that it has")
    chosen = [Direction.parse(name) for name in only] or directions
    unknown = [str(direction) for direction in chosen if only and direction not in directions]
    if unknown:
        raise ValueError(f"{folder.path} has no {split} text of {', '.join(unknown)}")
    return [
        Texts(direction, *(folder.text(split, direction, language) for language in direction))
        for direction in chosen
    ]


def texts_in(place: Path, split: str, languages: Sequence[str], only: Sequence[str]) -> list[Texts]:
    """The texts of every direction that `place` has both sides of: SPLIT.A-B.A and SPLIT.A-B.B.

    Raises ValueError where there is none, or for a language that is not among `languages`.
    """
    found = []
    for path in sorted(place.glob(f"{split}.*-*.*")):
        pair, source = path.name.removeprefix(f"{split}.").rsplit(".", 1)
        first, _, second = pair.partition("-")
        if source not in (first, second):
            continue
        own = place / f"{split}.{second}-{first}.{second}"
        if source != first and own.is_file():
            continue  # the other direction has a text of its own
        direction = Direction(source, second if source == first else first)
        reference = path.with_name(f"{split}.{pair}.{direction.target}")
        unknown = sorted(set(direction) - set(languages))
        if unknown:
            raise ValueError(f"{path}: the model knows no {', '.join(unknown)}")
        if not reference.is_file():
            raise FileNotFoundError(f"{path} has no other side {reference}")
        if not only or str(direction) in only:
            found.append(Texts(direction, path, reference))
    if not found:
        raise ValueError(
            f"{place} has no text to translate: {split}.A-B.A and {split}.A-B.B are expected"
        )
    return found


def make_jobs(
    folder: DataFolder,
    texts: Sequence[Texts],
    tokenizer: str | None,
    out: Path,
    request: dict[str, Any],
) -> list[Job]:
    """A job for every direction; what was trained is what the model's own folder says."""
    trained, languages = set(folder.directions("train")), tuple(folder.languages)
    return [
        Job(*text, text.direction not in trained, tokenizer, languages, out, request)
        for text in texts
    ]
