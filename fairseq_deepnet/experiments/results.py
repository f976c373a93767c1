"""Run folders as rows of results.csv, which tables and figures read.

A cell of a sweep has two records: cell.json, written when it starts, contains its sweep and places;
result.json, written when it has ended, contains its status and score. Other runs have neither and
are judged by their logs.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fairseq_deepnet import ended
from fairseq_deepnet.divergence import events
from fairseq_deepnet.divergence.events import LEARNT, Kind
from fairseq_deepnet.experiments import paper
from fairseq_deepnet.files import inside_project, shown
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.configs import Config
from fairseq_deepnet.tools.corpora.binarise import unigram_nll
from fairseq_deepnet.tools.evaluation.scoring import TOKENISED
from fairseq_deepnet.tools.plotting.runs import LOG, read_metrics
from fairseq_deepnet.tools.scores import Score, decoding, read_score
from fairseq_deepnet.tools.training import launch

if TYPE_CHECKING:
    import pandas as pd

_TROUBLE: Final = (Kind.NOT_FINITE, Kind.LOSS_SPIKE, Kind.STALLED, Kind.LOSS_SCALE)
"""Events of the divergence watch that make a run diverged; vanished gradients do not."""
Points = Sequence[tuple[int, float]]
"""Updates and losses, in the order of updates."""
CELL: Final = "cell.json"
RESULT: Final = "result.json"
FILE: Final = "results.csv"
_PARAMETERS: Final = re.compile(r"num\. shared model params: ([\d,]+)")
_SMOOTHING: Final = 5
"""Number of logged training losses to average, as each is of different sentences."""
OPTIONS: Final = ("lr", "adam-eps", "freeze-norms", "max-update", "warmup-updates", "seed")
"""Options of a run that its row contains."""


class Status(StrEnum):
    """State of a run. The last three are results, which are kept when a sweep restarts."""

    TO_DO = "to do"
    UNFINISHED = "unfinished"
    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"

    @property
    def is_result(self) -> bool:
        """True if the run has ended, successfully or not."""
        return self in (Status.DONE, Status.DIVERGED, Status.FAILED)


def read_json(file: Path) -> dict[str, Any]:
    """Return a record of a cell, empty if it does not exist; raise ValueError if it is damaged."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
        Status(content.get("status", Status.TO_DO))
    except (ValueError, AttributeError) as error:
        message = f"{shown(file)} is damaged ({error}); remove it to run the cell again"
        raise ValueError(message) from error
    return dict(content)


@dataclass
class Run:
    """A run folder.

    Args:
        reason: why it is not done, or its score
        valid_loss, valid_nll: updates and validation losses, with and without label smoothing
        train_nll: updates and logged training losses
        speed: updates, and updates per second since the last one
        cell: record of the sweep's cell; empty for a run outside a sweep
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
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def updates(self) -> int:
        """Last update in the log."""
        points = [*self.train_nll[-1:], *self.valid_nll[-1:]]
        return max((update for update, _ in points), default=0)

    @property
    def warmup(self) -> int:
        """Number of warm-up updates."""
        return int(str(self.config.options.get("warmup-updates", 0)))

    def why_diverged(self, crashed: bool = False) -> str | None:
        """Return the reason why it has diverged, or None."""
        losses = self.train_nll, self.valid_nll
        return why_diverged(self.folder, *losses, self.warmup, self.unigram, crashed)

    def row(self) -> dict[str, Any]:
        """Return the line of results.csv: a value or None per column."""
        options, places = self.config.options, self.cell.get("places", [])
        row: dict[str, Any] = {
            "sweep": self.cell.get("sweep"),
            "title": self.cell.get("title"),
            "number": self.cell.get("number", 0),
            # panel:factor,factor for each place
            "panels": " ".join(f"{place['panel']}:{','.join(place['values'])}" for place in places),
            "run": self.name,
            **{key: value for place in places for key, value in place["values"].items()},
        }
        for name in OPTIONS:
            value = options.get(name)
            row.setdefault(name, None if value is None else paper.key(value))
        sides = [options.get(f"{side}-layers", "?") for side in ("encoder", "decoder")]
        speeds = [speed for _, speed in self.speed if speed > 0]
        row |= {
            "layers": "-".join(f"{depth}L" for depth in sides),
            "scheme_or_arch": options.get("residual-scheme", options.get("arch")),
            "shape": _shape(self.config),
            "tokens": tokens_of(self.config),
            "data": self.config.recipe.get("data"),
            "status": self.status.value,
            "reason": self.reason,
            "updates": self.updates,
            "parameters": _parameters(self.folder / LOG),
            "valid_loss": _last(self.valid_loss),
            "valid_nll": _last(self.valid_nll),
            "best_valid_loss": lowest(self.valid_loss),
            "best_valid_nll": lowest(self.valid_nll),
            "train_nll": _last(smoothed(self.train_nll)),
            "seconds_per_update": 1 / statistics.median(speeds) if speeds else None,
            "unigram_nll": self.unigram,
            "valid_losses": " ".join(f"{update}:{loss:.6g}" for update, loss in self.valid_loss),
        }
        return row | _of_score(self.score, self.updates)


_SCORE: Final = (
    *("bleu", "tokenised_bleu", "chrf", "x-en", "en-x", "average", "zero-shot"),
    *("signature", "tokenised_signature", "chrf_signature", "scored", "scored_on"),
)


def _of_score(score: Score | None, updates: int) -> dict[str, Any]:
    """Return the columns of a score: its numbers, and how they were obtained.

    `bleu` is sacreBLEU, averaged over the trained directions of a multilingual model;
    `tokenised_bleu` is the paper's kind for data of words.
    """
    if score is None:
        return dict.fromkeys(_SCORE)
    values, facts = score.values, score.facts
    lines = f"{score.of}, {int(facts.get('lines') or 0):,} sentences"
    if "directions" in facts:
        lines += f" in {facts['directions']} directions"
        if (expected := facts.get("expected") or facts["directions"]) != facts["directions"]:
            lines += f" of {expected}, INCOMPLETE"
        lines += " (BLEU: mean over the trained ones)"
    how = f"{lines}, {decoding(facts)}, {int(facts.get('updates') or updates):,} updates"
    return {
        "bleu": score.headline,
        "tokenised_bleu": values.get(TOKENISED),
        "chrf": values.get("chrf"),
        **{name: values.get(name) for name in ("x-en", "en-x", "average", "zero-shot")},
        "signature": score.signatures.get("bleu"),
        "tokenised_signature": score.signatures.get(TOKENISED),
        "chrf_signature": score.signatures.get("chrf"),
        "scored": how,
        "scored_on": score.of,
    }


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders of a path: the folder itself, or those in it (a sweep's).

    Hidden folders, whose runs were repeated, are skipped.
    """

    def is_run(path: Path) -> bool:  # a cell may have failed before it had a config
        return (path / "config.yaml").is_file() or (path / CELL).is_file()

    if is_run(folder):
        return [folder]
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    runs = sorted(path for path in folder.iterdir() if path.name[0] != "." and is_run(path))
    if not runs:
        raise FileNotFoundError(f"{shown(folder)} is no run folder, and holds none")
    return runs


def read_run(folder: Path, score: str | None = None) -> Run:
    """Read a run folder; the record decides how a cell ended, the log decides for other runs.

    Args:
        score: name of the score of a run outside a sweep; by default that of the default request
    """
    cell, result = read_json(folder / CELL), read_json(folder / RESULT)
    files = [folder / name for name in ("config.yaml", "cell.yaml") if (folder / name).is_file()]
    config = configs.recorded_config(files[0]) if files else Config(folder.name, {}, {})
    run = Run(folder, config, cell=cell, unigram=result.get("unigram_nll"))
    logged = read_metrics(folder, ("nll_loss", "loss", "ups"))
    has_nll = logged["nll_loss", "train"] or logged["nll_loss", "valid"]
    nll = "nll_loss" if has_nll else "loss"  # some criterions log nothing else
    run.valid_loss, run.speed = logged["loss", "valid"], logged["ups", "train"]
    run.valid_nll, run.train_nll = logged[nll, "valid"], logged[nll, "train"]
    if result:
        run.status, run.reason = Status(result["status"]), str(result.get("reason", ""))
        run.score = read_score(folder, result["score"]) if result.get("score") else None
    elif cell:
        run.reason = f"unfinished at update {run.updates}"
    else:
        run.unigram = unigram_level(config)
        run.score = read_score(folder, score and f"scores/{score}")
        diverged = run.why_diverged()
        if diverged is not None:
            run.status, run.reason = Status.DIVERGED, f"diverged: {diverged}"
        elif ended.is_complete(folder):
            run.status = Status.DONE
        else:
            run.reason = f"stopped at update {run.updates:,}"
    return run


def table_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a table of runs in the order of their sweeps."""
    rows = [run.row() for run in runs]
    names = dict.fromkeys(name for row in rows for name in row)
    frame = pandas().DataFrame(rows, columns=list(names))
    return frame.sort_values("number", kind="stable", ignore_index=True)


def read_table(path: Path) -> pd.DataFrame:
    """Read a results.csv; settings keep the spelling of the file."""
    frame = pandas().read_csv(path, dtype=str, keep_default_na=False)
    numbers = {"number", "updates", "parameters", "tokens", "bleu", "tokenised_bleu", "chrf"}
    numbers |= {"valid_loss", "valid_nll", "best_valid_loss", "best_valid_nll"}
    numbers |= {
        "train_nll",
        "unigram_nll",
        "seconds_per_update",
        "x-en",
        "en-x",
        "average",
        "zero-shot",
    }
    for name in frame.columns:
        if name in numbers:
            frame[name] = pandas().to_numeric(frame[name].replace("", None))
        else:
            frame[name] = frame[name].replace("", None)
    return frame


def pandas() -> Any:
    """Import pandas; ValueError names the package to install."""
    try:
        import pandas as module
    except ImportError as error:
        raise ValueError("tables need pandas: pip install 'fairseq_deepnet[paper]'") from error
    return module


def smoothed(points: Points) -> list[tuple[int, float]]:
    """Return the moving average of 5 losses (or half of a short list), at the last update of each.

    Losses that are not finite are left out.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    width = min(_SMOOTHING, max(1, len(finite) // 2))
    windows = [finite[end - width : end] for end in range(width, len(finite) + 1)]
    return [(window[-1][0], sum(loss for _, loss in window) / width) for window in windows]


def unigram_level(config: Config) -> float | None:
    """Return the validation loss of a unigram model on a config's data.

    None without the data, or for many directions.
    """
    data = inside_project(str(config.recipe.get("data", "")))
    manifest = data / "corpus.json"
    facts = json.loads(manifest.read_bytes()) if manifest.is_file() else {}
    target = config.options.get("target-lang") or facts.get("target")
    for file in (data / f"dict.{target}.txt", data / "dict.txt"):
        if file.is_file():
            from fairseq_deepnet.tools.planning.estimates import entries_of  # loads torch

            return unigram_nll(data.resolve(), target and str(target), entries_of(file))
    return None


def tokens_of(config: Config) -> int | None:
    """Return the number of tokens per update over all devices; None if the config has none."""
    wanted = config.recipe.get("global-batch-tokens")
    if wanted is not None:
        return launch.parse_tokens(wanted)
    limit = config.options.get("max-tokens")
    return int(str(limit)) if limit else None


def lowest(points: Points) -> float | None:
    """Return the lowest finite loss, or None."""
    return min((loss for _, loss in points if math.isfinite(loss)), default=None)


def _last(points: Points) -> float | None:
    return points[-1][1] if points else None


def _shape(config: Config) -> str | None:
    """Return width, FFN width and heads; None if only the arch defines them."""
    names = ("embed-dim", "ffn-embed-dim", "attention-heads")
    sizes = [config.options.get(f"encoder-{name}") for name in names]
    return None if None in sizes else "/".join(map(str, sizes))


def _parameters(log: Path) -> int | None:
    if log.is_file():
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if match := _PARAMETERS.search(line):
                    return int(match[1].replace(",", ""))
    return None


def why_diverged(
    run: Path,
    train: Points,
    valid: Points,
    warmup: int = 0,
    unigram: float | None = None,
    crashed: bool = False,
) -> str | None:
    """Return the reason why a run has diverged, or None. The paper states no rule.

    Losses are without label smoothing, in bits per token. BLEU is not used: a healthy young model
    scores below 1. The first matching rule decides:

    1. The last training loss or the last validation loss is not finite.
    2. The divergence watch reported an event (divergence.jsonl) that had not ended with the run: a
       gradient that is not finite, a rising loss, a stalled loss, or a collapsed loss scale. A
       fallback that ended well rescues a run.
    3. After the warm-up, the last validation loss is not at least LEARNT below that of a unigram
       model of the same data. A model just below that loss that still improves is slow, not
       stalled. A run that crashed did not have the updates to learn.
    """
    for name, points in (("training", train), ("validation", valid)):
        if points and not math.isfinite(points[-1][1]):
            return f"the last {name} loss, at update {points[-1][0]:,}, is {points[-1][1]}"
    return _unresolved(run, crashed) or (
        None if crashed else _stalled(train, valid, warmup, unigram)
    )


def _unresolved(run: Path, crashed: bool) -> str | None:
    """Return the last event of the watch that had not ended with the run."""
    trouble: dict[Kind, events.Event] = {}
    for event in events.read(run / events.NAME):
        was_rescued = event.policy != "warn" and not crashed
        if event.finding.kind in _TROUBLE:
            trouble.pop(event.finding.kind, None)
            if not (event.is_end or was_rescued):
                trouble[event.finding.kind] = event
    last = next(reversed(trouble.values()), None)
    return f"{last.finding.what}, at update {last.update:,}" if last is not None else None


def _stalled(train: Points, valid: Points, warmup: int, unigram: float | None) -> str | None:
    updates = max((points[-1][0] for points in (train, valid) if points), default=0)
    if unigram is None or not valid or updates < max(1, warmup):
        return None
    update, loss = valid[-1]
    earlier = [value for when, value in valid if 2 * when <= updates]
    falls = bool(earlier) and earlier[-1] - loss >= LEARNT
    if loss <= unigram - LEARNT or (loss < unigram and falls):
        return None
    return (
        f"stalled at a validation loss of {loss:.2f} bits per token at update {update:,}; "
        f"a unigram model has {unigram:.2f}"
    )
