"""Run folders as rows of results.csv, from which tables and figures are built.

A cell of a sweep has two records: cell.json, written when the cell starts, names the sweep and the
cell's panels; result.json, written at the end, has its status and score. Other runs have neither.
"""

from __future__ import annotations

import functools
import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fairseq_deepnet.divergence import events
from fairseq_deepnet.divergence.events import LEARNT, Kind
from fairseq_deepnet.experiments import paper
from fairseq_deepnet.files import ROOT, shown
from fairseq_deepnet.monitoring import records
from fairseq_deepnet.monitoring.records import Record
from fairseq_deepnet.records import ENVIRONMENT, read_record, short_digest
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.configs import Config
from fairseq_deepnet.tools.corpora.binarise import unigram_nll
from fairseq_deepnet.tools.evaluation.scoring import TOKENISED
from fairseq_deepnet.tools.plotting.runs import LOG, Points, read_metrics
from fairseq_deepnet.tools.scores import Score, read_score, read_scores
from fairseq_deepnet.tools.training import fallbacks, launch

if TYPE_CHECKING:
    import pandas as pd

_TROUBLE: Final = (Kind.NOT_FINITE, Kind.LOSS_SPIKE, Kind.STALLED, Kind.LOSS_SCALE)
"""Events of the divergence watch that count as divergence; vanished gradients do not."""
CELL: Final = "cell.json"
RESULT: Final = "result.json"
FILE: Final = "results.csv"
_HALF: Final = re.compile(r" --(?:memory-efficient-)?(bf16|fp16)(?!\S)")
_PARAMETERS: Final = re.compile(r"num\. shared model params: ([\d,]+)")
OPTIONS: Final = ("lr", "adam-eps", "freeze-norms", "max-update", "warmup-updates", "seed")
"""Options that are columns of results.csv."""
FALLBACKS: Final = "; trained with the fallbacks "


class Status(StrEnum):
    """State of a run. The last three are results, of which a repeated sweep retries only FAILED."""

    TO_DO = "to do"
    UNFINISHED = "unfinished"
    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"


def read_json(file: Path) -> dict[str, Any]:
    """Read a cell's record, or {} if the file does not exist; raise ValueError if it is damaged."""
    remedy = "remove it to run the cell again"
    record = read_record(file, remedy=remedy) if file.is_file() else {}
    if record and file.name == RESULT and record.get("status") not in list(Status):
        raise ValueError(f"{shown(file)} has the unknown status {record.get('status')!r}; {remedy}")
    return record


@dataclass
class Run:
    """A run folder.

    Args:
        reason: the score of a successful run, or the reason why there is none
        valid_loss, valid_nll: validation losses with and without label smoothing
        train_nll: logged training losses, without label smoothing
        speed: updates per second
        unigram: validation loss of a unigram model on the same data
        cell: content of cell.json; empty for a run that is not a cell of a sweep
    """

    folder: Path
    config: Config
    status: Status = Status.UNFINISHED
    reason: str = ""
    valid_loss: Points = ()
    valid_nll: Points = ()
    train_nll: Points = ()
    speed: Points = ()
    score: Score | None = None
    unigram: float | None = None
    cell: dict[str, Any] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """Last update in the log, or 0."""
        points = [*self.train_nll[-1:], *self.valid_nll[-1:]]
        return max((update for update, _ in points), default=0)

    @functools.cached_property
    def records(self) -> list[Record]:
        """Records of monitored updates."""
        file = self.folder / records.NAME
        return list(records.read(file)) if file.is_file() else []

    def why_diverged(self, crashed: bool = False) -> str | None:
        """Return the reason why the run diverged, or None. The paper does not state a rule.

        Losses are without label smoothing, in bits per token. BLEU is not used, because a healthy
        model scores below 1 early in training. The first matching rule applies:

        1. The last training loss or the last validation loss is not finite.
        2. The divergence watch reported an event (divergence.jsonl) that lasted to the end of the
           run: a gradient that is not finite, a rising loss, a stalled loss, or a collapsed loss
           scale. An event of any kind counts if it stopped the run (--on-divergence stop), and none
           counts if the watch's policy rescued the run.
        3. After the warm-up, the last validation loss is not lower than a unigram model's by at
           least LEARNT. A run whose loss is only slightly below the unigram model's but still
           falling is slow, not stalled. This rule does not apply to a run that crashed.
        """
        for name, points in (("training", self.train_nll), ("validation", self.valid_nll)):
            if points and not math.isfinite(points[-1][1]):
                return f"the last {name} loss, at update {points[-1][0]:,}, is {points[-1][1]}"
        taken = len(fallbacks.read(self.folder))
        for event in reversed(events.not_ended(events.read(self.folder / events.NAME)).values()):
            was_rescued = event.attempt < taken or (event.policy != "warn" and not crashed)
            has_stopped = crashed and event.policy == "stop"  # at an event of any kind
            if (event.kind in _TROUBLE or has_stopped) and not was_rescued:
                return f"{event.what}, at update {event.update:,}"
        warmup = int(str(self.config.options.get("warmup-updates", 0)))
        is_young = self.updates < max(1, warmup)
        if crashed or is_young or self.unigram is None or not self.valid_nll:
            return None
        update, loss = self.valid_nll[-1]
        earlier = [value for when, value in self.valid_nll if 2 * when <= self.updates]
        falls = bool(earlier) and earlier[-1] - loss >= LEARNT
        if loss <= self.unigram - LEARNT or (loss < self.unigram and falls):
            return None
        return (
            f"stalled at a validation loss of {loss:.2f} bits per token at update {update:,}; "
            f"a unigram model has {self.unigram:.2f}"
        )

    def row(self) -> dict[str, Any]:
        """Return the run's line of results.csv: column -> value, or None if there is no value."""
        options, places = self.config.options, self.cell.get("places", [])
        settings = {name: options.get(name) for name in OPTIONS}
        factors = {key: value for place in places for key, value in place["values"].items()}
        sides = [options.get(f"{side}-layers", "?") for side in ("encoder", "decoder")]
        # width, FFN width and heads, unless only the arch defines them
        names = ("embed-dim", "ffn-embed-dim", "attention-heads")
        shape = [options.get(f"encoder-{name}") for name in names]
        file = self.folder / ENVIRONMENT
        facts = read_record(file) if file.is_file() else {}
        git, history = facts.get("git"), self.folder / "command.txt"
        starts = history.read_text(encoding="utf-8").splitlines() if history.is_file() else []
        data, texts = self.config.recipe.get("data"), facts.get("data", {}).get("text_sha256")
        target = self.config.recipe.get("global-batch-tokens")
        batch = facts.get("batch") or launch.choose_batch(options, target, devices=1)  # rounded
        log = self.folder / LOG
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        parameters = _PARAMETERS.findall(text)[-1:]  # a log may begin with a failed attempt
        speeds = [speed for _, speed in self.speed if speed > 0]
        valid = [loss for _, loss in self.valid_nll]
        is_unscored = self.score is None and self.status is Status.DONE
        others = [score.name for score in read_scores(self.folder)] if is_unscored else []
        # a single training loss is noisy, because each is measured on different sentences
        last_train = [loss for _, loss in self.train_nll if math.isfinite(loss)][-5:]
        return {
            "sweep": self.cell.get("sweep"),
            "title": self.cell.get("title"),
            "number": self.cell.get("number", 0),
            # panel:factor,factor for each place
            "panels": " ".join(f"{place['panel']}:{','.join(place['values'])}" for place in places),
            "run": self.folder.resolve().name,
            **{n: None if value is None else paper.key(value) for n, value in settings.items()},
            **factors,
            "layers": "-".join(f"{depth}L" for depth in sides),
            "scheme_or_arch": options.get("residual-scheme", options.get("arch")),
            "shape": None if None in shape else "/".join(map(str, shape)),
            "tokens": int(str(batch).split()[0].replace(",", "")) if batch else None,
            "precision": ["fp32", *_HALF.findall(starts[-1])][-1] if starts else None,
            "data": f"{data} (text {short_digest(str(sorted(texts.items())))})" if texts else data,
            "code": git and re.sub("([0-9a-f]{7})[0-9a-f]{33}", r"commit \1", git),
            "status": self.status.value,
            "reason": self.reason,
            "updates": self.updates,
            "parameters": int(parameters[0].replace(",", "")) if parameters else None,
            "valid_loss": self.valid_loss[-1][1] if self.valid_loss else None,
            "valid_nll": valid[-1] if valid else None,
            "best_valid_nll": min(filter(math.isfinite, valid), default=None),
            "train_nll": statistics.fmean(last_train) if last_train else None,
            "seconds_per_update": 1 / statistics.median(speeds) if speeds else None,
            "valid_losses": " ".join(f"{update}:{loss:.6g}" for update, loss in self.valid_loss),
            **_of_score(self.score, self.updates),
            "other_scores": " ".join(others) or None,
            **factors,  # again, as a factor may have the name of a column
        }


def _of_score(score: Score | None, updates: int) -> dict[str, Any]:
    """Return a score's columns in results.csv: its numbers, and how they were obtained.

    `bleu` is sacreBLEU's BLEU, averaged over the trained directions of a multilingual model.
    `bleu_tokenised`, for Moses data only, is the BLEU of tokenised text, which the paper reports.
    """
    means = ("x-en", "en-x", "average", "zero-shot")
    metrics = ("bleu", TOKENISED, "chrf")
    names = (*metrics, *means, *(f"{name}_signature" for name in metrics), "scored")
    if score is None:
        return dict.fromkeys(names)
    columns = score.values | {"bleu": score.headline, "scored": score.how(updates)}
    columns |= {f"{name}_signature": text for name, text in score.signatures.items()}
    return {name: columns.get(name) for name in names}


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run folder, or else the run folders in it.

    Hidden folders are skipped.
    """
    for paths in ([folder], sorted(folder.glob("[!.]*"))):
        # a cell may have failed before it had a config
        names = ("config.yaml", CELL)
        if runs := [path for path in paths if any((path / name).is_file() for name in names)]:
            return runs
    raise FileNotFoundError(f"{shown(folder)} is not a run folder and contains none")


def read_run(folder: Path) -> Run:
    """Read a run folder's config and log, and the status and the score in its records."""
    cell, result = read_json(folder / CELL), read_json(folder / RESULT)
    files = [folder / name for name in ("config.yaml", "cell.yaml") if (folder / name).is_file()]
    config = configs.recorded_config(files[0]) if files else Config(folder.name, {}, {})
    run = Run(folder, config, cell=cell, unigram=result.get("unigram_nll"))
    logged = read_metrics(folder, ("nll_loss", "loss", "ups", "wps", "wpb"))
    has_nll = logged["nll_loss", "train"] or logged["nll_loss", "valid"]
    nll = "nll_loss" if has_nll else "loss"  # some criterions log nothing else
    words = dict(logged["wpb", "train"])  # fairseq rounds ups, to 0.00 in slow runs
    speed = [(u, wps / words[u]) for u, wps in logged["wps", "train"] if words.get(u)]
    run.valid_loss, run.speed = logged["loss", "valid"], speed or logged["ups", "train"]
    run.valid_nll, run.train_nll = logged[nll, "valid"], logged[nll, "train"]
    if result:
        run.status, run.reason = Status(result["status"]), str(result.get("reason", ""))
        run.reason += fallbacks_of(folder)
        run.score = read_score(folder, result["score"]) if result.get("score") else None
    elif cell:
        run.reason = f"unfinished at update {run.updates}"
    return run


def fallbacks_of(folder: Path) -> str:
    """Return a note on the fallbacks that a run has taken, or an empty string."""
    steps = [fallback["change"] for fallback in fallbacks.read(folder)]
    return f"{FALLBACKS}{', '.join(steps)}" if steps else ""


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """Read each run in some folders once; see `find_runs`."""
    found = dict.fromkeys(run.resolve() for folder in folders for run in find_runs(folder))
    return [read_run(run) for run in found]


def unigram_level(config: Config) -> float | None:
    """Return the validation loss of a unigram model on a config's data.

    Return None if the data are missing or have several directions.
    """
    data = config.data or ROOT
    manifest = data / "corpus.json"
    facts = json.loads(manifest.read_bytes()) if manifest.is_file() else {}
    target = config.options.get("target-lang") or facts.get("target")
    for file in (data / f"dict.{target}.txt", data / "dict.txt"):
        if file.is_file():
            from fairseq_deepnet.tools.planning.estimates import entries_of  # loads torch

            return unigram_nll(data.resolve(), target and str(target), entries_of(file))
    return None


def table_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a table with a line per run, in the order of the sweep's cells."""
    import pandas as pd

    rows = pd.DataFrame([run.row() for run in runs])
    return rows.sort_values("number", kind="stable", ignore_index=True)
