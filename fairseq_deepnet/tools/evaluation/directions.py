"""Directions of a model: translated by several processes, scored, averaged, shown as a table.

A language pair is a list of one direction. Each process loads the model once; a direction is cut
into parts, so that all processes have work. A direction is finished when its JSON exists. An
average over a group states how many of the group's directions it contains.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from tqdm import tqdm

from fairseq_deepnet.ended import end_with_parent
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.records import record_of, sha256, write_record
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.devices import use_gpu
from fairseq_deepnet.tools.evaluation import off_target, scoring
from fairseq_deepnet.tools.evaluation.scoring import METRICS
from fairseq_deepnet.tools.languages import RESOURCE_CLASSES, resource_class
from fairseq_deepnet.tools.scores import SUMMARY, Score
from fairseq_deepnet.tools.tables import listed, markdown
from fairseq_deepnet.tools.translation.engines import WINDOW, Engine

ENGLISH: Final = "en"
SHARES: Final = ("off_target", "off_target_floor")
"""Share of lines in another language than the target's, 0 to 1; and the same of the reference,
which is the identifier's error."""
_TEXTS: Final = ("source", "reference", "tokens", "bin", "idx")
"""Keys of a request for the digests of a job's files."""
_SEARCH: Final = ("split", "beam", "lenpen", "engine", "quantization", "averaged", "updates")
"""Facts that a summary takes from its directions."""
_GROUPS: Final = (
    *("X-En", "En-X", "all supervised", "zero-shot", "all"),
    *(f"{side}{level} resource" for level in RESOURCE_CLASSES for side in ("", "X-En ", "En-X ")),
)


@dataclass(frozen=True)
class Job:
    """A direction to be scored.

    Args:
        record: JSON to be written; the translations are beside it.
        folder: the model's data; text of Moses tokens is translated as it was binarised.
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
    def files(self) -> list[Path]:
        """The files that decide the score."""
        if not self.folder.is_moses:
            return [self.source, self.reference]
        binarised = self.folder.binarised_source(self.split)
        tokens = self.folder.tokenised(self.split, self.direction.target)
        return [self.source, self.reference, tokens, *binarised]

    def wanted(self) -> dict[str, Any]:
        """Return the request with the digests of its files."""
        digests = dict(zip(_TEXTS, map(sha256, self.files), strict=False))
        return self.request | digests | {"tokenizer": self.tokenizer}

    def is_done(self) -> bool:
        """Return True if this very score is recorded, and its hypotheses exist."""
        has_text = self.record.with_suffix(".txt").is_file()
        remedy = "remove it to score again"
        return has_text and record_of(self.record, self.wanted(), remedy) is not None

    def lines(self) -> list[str]:
        """Return the input of an engine: text, or subwords of Moses tokens.

        Raises ValueError where the reference has another number of lines.
        """
        moses = self.folder.is_moses
        lines = self.folder.subwords(self.split) if moses else list(read_lines(self.source))
        references = sum(1 for _ in read_lines(self.reference))
        if len(lines) != references:
            counts = f"{self.source} has {len(lines):,} lines and {self.reference} {references:,}"
            raise ValueError(f"{counts}: create the data folder again")
        return lines


_engine: Engine | Exception | None = None
"""The model of this process, or the reason why there is none."""


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
        _engine = error  # raised here it would be lost: the pool would only report that it broke


class Translated(NamedTuple):
    """Translations, the number of lines that were cut, and the seconds."""

    lines: list[str]
    cut: int
    seconds: float


def translate(lines: Sequence[str], direction: Direction) -> Translated:
    """Translate lines with the model of this process."""
    if isinstance(_engine, Exception):
        raise _engine
    assert _engine is not None
    started, _engine.cut = time.monotonic(), 0
    texts = _engine.translate(lines, direction)
    return Translated(texts, _engine.cut, time.monotonic() - started)


def finish(job: Job, facts: dict[str, Any], translated: Translated) -> dict[str, Any]:
    """Score a direction; write hypotheses, then the JSON, with `facts` about the search."""
    folder, target = job.folder, job.direction.target
    references = list(read_lines(job.reference))
    moses = folder.is_moses
    hypotheses = folder.decode(translated.lines, target) if moses else translated.lines
    scores = scoring.score(
        hypotheses,
        references,
        target_language=target,
        tokenizer=job.tokenizer,
        lowercase=folder.is_lowercase,
    )
    if moses:
        tokens = list(read_lines(folder.tokenised(job.split, target)))
        scores |= scoring.score_tokens(translated.lines, tokens, folder.is_lowercase)
    if folder.is_multilingual:
        try:
            scores |= off_target.off_target_record(hypotheses, references, target, folder.languages)
        except ValueError as error:  # py3langid is not installed
            scores |= {"off_target": None, "off_target_missing": str(error)}
    scores |= facts | {
        "direction": str(job.direction),
        "split": job.split,
        "reference": shown(job.reference),
        "zero_shot": job.direction not in folder.directions("train"),
        "cut": translated.cut,
        "seconds": round(translated.seconds, 1),
        "hypotheses": f"{job.record.stem}.txt",
        "request": job.wanted(),
    }
    write_text(job.record.with_name(scores["hypotheses"]), "\n".join([*hypotheses, ""]))
    write_record(job.record, scores)
    return scores


def parts_of(lines: Sequence[str], processes: int, threads: int) -> Iterator[list[int]]:
    """Yield the numbers of the lines of each part: the longest lines first, alike together."""
    # eight parts for each process, so that none waits long for the last
    size = min(WINDOW * threads, max(16, math.ceil(len(lines) / (8 * processes))))
    order = sorted(range(len(lines)), key=lambda number: -len(lines[number]))
    yield from (order[start : start + size] for start in range(0, len(order), size))


def translate_all(
    jobs: Sequence[Job],
    facts: dict[str, Any],
    load: Callable[..., Engine],
    threads: int,
    processes: int,
    gpus: int,
    preload: Sequence[str] = (),
) -> None:
    """Translate and score, with a line on standard error for each of several directions.

    Args:
        facts: of the model and the search, for the records.
        load: loads the model in each process; called with `cpu`, True to ignore GPUs.
        threads: of each process.
        gpus: GPUs that the processes share; 0 for the CPU.
        preload: modules that `load` imports.
    """
    # before hours of translation, not after
    for name in {job.tokenizer or scoring.tokenizer_of(job.direction.target) for job in jobs}:
        scoring.check_tokenizer(name)
    # processes forked from one that has imported these modules start at once; but a module that
    # asks for a GPU while it is imported makes that process useless to them
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *(() if gpus else preload)])
    devices = context.Queue()
    for index in range(processes):
        devices.put(index % gpus if gpus else None)
    pause = 1 if sys.stderr.isatty() else 10
    bar = tqdm(unit=" sentences", mininterval=pause, disable=len(jobs) > 1, leave=False)

    def work(job: Job) -> dict[str, Any]:
        lines = job.lines()
        parts = list(parts_of(lines, processes, threads))
        texts = ([lines[number] for number in part] for part in parts)
        results = pool.map(translate, texts, itertools.repeat(job.direction))
        bar.total, translated, cut, seconds = len(lines), dict[int, str](), 0, 0.0
        for part, result in zip(parts, results, strict=True):
            translated |= zip(part, result.lines, strict=True)
            cut, seconds = cut + result.cut, seconds + result.seconds
            bar.update(len(part))
        ordered = [translated[number] for number in range(len(lines))]
        return pool.submit(finish, job, facts, Translated(ordered, cut, seconds)).result()

    ordered = sorted(jobs, key=lambda job: -job.source.stat().st_size)
    pool = ProcessPoolExecutor(processes, context, _start, (load, threads, devices))
    # two jobs at a time: while one is scored, the processes translate the other
    with bar, pool, ThreadPoolExecutor(2) as feeders:
        try:
            for number, scores in enumerate(feeders.map(work, ordered), 1):
                if len(jobs) > 1:
                    say(f"{number}/{len(jobs)} {scores['direction']}: {scoring.numbers(scores)}")
        except BrokenProcessPool as error:
            raise ValueError(
                "a process that translates was killed, for want of memory perhaps: run again with"
                " fewer PROCESSES or a smaller BATCH"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class GroupAverage(NamedTuple):
    """Means of METRICS and SHARES over the scored directions of a group.

    Args:
        present, expected: number of the group's directions that are scored, and of all.
    """

    name: str
    present: int
    expected: int
    means: dict[str, float | None]


class Summary(NamedTuple):
    """A text for people, the averages, and the scores they are of."""

    text: str
    averages: list[GroupAverage]
    scores: list[Score]
    is_complete: bool


class _Entry(NamedTuple):
    """A direction, the facts of its score, empty without one, and the groups that it is part of."""

    direction: Direction
    facts: dict[str, Any]
    groups: list[str]


def summarise(
    folder: Path,
    scores: Mapping[Direction, Score],
    expected: Sequence[Direction] = (),
    training_lines: Mapping[str, int] | None = None,
) -> Summary:
    """Write table.md and summary.json of a folder.

    Args:
        scores: of the folder.
        expected: all directions that are to be scored; by default those that are.
        training_lines: training lines by pair or direction, for the resource classes.

    Raises ValueError without scores, and for scores of different models or settings.
    """
    wanted = dict.fromkeys(expected or sorted(scores))
    entries = [_entry(direction, scores, training_lines or {}) for direction in wanted]
    present = [scores[direction] for direction in wanted if direction in scores]
    missing = [direction for direction in wanted if direction not in scores]
    if not present:
        raise ValueError(f"{folder} has no SRC-TGT.json of the expected directions")
    requests = [
        {key: item for key, item in score.facts.get("request", {}).items() if key not in _TEXTS}
        for score in present
    ]
    if any(request != requests[0] for request in requests):
        raise ValueError(f"{folder} has scores of different models or options; score it again")
    averages = []
    for name in _GROUPS:
        members = [entry.facts for entry in entries if name in entry.groups]
        means: dict[str, float | None] = {}
        for key in (*METRICS, *SHARES):
            values = [facts[key] for facts in members if facts.get(key) is not None]
            means[key] = round(fmean(values), 4) if values else None
        count = sum(map(bool, members))
        averages += [GroupAverage(name, count, len(members), means)] if members else []
    signatures = Counter(score.signatures["bleu"] for score in present)
    counts = (f"{text} ({count} directions)" for text, count in signatures.most_common())
    text = f"BLEU: {'; '.join(counts)}. *: zero-shot.\n\n{_table(averages, entries)}"
    if missing:
        text = (
            f"INCOMPLETE: {len(present)} of {len(wanted)} directions are scored; to be scored:"
            f" {listed(missing, 12)}. Averages marked with ! lack some of their directions."
            f"\n\n{text}"
        )
    write_text(folder / "table.md", f"{text}\n")
    bleu = {item.name: item.means["bleu"] for item in averages}
    summary = {key: present[0].facts.get(key) for key in _SEARCH} | {
        "x-en": bleu.get("X-En"),
        "en-x": bleu.get("En-X"),
        "average": bleu.get("all supervised", bleu["all"]),
        "zero-shot": bleu.get("zero-shot"),
        "complete": not missing,
        "directions": len(present),
        "expected": len(wanted),
        "missing": list(map(str, missing)),
        "lines": sum(score.facts["lines"] for score in present),
        "averages": {
            name: {"directions": count, "expected": of, "complete": count == of, **means}
            for name, count, of, means in averages
        },
        "bleu_signature": "; ".join(sorted(signatures)),
        "request": requests[0],
    }
    write_record(folder / SUMMARY, summary)
    return Summary(text, averages, present, not missing)


def _entry(
    direction: Direction, scores: Mapping[Direction, Score], training_lines: Mapping[str, int]
) -> _Entry:
    """Return an entry; X-En and En-X have no zero-shot directions, as in the paper's Table 2."""
    facts = scores[direction].facts if direction in scores else {}
    reverse = f"{direction.target}-{direction.source}"
    lines = training_lines.get(str(direction), training_lines.get(reverse))
    zero_shot = facts.get("zero_shot")
    if zero_shot is None and training_lines:
        zero_shot = not lines
    if zero_shot:
        return _Entry(direction, facts, ["all", "zero-shot"])
    names = ["all", *([] if zero_shot is None else ["all supervised"])]
    sides = [""]
    if ENGLISH in direction:
        sides += ["X-En " if direction.target == ENGLISH else "En-X "]
        names += [sides[1].strip()]
    names += [f"{side}{resource_class(lines)} resource" for side in sides] if lines else []
    return _Entry(direction, facts, names)


def _table(averages: Sequence[GroupAverage], entries: Sequence[_Entry]) -> str:
    """Return the averages, each with its number of directions, and the directions."""
    rows: list[tuple[str, str, Mapping[str, Any]]] = []
    for name, present, expected, means in averages:
        count = f"{present}" if present == expected else f"{present} of {expected} !"
        rows.append((name, count, means))
    for entry in entries:
        name = f"{entry.direction}{'*' if 'zero-shot' in entry.groups else ''}"
        rows.append((name, "1" if entry.facts else "?", entry.facts))
    cells = [["", "directions", *METRICS.values(), "off-target", "(of references)"]]
    for name, count, values in rows:
        shares = [number(values.get(key), percent=True) for key in SHARES]
        cells.append([name, count, *(number(values.get(key)) for key in METRICS), *shares])
    return markdown(cells)


def number(value: float | None, percent: bool = False) -> str:
    """Return a score, or a share in per cent, for people; empty for None."""
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if percent else f"{value:.2f}"
