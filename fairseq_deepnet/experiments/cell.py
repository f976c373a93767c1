"""Train and score one cell of a sweep in its own process, and record the result.

    python -m fairseq_deepnet.experiments.cell FOLDER

FOLDER contains cell.yaml, the config, and cell.json, the arguments of `deepnet train` and `deepnet
evaluate`. If there is no result.json afterwards, the cell was stopped; the same command resumes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fairseq_deepnet.ended import INTERRUPTED, PREEMPTED, UNSAVED
from fairseq_deepnet.experiments import results
from fairseq_deepnet.experiments.results import CELL, RESULT, Status
from fairseq_deepnet.files import say, write_json
from fairseq_deepnet.tools.scores import read_score
from fairseq_deepnet.tools.training import train

_STOPPED: Final = (PREEMPTED, UNSAVED, INTERRUPTED)
_TAIL: Final = 20
"""Number of last log lines that a failed result contains."""


def main(folder: Path) -> int:
    """Train and score a cell; return 0 if its result is written, otherwise the exit status."""
    cell = results.read_json(folder / CELL)
    words = [str(folder / "cell.yaml"), "--run", str(folder), *cell["train"]]
    status, score = call(train, words), None
    if status in _STOPPED:
        return status
    crashed = status != 0
    if not crashed and cell["score"] is not None:
        words = [str(folder), *cell["score_share"], *cell["score"]]
        from fairseq_deepnet.tools.evaluation import evaluate

        status, result = attempt(evaluate.score, evaluate, words)
        if result is not None:
            path, text = result
            print(text)
            score = str(path.relative_to(folder.resolve()))
        if status == INTERRUPTED:
            return status
    write_json(folder / RESULT, judge(folder, status, crashed, score) | {"scored": cell["score"]})
    return 0


def parse(module: Any, words: list[str]) -> argparse.Namespace:
    """Parse the arguments of a subcommand; `extra` holds those after --."""
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    args.extra = words[cut + 1 :]
    return args


def call(module: Any, words: list[str]) -> int:
    """Run a subcommand in this process; return its exit status."""
    status, code = attempt(module.run, module, words)
    return status or int(code)


def attempt(
    command: Callable[[argparse.Namespace], Any], module: Any, words: list[str]
) -> tuple[int, Any]:
    """Run a function with the arguments of a subcommand; return an exit status and its result."""
    try:
        return 0, command(parse(module, words))
    except (ValueError, OSError) as error:
        say(f"error: {error}")
        return 2, None
    except KeyboardInterrupt:
        return INTERRUPTED, None


def judge(folder: Path, status: int, crashed: bool, score: str | None) -> dict[str, Any]:
    """Return the result of a cell.

    Args:
        status: exit status of the last command
        crashed: True if that was the training command
        score: file or folder of the score; None if the cell is not scored
    """
    run = results.read_run(folder)
    run.unigram = results.unigram_level(run.config)
    diverged = run.why_diverged(crashed)
    read = read_score(folder, score) if score and not status else None
    tail = _tail(folder / "console.log")
    if diverged is not None:
        outcome, reason = Status.DIVERGED, f"diverged: {diverged}"
    elif status != 0:
        what = "training" if crashed else "scoring"
        last = next((line for line in reversed(tail) if line.strip()), "nothing in its log")
        outcome, reason = Status.FAILED, f"{what} ended with status {status}: {last}"
    elif score is not None and read is None:
        outcome, reason = Status.FAILED, f"there is no score {score}"
    else:
        outcome, reason = Status.DONE, read.described() if read else _trained(run)
    return {
        "status": outcome.value,
        "reason": reason,
        "exit_status": status,
        "updates": run.updates,
        "unigram_nll": run.unigram,
        "score": read.file if read else None,
        "log_tail": [] if outcome is Status.DONE else tail,
    }


def _trained(run: results.Run) -> str:
    if not run.valid_nll:
        return "trained"
    loss = run.valid_nll[-1][1]
    text = f"trained, validation nll {loss:.3f}"
    if run.unigram is not None and loss >= run.unigram:
        text += f", no better than the {run.unigram:.3f} of a unigram model"
    return text


def _tail(log: Path) -> list[str]:
    """Return the last lines of a log."""
    if not log.is_file():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1000 * _TAIL))
        return file.read().decode("utf-8", errors="replace").splitlines()[-_TAIL:]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
