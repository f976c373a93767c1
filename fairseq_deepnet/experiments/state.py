"""What a cell has come to: its record in CELL/sweep.json, the verdict on it, locks."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.divergence.verdict import why_diverged
from fairseq_deepnet.experiments.cells import Cell
from fairseq_deepnet.experiments.runs import (
    RECORD,
    Status,
    log_tail,
    read_cell_record,
    read_evidence,
)
from fairseq_deepnet.files import shown, try_lock
from fairseq_deepnet.records import strict, write_record
from fairseq_deepnet.tools import variables
from fairseq_deepnet.tools.evaluation.run_scores import read_score

CONSOLE: Final = "console.log"
"""What a cell's scripts print."""
_TAIL_LINES: Final = 20


def status_of(folder: Path) -> Status:
    """Return where a cell stands; one whose sweep was killed is unfinished."""
    return Status(read_cell_record(folder).get("status", Status.TO_DO))


def write(folder: Path, cell: Cell, status: Status, **facts: object) -> None:
    """Record a cell; facts of an earlier record are kept unless they are given anew."""
    folder.mkdir(parents=True, exist_ok=True)
    content = read_cell_record(folder) | {
        "cell": cell.name,
        "status": status.value,
        "places": list(map(dataclasses.asdict, cell.places)),
        "settings": cell.settings(),
        **facts,
    }
    write_record(folder / RECORD, content)


def refuse_changes(folder: Path, cells: list[Cell]) -> None:
    """Raise ValueError where a cell that has started would now have other settings.

    One that was never scored may be scored in any way.
    """
    for cell in cells:
        after = cell.settings()
        record = read_cell_record(folder / cell.name)
        before = record.get("settings", after)
        if record.get("score") is None and not any(key.startswith("score.") for key in before):
            after = {key: after[key] for key in after if not key.startswith("score.")}
        changed = [
            f"{key} {before.get(key)} -> {after.get(key)}"
            for key in sorted(before.keys() | after.keys())
            if before.get(key) != after.get(key)
        ]
        if changed:
            raise ValueError(
                f"{shown(folder / cell.name)} was run with other settings ({'; '.join(changed)}): "
                "choose another folder with --runs FOLDER, or remove the cell's"
            )


def begin_again(folder: Path) -> None:
    """Take a cell's result back. A failed one goes on from its last checkpoint; one that diverged
    starts anew, and its folder is kept under another name.
    """
    if status_of(folder) is not Status.DIVERGED:
        (folder / RECORD).unlink()
        return
    names = (folder.with_name(f".{folder.name}.diverged{n}") for n in itertools.count(1))
    folder.rename(next(name for name in names if not name.exists()))


def is_training(folder: Path) -> bool:
    """Return True if a training holds a run folder: one that a killed sweep left, still ending."""
    lock = folder / ".lock"
    if not lock.is_file():
        return False
    with lock.open("a", encoding="utf-8") as file:
        return not try_lock(file)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder; ValueError where another sweep does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="utf-8") as lock:
        if not try_lock(lock):
            raise ValueError(
                f"another sweep is at work in {shown(folder)}; wait for it, or set --runs FOLDER"
            )
        yield


def score_asked_for(folder: Path, cell: Cell) -> str | None:
    """Return the score that a cell's definition asks for, a file or folder in the cell's; None
    where it asks for none.
    """
    if cell.score is None:
        return None
    from fairseq_deepnet.checkpoints import LAST  # loads torch
    from fairseq_deepnet.tools import trained_model
    from fairseq_deepnet.tools.evaluation import evaluate

    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    variables.set_defaults(parser, cell.scoring()[0])
    args = parser.parse_args([])
    args.extra = cell.scoring()[1]
    names = (trained_model.BEST, LAST)
    there = [name for name in names if (folder / "checkpoints" / name).is_file()]
    checkpoint = Path([*there, *names][0]).stem
    checkpoint = f"average_{args.average}" if args.average else checkpoint
    model = trained_model.TrainedModel(folder / checkpoint, folder, [])
    name = f"scores/{evaluate.score_name(args, checkpoint, evaluate.other_text(args, model))}"
    return name if (folder / name).is_dir() else f"{name}.json"


def judge(folder: Path, stage: str, status: int, name: str | None) -> tuple[Status, dict[str, Any]]:
    """Judge what a cell has come to, from the script that ended last and its exit status.

    Args:
        stage: train or score, which of the scripts that was
        name: the score that counts, a file or folder in the cell's; None where none is wanted
    """
    is_scored = name is not None
    score = read_score(folder, name) if is_scored and stage == "score" and status == 0 else None
    seen = read_evidence(folder)
    # fairseq's last words, then how the scripts ended
    log = list(log_tail(folder / CONSOLE, _TAIL_LINES))
    diverged = why_diverged(seen, crashed=stage == "train" and status != 0)
    if diverged is not None:
        outcome, reason = Status.DIVERGED, f"diverged: {diverged}"
    elif status == 0 and is_scored and score is None:
        outcome, reason = Status.FAILED, f"scripts/eval_bleu.sh left no score {name}"
    elif status != 0:
        said = next((line for line in reversed(log) if line.strip()), "nothing in its log")
        what = "training" if stage == "train" else "scoring"
        outcome, reason = Status.FAILED, f"{what} ended with status {status}: {said}"
    else:
        loss = seen.valid_loss
        trained = "trained" if loss is None else f"trained, validation nll {loss:.3f}"
        outcome, reason = Status.DONE, trained if score is None else score.described()
    return outcome, {
        "exit_status": status,
        "updates": seen.updates,
        "last_train_nll": strict(seen.train_loss),
        "last_valid_nll": strict(seen.valid_loss),
        "unigram_nll": seen.unigram,
        "score": score.file if score else None,
        "log_tail": [] if outcome is Status.DONE else log,
        "reason": reason,
    }


def judge_again(folder: Path, cell: Cell) -> str | None:
    """Bring the verdict on a cell that has run to its end, and its places, up to today's rule.

    Returns what has changed, for people; None where nothing has. A cell that failed or is not
    finished stays as it is. It is judged with the score that is asked for, else with that which it
    has, wanted now or not.
    """
    record = read_cell_record(folder)
    if status_of(folder) not in (Status.DONE, Status.DIVERGED):
        return None
    names = (score_asked_for(folder, cell), record.get("score"))
    name = next((name for name in names if name and (folder / name).exists()), None)
    stage = "score" if name is not None or (folder / "done").is_file() else "train"
    outcome, facts = judge(folder, stage, int(record.get("exit_status", 0)), name)
    before = record.get("reason")
    places = list(map(dataclasses.asdict, cell.places))
    if record != record | facts | {"places": places} or outcome != record["status"]:
        write(folder, cell, outcome, **facts)
    if (outcome, before) == (record["status"], facts["reason"]):
        return None
    return f"{cell.name}: {facts['reason']} (by today's rule; it was: {before})"


def lacks_score(folder: Path, cell: Cell) -> bool:
    """Return True if a cell is sound and wants a score that was never made, or was removed."""
    is_sound = status_of(folder) is Status.DONE
    return is_sound and cell.score is not None and read_cell_record(folder).get("score") is None


def prune(folder: Path, cell: Cell) -> None:
    """Remove the checkpoints that a cell with a result is not to keep.

    One that failed goes on from its last checkpoint, so it keeps them all.
    """
    if cell.panel.keep == "best" and status_of(folder) in (Status.DONE, Status.DIVERGED):
        from fairseq_deepnet.sharding.split_record import remove_unused_rows

        best = folder / "checkpoints" / "checkpoint_best.pt"
        for file in best.parent.glob("*.pt") if best.is_file() else ():
            if file != best:
                file.unlink()
        remove_unused_rows(best.parent)
