"""A run folder as experiments see it: its record in a sweep, how its training went, its numbers."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from fairseq_deepnet.divergence.verdict import Evidence, smoothed, why_diverged
from fairseq_deepnet.files import inside_project, shown
from fairseq_deepnet.records import read_record
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.configs import Config
from fairseq_deepnet.tools.corpora.binarise import unigram_nll
from fairseq_deepnet.tools.evaluation.run_scores import TOKENISED, RunScore, read_score
from fairseq_deepnet.tools.plotting.curves import LOG, Curves, read_metrics
from fairseq_deepnet.tools.training import launch

RECORD: Final = "sweep.json"
"""What a sweep writes into the folder of each of its cells."""
_PARAMETERS: Final = re.compile(r"num\. shared model params: ([\d,]+)")
_TAIL: Final = 200
"""Last lines of train.log in which fairseq's own verdict is looked for."""
_START: Final = "| fairseq_cli.train | {'_name'"
"""In the first line of each training in a log: its configuration."""
Points = list[tuple[int, float]]
"""Updates and what was logged at them."""


class Status(StrEnum):
    """Where a run stands. A result is what a later start of a sweep leaves alone."""

    TO_DO = "to do"
    UNFINISHED = "unfinished"
    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"

    @property
    def is_result(self) -> bool:
        """True if the run has come to its end, good or bad."""
        return self in (Status.DONE, Status.DIVERGED, Status.FAILED)


def read_cell_record(folder: Path) -> dict[str, Any]:
    """Return the record of a sweep's cell; empty for one that has never started."""
    file = folder / RECORD
    if not file.is_file():
        return {}
    content = read_record(file, remedy="remove it to run the cell")
    if content.get("status", Status.TO_DO) not in set(Status):
        raise ValueError(f"{shown(file)} is damaged: status {content['status']!r}; remove it")
    return content


# Evidence: what `why_diverged` judges.


def log_tail(log: Path, lines: int = _TAIL) -> tuple[str, ...]:
    """Return the last lines of a log of any size, of its last training; empty without a log."""
    if not log.is_file():
        return ()
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1000 * lines))
        text = file.read().decode("utf-8", errors="replace")
    last = text.splitlines()[-lines:]
    starts = [number for number, line in enumerate(last) if _START in line]
    return tuple(last[starts[-1] :] if starts else last)


def read_evidence(run: Path) -> Evidence:
    """Gather the evidence in a run folder, and in the data folder that its config names."""
    log = log_tail(run / LOG)
    curves = _nll(_logged(run))
    if curves is None:
        return Evidence(log_tail=log)
    config = configs.recorded_config(run)
    warmup = int(str(config.options.get("warmup-updates", 0)))
    symbols, (data, target) = vocabulary_of(config), _target(config)
    unigram = None if symbols is None else unigram_nll(data.resolve(), target, symbols)
    return Evidence(log, tuple(curves.train), tuple(curves.valid), warmup, symbols, unigram)


def _logged(run: Path) -> dict[str, Curves]:
    try:
        return read_metrics(run, ("nll_loss", "loss", "ups"))
    except FileNotFoundError:
        return {}


def _nll(logged: dict[str, Curves]) -> Curves | None:
    """Return negative log-likelihoods, or the loss where a criterion logs nothing else."""
    return logged.get("nll_loss") or logged.get("loss")


# What a config says.


def updates_of(config: Config) -> int | None:
    """Return the updates of a run; None where its config has epochs instead."""
    updates = config.options.get("max-update")
    return int(str(updates)) if updates else None


def tokens_of(config: Config) -> int | None:
    """Return the tokens of one update over all devices; None where the config is silent."""
    wanted = config.recipe.get("global-batch-tokens")
    if wanted is not None:
        return launch.parse_tokens(wanted)
    limit = config.options.get("max-tokens")
    return int(str(limit)) if limit else None


def _target(config: Config) -> tuple[Path, str | None]:
    """Return the data folder, and the language that is predicted; None where there are many."""
    data = inside_project(str(config.recipe.get("data", "")))
    manifest = data / "corpus.json"
    facts = read_record(manifest) if manifest.is_file() else {}
    target = config.options.get("target-lang") or facts.get("target")
    return data, None if target is None else str(target)


def vocabulary_of(config: Config) -> int | None:
    """Count the symbols of the target side in a data folder; None where that is not there."""
    from fairseq_deepnet.tools.planning.estimates import entries_of  # loads torch

    data, target = _target(config)
    files = (data / f"dict.{target}.txt", data / "dict.txt")
    return next((entries_of(file) for file in files if file.is_file()), None)


# Results.


@dataclass(frozen=True)
class RunResult:
    """What a run folder holds.

    Args:
        reason: why it is not done
        valid_loss, valid_nll: updates and validation losses, label-smoothed and not (bits a token)
        train_nll: updates and training losses, as logged at intervals
        updates_a_second: updates, and the speed since those before
        unigram: validation loss of a unigram model, where the sweep recorded it
        places: as the sweep recorded them
        definition: the sweep that it is a cell of; None for a run of its own
    """

    folder: Path
    config: Config
    status: Status
    reason: str
    updates: int
    parameters: int | None
    valid_loss: Points
    valid_nll: Points
    train_nll: Points
    updates_a_second: Points
    score: RunScore | None
    unigram: float | None = None
    places: tuple[dict[str, Any], ...] = ()
    definition: str | None = None

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.resolve().name


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders that a folder stands for: itself, or those in it (a sweep's).

    Hidden ones are left out: runs that were tried again, see state.py.
    """

    def is_run(path: Path) -> bool:  # one that a training made, or a cell that never came so far
        return (path / "config.yaml").is_file() or (path / RECORD).is_file()

    if is_run(folder):
        return [folder]
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    found = sorted(path for path in folder.iterdir() if path.name[0] != "." and is_run(path))
    if not found:
        raise FileNotFoundError(f"{shown(folder)} is no run folder, and holds none")
    return found


def read_result(run: Path) -> RunResult:
    """Read a run folder; a cell of a sweep ended as its record says, any other as its log does."""
    record = read_cell_record(run)
    files = [run / name for name in ("config.yaml", "cell.yaml") if (run / name).is_file()]
    logged, nothing = _logged(run), Curves(run.name)
    curves = _nll(logged) or nothing
    updates = max((points[-1][0] for points in (curves.train, curves.valid) if points), default=0)
    if record:
        status, reason = Status(record.get("status", Status.TO_DO)), str(record.get("reason", ""))
    elif (diverged := why_diverged(read_evidence(run))) is not None:
        status, reason = Status.DIVERGED, f"diverged: {diverged}"
    elif (run / "done").is_file():
        status, reason = Status.DONE, ""
    else:
        status, reason = Status.UNFINISHED, f"stopped at update {updates:,}"
    return RunResult(
        folder=run,
        config=configs.recorded_config(files[0]) if files else Config(run.name, {}, {}),
        status=status,
        reason=reason,
        updates=updates,
        parameters=_parameters(run / LOG),
        valid_loss=logged.get("loss", nothing).valid,
        valid_nll=curves.valid,
        train_nll=curves.train,
        updates_a_second=logged.get("ups", nothing).train,
        score=read_score(run, record.get("score")),
        unigram=record.get("unigram_nll"),
        places=tuple(record.get("places", ())),
        definition=record.get("definition"),
    )


def _parameters(log: Path) -> int | None:
    if log.is_file():
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if found := _PARAMETERS.search(line):
                    return int(found[1].replace(",", ""))
    return None


# Measures: what a table of a sweep's own can hold, one number of a run each.


class Measure(NamedTuple):
    """A number of a run that has come to its end; None where the run has none."""

    heading: str
    meaning: str
    axis: str
    digits: int
    value: Callable[[RunResult], float | None]


def bleu(run: RunResult) -> float | None:
    """Return the test set's BLEU, tokenised where a run has that too, as the paper's."""
    return None if run.score is None else run.score.values.get(TOKENISED, run.score.headline)


def _last(points: Points) -> float | None:
    return points[-1][1] if points else None


def _seconds(run: RunResult) -> float | None:
    speeds = [speed for _, speed in run.updates_a_second if speed > 0]
    return 1 / statistics.median(speeds) if speeds else None


MEASURES: Final[dict[str, Measure]] = {
    "bleu": Measure("BLEU", "BLEU of the test set", "BLEU, more is better", 1, bleu),
    "valid_nll": Measure(
        "valid nll",
        "validation loss of the last update: negative log-likelihood, bits a token",
        "validation nll (bits a token), less is better",
        2,
        lambda run: _last(run.valid_nll),
    ),
    "best_valid_nll": Measure(
        "best valid nll",
        "lowest validation loss of the run: negative log-likelihood, bits a token",
        "lowest validation nll (bits a token), less is better",
        2,
        lambda run: min((loss for _, loss in run.valid_nll), default=None),
    ),
    "valid_loss": Measure(
        "valid loss",
        "validation loss of the last update, with label smoothing, bits a token",
        "validation loss (bits a token), less is better",
        2,
        lambda run: _last(run.valid_loss),
    ),
    "train_nll": Measure(
        "train nll",
        "training loss, mean of the last 5 in the log: negative log-likelihood, bits a token",
        "training nll (bits a token), less is better",
        2,
        lambda run: _last(smoothed(run.train_nll)),
    ),
    "seconds_per_update": Measure(
        "s/update",
        "seconds an update, median of the log, with whatever else the machine did",
        "seconds an update",
        2,
        _seconds,
    ),
}
"""Name -> measure."""
