"""What a run folder tells: settings, how it ended, validation losses, and its test score."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_deepnet.files import shown
from fairseq_deepnet.tools import configs
from fairseq_deepnet.tools.evaluation.scores import Score, read_score
from fairseq_deepnet.tools.plotting.curves import Curves, read_curves

_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")


@dataclass(frozen=True)
class Result:
    """A run folder.

    Arguments:
        status: done, diverged, failed or unfinished, see sweeps/state.py
        reason: why it is not done
        valid_loss, valid_nll: updates and validation losses, label-smoothed and not (bits a token)
        train_nll: updates and training losses, as logged at intervals
        updates_a_second: updates, and the speed since those before
        unigram: validation loss of a unigram model, where the sweep recorded it
        places: as the sweep recorded them
        definition: the sweep that it is a cell of; None for a run of its own
    """

    folder: Path
    config: configs.Config
    status: str
    reason: str
    updates: int
    parameters: int | None
    valid_loss: list[tuple[int, float]]
    valid_nll: list[tuple[int, float]]
    train_nll: list[tuple[int, float]]
    updates_a_second: list[tuple[int, float]]
    score: Score | None
    unigram: float | None = None
    places: tuple[dict[str, Any], ...] = ()
    definition: str | None = None

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.resolve().name


def _curve(run: Path, metric: str) -> Curves:
    try:
        return read_curves(run, metric)
    except (FileNotFoundError, ValueError):
        return Curves(run.name)


def _parameters(run: Path) -> int | None:
    log = run / "train.log"
    if log.is_file():
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                found = _PARAMETERS.search(line)
                if found:
                    return int(found[1].replace(",", ""))
    return None


def is_run(folder: Path) -> bool:
    """Whether a folder is one that a training made, or a cell that never came so far."""
    return (folder / "config.yaml").is_file() or (folder / "sweep.json").is_file()


def read_result(run: Path) -> Result:
    """Read a run folder; a cell of a sweep ended as its record says, any other as its log does."""
    from fairseq_deepnet.divergence.verdict import why_diverged
    from fairseq_deepnet.experiments.sweeps import state
    from fairseq_deepnet.experiments.sweeps.evidence import gather, nll_curves

    record = state.read(run)
    score = read_score(run, record.get("score"))
    files = [run / name for name in ("config.yaml", "cell.yaml") if (run / name).is_file()]
    config = configs.load_config(str(files[0])) if files else configs.Config(run.name, {}, {})
    curves = nll_curves(run) or Curves(run.name)
    updates = max((points[-1][0] for points in (curves.train, curves.valid) if points), default=0)
    if record:
        status, reason = state.status_of(run).value, str(record.get("reason", ""))
    else:
        diverged = why_diverged(gather(run))
        is_done = (run / "done").is_file()
        status = state.Status.DONE.value if is_done else state.Status.UNFINISHED.value
        reason = "" if is_done else f"stopped at update {updates:,}"
        if diverged is not None:
            status, reason = state.Status.DIVERGED.value, f"diverged: {diverged}"
    return Result(
        folder=run,
        config=config,
        status=status,
        reason=reason,
        updates=updates,
        parameters=_parameters(run),
        valid_loss=_curve(run, "loss").valid,
        valid_nll=curves.valid,
        train_nll=curves.train,
        updates_a_second=_curve(run, "ups").train,
        score=score,
        unigram=record.get("unigram_nll"),
        places=tuple(record.get("places", ())),
        definition=record.get("definition"),
    )


def find_runs(folder: Path) -> list[Path]:
    """The run folders that a folder stands for: itself, or those in it (a sweep's).

    Hidden ones are left out: runs that were tried again, see sweeps/state.py.
    """
    if is_run(folder):
        return [folder]
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    inside = (path for path in folder.iterdir() if not path.name.startswith("."))
    found = sorted(path for path in inside if path.is_dir() and is_run(path))
    if not found:
        raise FileNotFoundError(f"{shown(folder)} is no run folder, and holds none")
    return found
