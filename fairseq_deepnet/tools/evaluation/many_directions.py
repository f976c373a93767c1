"""Translate and score every direction of a multilingual model: in parallel, and resumable.

Each process loads the model once and takes one direction after another, the longest first. A
direction is finished when its JSON is there; one that was scored the same way before is left alone.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.provenance import sha256
from fairseq_deepnet.records import record_of, write_record
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.parallel import end_with_parent
from fairseq_deepnet.tools.corpora.text import find_side, read_lines
from fairseq_deepnet.tools.devices import use_gpu
from fairseq_deepnet.tools.evaluation import off_target, scoring
from fairseq_deepnet.tools.evaluation.direction_scores import read_directions
from fairseq_deepnet.tools.tables import listed
from fairseq_deepnet.tools.translation.engine import Engine


class Texts(NamedTuple):
    """A direction, what to translate, and what to score it against."""

    direction: Direction
    source: Path
    reference: Path


def texts_of_folder(folder: DataFolder, split: str, only: Sequence[str]) -> list[Texts]:
    """Return the texts of every direction of a split; `only` names some of them.

    Raises ValueError for a split or a direction that is not there.
    """
    directions = folder.directions(split)
    if not directions:
        raise ValueError(f"{folder.path} has no {split} text; set SPLIT to one that it has")
    chosen = [Direction.parse(name) for name in only] or directions
    unknown = [str(direction) for direction in chosen if direction not in directions]
    if unknown:
        listed_directions = listed([str(direction) for direction in directions], 8)
        raise ValueError(
            f"{folder.path} has no {split} text of {', '.join(unknown)}, but of"
            f" {listed_directions}; name a folder with it by --text (TEXT=)"
        )
    return [
        Texts(direction, *(folder.text(split, direction, language) for language in direction))
        for direction in chosen
    ]


def texts_in(place: Path, split: str, folder: DataFolder, only: Sequence[str]) -> list[Texts]:
    """Return the texts that `place` has of the directions which a model of this data folder has:
    SPLIT.A-B.A and SPLIT.A-B.B, plain or .gz; `only` names some of them.

    They serve B-A too, where there is no SPLIT.B-A.B. Raises ValueError where there is no text, or
    none of a direction that is named, or for a language that is not the folder's;
    FileNotFoundError for a side that is not there.
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
    wanted = list(dict.fromkeys(map(Direction.parse, only))) or list(found)
    if not wanted:
        raise ValueError(
            f"{place} has no text to translate: {split}.A-B.A and {split}.A-B.B are expected"
        )
    lacking = [str(direction) for direction in wanted if direction not in found]
    if lacking:
        alone = f", and the model translates {listed(one)} alone" if one else ""
        raise ValueError(f"{place} has no {split} text of {', '.join(lacking)}{alone}")
    return [found[direction] for direction in wanted]


@dataclass(frozen=True)
class Job:
    """One direction: what to translate, what to score it against, and where results go.

    Args:
        request: all that decides the score, besides the texts and the tokenizer.
    """

    direction: Direction
    source: Path
    reference: Path
    zero_shot: bool
    tokenizer: str | None
    languages: tuple[str, ...]
    out: Path
    request: dict[str, Any]

    @property
    def record(self) -> Path:
        """The JSON that says it is finished."""
        return self.out / f"{self.direction}.json"

    def wanted(self) -> dict[str, Any]:
        """Return the request with the digests of both texts."""
        texts = {"source": sha256(self.source), "reference": sha256(self.reference)}
        return self.request | texts | {"tokenizer": self.tokenizer}

    def is_done(self) -> bool:
        """Return True if this very score is recorded, and its hypotheses are there."""
        if not (self.record.is_file() and self.record.with_suffix(".txt").is_file()):
            return False
        return record_of(self.record, self.wanted(), "remove it to score again") is not None


def make_jobs(
    folder: DataFolder,
    texts: Sequence[Texts],
    tokenizer: str | None,
    out: Path,
    request: dict[str, Any],
) -> list[Job]:
    """Return a job for every direction; what was trained is what the model's own folder says."""
    trained, languages = set(folder.directions("train")), tuple(folder.languages)
    return [
        Job(*text, text.direction not in trained, tokenizer, languages, out, request)
        for text in texts
    ]


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


def _work(job: Job) -> dict[str, Any]:
    """Translate, score and record one direction."""
    if isinstance(_engine, Exception):
        raise _engine
    assert _engine is not None
    return finish(job, _engine)


def finish(job: Job, engine: Engine) -> dict[str, Any]:
    """Translate and score one direction; writes hypotheses, then the JSON, and returns it."""
    started = time.monotonic()
    sources, references = list(read_lines(job.source)), list(read_lines(job.reference))
    engine.cut = 0
    hypotheses = engine.translate(sources, job.direction)
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
        "cut": engine.cut,
        "seconds": seconds,
        "request": job.wanted(),
    }
    job.out.mkdir(parents=True, exist_ok=True)
    write_text(job.record.with_suffix(".txt"), "".join(f"{line}\n" for line in hypotheses))
    write_record(job.record, scores)
    return scores


def translate_all(
    jobs: Sequence[Job], load: Callable[..., Engine], threads: int, processes: int, gpus: int
) -> None:
    """Do what is not done yet, with a line on standard error for each direction.

    Args:
        load: loads the model; called in each process with `cpu`, True to leave GPUs alone.
        threads: of each process.
        processes: how many at once; each holds the model.
        gpus: GPUs that they share; 0 for the CPU.
    """
    todo = [job for job in jobs if not job.is_done()]
    if len(todo) < len(jobs):
        say(f"{len(jobs) - len(todo)} of {len(jobs)} directions are scored already")
    if not todo:
        return
    # what is missing is said before hours of translation, not after
    for name in {job.tokenizer or scoring.tokenizer_of(job.direction.target) for job in todo}:
        scoring.check_tokenizer(name)
    # who is killed leaves no summary that says that all is there
    out = todo[0].out
    out.mkdir(parents=True, exist_ok=True)
    known = {*read_directions(out), *(job.direction for job in jobs)}
    write_record(out / "summary.json", {"complete": False, "expected": len(known)})
    todo.sort(key=lambda job: -job.source.stat().st_size)
    processes = min(processes, len(todo))
    # processes that are forked from one which has imported this module start at once
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    devices = context.Queue()
    for index in range(processes):
        devices.put(index % gpus if gpus else None)
    done = len(jobs) - len(todo)
    with ProcessPoolExecutor(processes, context, _start, (load, threads, devices)) as pool:
        working = {pool.submit(_work, job): job for job in todo}
        try:
            for result in as_completed(working):
                line = _line(result.result())
                done += 1
                say(f"{done}/{len(jobs)} {working[result].direction}: {line}")
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
    parts += ["zero-shot"] * scores["zero_shot"] + [f"{scores['seconds']:.0f} s"]
    cut = f"; {scores['cut']} source lines were cut to what the model takes"
    return ", ".join(parts) + cut * bool(scores["cut"])
