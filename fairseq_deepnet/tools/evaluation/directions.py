"""Translation and scoring of language directions in several processes, and averaging of scores.

Each process loads the model once and translates parts of test sets, so that no process is idle. A
direction is finished when its JSON file exists. Each average comes with its number of directions.
"""

import functools
import importlib.util
import itertools
import math
import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from tqdm import tqdm

from fairseq_deepnet.ended import end_with_parent
from fairseq_deepnet.files import say, shown, write_text
from fairseq_deepnet.records import record_of, sha256, write_json
from fairseq_deepnet.tools.corpora.folder import DataFolder, Direction
from fairseq_deepnet.tools.corpora.text import read_lines
from fairseq_deepnet.tools.devices import use_gpu
from fairseq_deepnet.tools.evaluation import scoring
from fairseq_deepnet.tools.evaluation.scoring import METRICS
from fairseq_deepnet.tools.scores import SUMMARY
from fairseq_deepnet.tools.tables import listed, markdown
from fairseq_deepnet.tools.translation.engines import WINDOW, Engine

ENGLISH: Final = "en"
SHARES: Final = ("off_target", "off_target_floor")
"""Keys of the off-target rates (from 0 to 1) of translations and of references."""
_GROUPS: Final = ("X-En", "En-X", "all supervised", "zero-shot", "all")


@dataclass(frozen=True)
class Job:
    """A direction to be scored.

    Args:
        record: JSON file to write; the translations are written beside it.
        folder: the model's data folder. For Moses data, the binarised source is translated.
        options: all settings that affect the score, except the texts.
        zero_shot: the model was not trained on the direction.
    """

    direction: Direction
    source: Path
    reference: Path
    record: Path
    folder: DataFolder
    options: dict[str, Any]
    zero_shot: bool = False

    @property
    def files(self) -> list[Path]:
        """The files whose content affects the score."""
        if not self.folder.is_moses:
            return [self.source, self.reference]
        split = self.options["split"]
        tokens = self.folder.tokenised(split, self.direction.target)
        return [self.source, self.reference, tokens, *self.folder.binarised_source(split)]

    def request(self) -> dict[str, Any]:
        """Return what identifies the score: the options and the digests of the files."""
        return self.options | {"texts": [sha256(file) for file in self.files]}

    def read(self) -> dict[str, Any]:
        """Return the score's record, or an empty dict if the score is incomplete or outdated."""
        has_text = self.record.with_suffix(".txt").is_file()
        record = record_of(self.record, self.request(), "remove it to score again")
        return record or {} if has_text else {}

    def lines(self) -> list[str]:
        """Return the engine's input: text, or subwords of Moses tokens.

        Raises ValueError if the input and the reference differ in length or are empty.
        """
        folder, split = self.folder, self.options["split"]
        lines = folder.subwords(split) if folder.is_moses else list(read_lines(self.source))
        references = sum(1 for _ in read_lines(self.reference))
        if len(lines) != references or not lines:
            counts = f"{len(lines):,} and {references:,} lines; the counts must be equal and not 0"
            raise ValueError(f"{self.source} and {self.reference} have {counts}")
        return lines


_load: Callable[[], Engine]
"""Function that returns this process's model; the first call loads the model."""


def _start(load: Callable[..., Engine], threads: int, devices: Any) -> None:
    """Initialise a worker process and assign a device to it; its first task loads the model."""
    global _load
    import torch

    end_with_parent()
    device = devices.get()
    use_gpu(device)
    torch.set_num_threads(threads)
    _load = functools.cache(functools.partial(load, cpu=device is None))


def translate(lines: Sequence[str], direction: Direction) -> tuple[list[str], int]:
    """Translate lines with this process's model; also return the number of truncated lines."""
    engine = _load()
    engine.cut = 0
    texts = engine.translate(lines, direction)
    return texts, engine.cut


def finish(job: Job, facts: dict[str, Any], lines: list[str], cut: int) -> dict[str, Any]:
    """Score a direction, write its hypotheses and then its record, and return the record.

    Args:
        facts: record entries that describe the model and the beam search.
        lines: the engine's output: text, or subwords of Moses tokens.
        cut: number of lines that were too long for the model and were truncated.
    """
    folder, target = job.folder, job.direction.target
    references = list(read_lines(job.reference))
    hypotheses = folder.decode(lines, target) if folder.is_moses else lines
    scores = scoring.score(
        hypotheses,
        references,
        target_language=target,
        tokenizer=job.options["tokenizer"],
        lowercase=folder.is_lowercase,
    )
    if folder.is_moses:
        tokens = list(read_lines(folder.tokenised(job.options["split"], target)))
        scores |= scoring.score_tokens(lines, tokens)
    if folder.is_multilingual and importlib.util.find_spec("py3langid"):
        scores |= scoring.off_target_record(hypotheses, references, target, folder.languages)
    scores |= facts | {
        "direction": str(job.direction),
        "split": job.options["split"],
        "reference": shown(job.reference),
        "zero_shot": job.zero_shot,
        "cut": cut,
        "request": job.request(),
    }
    write_text(job.record.with_suffix(".txt"), "\n".join([*hypotheses, ""]))
    write_json(job.record, scores)
    return scores


def translate_all(
    jobs: Sequence[Job],
    facts: dict[str, Any],
    load: Callable[..., Engine],
    threads: int,
    processes: int,
    gpus: int,
) -> None:
    """Translate and score jobs; report truncated lines, and each score if there are several.

    Args:
        facts: record entries, shared by all jobs, that describe the model and the beam search.
        load: function that loads the model; each process calls it, with cpu=True to ignore GPUs.
        threads: number of CPU threads per process.
        gpus: number of GPUs that the processes share; 0 for the CPU.
    """
    # detect a missing tokenizer now, not after hours of translation
    for name in {j.options["tokenizer"] or scoring.tokenizer_of(j.direction.target) for j in jobs}:
        scoring.load_bleu(name)
    # processes start quickly if the fork server has imported fairseq; with GPUs, the import would
    # initialise CUDA, which forked processes cannot use
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__] if gpus else [__name__, "fairseq_deepnet.models"])
    devices = context.Queue()
    for index in range(processes):
        devices.put(index % gpus if gpus else None)
    bar = tqdm(unit=" sentences", mininterval=2, disable=len(jobs) > 1, leave=False)

    def work(job: Job) -> dict[str, Any]:
        lines = job.lines()
        # parts contain lines of similar length, the longest first; with eight parts per process,
        # the wait for the last part is short
        order = sorted(range(len(lines)), key=lambda number: -len(lines[number]))
        size = min(WINDOW * threads, max(16, math.ceil(len(lines) / (8 * processes))))
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        texts = ([lines[number] for number in part] for part in parts)
        results = pool.map(translate, texts, itertools.repeat(job.direction))
        bar.total, translated, cut = len(lines), dict[int, str](), 0
        for part, (result, too_long) in zip(parts, results, strict=True):
            translated |= zip(part, result, strict=True)
            cut += too_long
            bar.update(len(part))
        ordered = [translated[number] for number in range(len(lines))]
        return pool.submit(finish, job, facts, ordered, cut).result()

    pool = ProcessPoolExecutor(processes, context, _start, (load, threads, devices))
    # with two jobs at a time, the processes translate one while the other is scored
    with bar, pool, ThreadPoolExecutor(2) as feeders:
        try:
            for number, scores in enumerate(feeders.map(work, jobs), 1):
                name, cut = scores["direction"], scores["cut"]
                if len(jobs) > 1:
                    say(f"{number}/{len(jobs)} {name}: {scoring.numbers(scores)}")
                if cut:
                    say(f"{name}: truncated {cut:,} lines that were too long for the model")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def summarise(
    folder: Path, records: Mapping[Direction, dict[str, Any]], trained: Sequence[Direction]
) -> str:
    """Average the scores of directions, write table.md and summary.json, and return the table.

    Args:
        records: record of each direction, empty if it has no score; at least one has a score.
        trained: directions that are not zero-shot.
    """
    present = [record for record in records.values() if record]
    missing = [direction for direction, record in records.items() if not record]
    groups = {}
    for direction in records:
        groups[direction] = ["all", "all supervised" if direction in trained else "zero-shot"]
        if ENGLISH in direction and direction in trained:  # as in the paper's table 2
            groups[direction].append("X-En" if direction.target == ENGLISH else "En-X")
    averages: dict[str, dict[str, Any]] = {}
    rows: list[tuple[str, str, Mapping[str, Any]]] = []
    for group in _GROUPS:
        members = [record for name, record in records.items() if group in groups[name]]
        if members:
            count, expected = sum(map(bool, members)), len(members)
            averages[group] = {"directions": count, "expected": expected}
            for key in (*METRICS, *SHARES):
                values = [record[key] for record in members if record.get(key) is not None]
                averages[group][key] = round(fmean(values), 4) if values else None
            size = f"{count}" if count == expected else f"{count} of {expected} !"
            rows.append((group, size, averages[group]))
    for direction, record in records.items():
        star = "" if direction in trained else "*"
        rows.append((f"{direction}{star}", "1" if record else "?", record))
    cells = [["", "directions", *METRICS.values(), "off-target", "(of references)"]]
    for label, size, numbers in rows:
        shares = [number(numbers.get(key), percent=True) for key in SHARES]
        cells.append([label, size, *(number(numbers.get(key)) for key in METRICS), *shares])
    signatures = Counter(record["bleu_signature"] for record in present)
    tokenisations = (f"{text} ({count} directions)" for text, count in signatures.most_common())
    text = f"BLEU: {'; '.join(tokenisations)}. *: zero-shot.\n\n{markdown(cells)}"
    if missing:
        text = (
            f"INCOMPLETE: {len(present)} of {len(records)} directions are scored; missing:"
            f" {listed(missing, 12)}. Averages marked with ! lack some of their directions."
            f"\n\n{text}"
        )
    write_text(folder / "table.md", f"{text}\n")
    bleu = {name: means["bleu"] for name, means in averages.items()}
    shared = ("split", "beam", "lenpen", "averaged", "updates", "request")
    summary = {key: present[0].get(key) for key in shared} | {
        "texts": [digest for record in present for digest in record["request"]["texts"]],
        "x-en": bleu.get("X-En"),
        "en-x": bleu.get("En-X"),
        "average": bleu.get("all supervised"),
        "zero-shot": bleu.get("zero-shot"),
        "directions": len(present),
        "expected": len(records),
        "missing": list(map(str, missing)),
        "lines": sum(record["lines"] for record in present),
        "averages": averages,
        "bleu_signature": "; ".join(sorted(signatures)),
    }
    write_json(folder / SUMMARY, summary)
    return text


def number(value: float | None, percent: bool = False) -> str:
    """Format a score, or a share as a percentage; None becomes an empty string."""
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if percent else f"{value:.2f}"
