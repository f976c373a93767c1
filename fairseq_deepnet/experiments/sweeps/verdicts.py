"""What a cell has come to: its status, why, and the facts that go into its record."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.divergence.verdict import why_diverged
from fairseq_deepnet.experiments.sweeps import evidence, state
from fairseq_deepnet.experiments.sweeps.cells import Cell
from fairseq_deepnet.experiments.sweeps.state import Status
from fairseq_deepnet.tools.evaluation.scores import read_score

_TAIL_LINES: Final = 20


def judge(
    folder: Path, stage: str, status: int, is_scored: bool, name: str | None = None
) -> tuple[Status, dict[str, Any]]:
    """What a cell has come to, from the script that ended last and its exit status.

    Arguments:
        stage: train or score, which of the scripts that was
        is_scored: whether its definition wants a score
        name: the score that counts (a file or folder in the cell's); None: the newest
    """
    score = read_score(folder, name) if is_scored and stage == "score" and status == 0 else None
    seen = evidence.gather(folder)
    facts: dict[str, Any] = {
        "exit_status": status,
        "updates": seen.updates,
        "last_train_nll": _as_json(seen.train_loss),
        "last_valid_nll": _as_json(seen.valid_loss),
        "unigram_nll": seen.unigram,
        "score": score.file if score else None,
        "log_tail": [],
    }
    diverged = why_diverged(seen, crashed=stage == "train" and status != 0)
    if diverged is not None:
        facts |= {"reason": f"diverged: {diverged}", "log_tail": _log_tail(folder)}
        return Status.DIVERGED, facts
    if status == 0 and is_scored and score is None:
        facts |= {"reason": "scripts/eval_bleu.sh left no score", "log_tail": _log_tail(folder)}
        return Status.FAILED, facts
    if status != 0:
        log = _log_tail(folder)
        said = next((line for line in reversed(log) if line.strip()), "nothing in its log")
        what = "training" if stage == "train" else "scoring"
        facts |= {"reason": f"{what} ended with status {status}: {said}", "log_tail": log}
        return Status.FAILED, facts
    if score is not None:
        return Status.DONE, facts | {"reason": score.described()}
    loss = seen.valid_loss
    said = "trained" if loss is None else f"trained, validation nll {loss:.3f}"
    return Status.DONE, facts | {"reason": said}


def judge_again(folder: Path, cell: Cell) -> str | None:
    """Bring the verdict on a cell that has run to its end up to today's rule.

    Gives back what has changed, for people; None where nothing has. A cell that failed or is not
    finished stays as it is. It is judged with the score that it has got, whether or not it is
    scored now; see `lacks_score`.
    """
    record = state.read(folder)
    if state.status_of(folder) not in (Status.DONE, Status.DIVERGED):
        return None
    name = record.get("score")
    is_scored = name is not None and (folder / name).exists()
    stage = "score" if is_scored or (folder / "done").is_file() else "train"
    outcome, facts = judge(folder, stage, int(record.get("exit_status", 0)), is_scored, name)
    before = record.get("reason")
    if record != record | facts or outcome != record["status"]:
        state.write(folder, cell, outcome, **facts)
    if (outcome, before) == (record["status"], facts["reason"]):
        return None
    return f"{cell.name}: {facts['reason']} (by today's rule; it was: {before})"


def lacks_score(folder: Path, cell: Cell) -> bool:
    """Whether a cell is sound and wants a score that nobody has made: it was trained for its losses
    alone, or the score was removed.
    """
    is_sound = state.status_of(folder) is Status.DONE
    return is_sound and cell.score is not None and state.read(folder).get("score") is None


def prune(folder: Path, cell: Cell) -> None:
    """Remove the checkpoints that a cell with a result is not to keep.

    One that failed goes on from its last checkpoint, so it keeps them all.
    """
    if cell.keep == "best" and state.status_of(folder) in (Status.DONE, Status.DIVERGED):
        best = folder / "checkpoints" / "checkpoint_best.pt"
        for file in best.parent.glob("*.pt") if best.is_file() else ():
            if file != best:
                file.unlink()


def _as_json(loss: float | None) -> float | str | None:
    """JSON has no words for what is not finite."""
    return loss if loss is None or math.isfinite(loss) else str(loss)


def _log_tail(folder: Path) -> list[str]:
    """The last lines of what the scripts printed: fairseq's last words, then how they ended."""
    return list(evidence.tail(folder / state.CONSOLE, _TAIL_LINES))
