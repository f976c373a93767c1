"""A training that diverged is ended, or started anew from its last good state."""

from __future__ import annotations

import logging
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fairseq.distributed import utils as distributed

from .. import signals
from ..monitoring import records
from . import attempts, events, fallbacks, good_states, restart
from .options import Policy
from .precision import as_fp32
from .verdict import STOPPED

if TYPE_CHECKING:
    from .watch import Watch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A fallback that is to be taken.

    Arguments:
        step: its number, from 1
        changes: what it changes
        good: update and file of the state to go on from; None for the beginning
    """

    step: int
    changes: fallbacks.Step
    good: tuple[int, Path] | None


def leave(watch: Watch, trainer: Any, update: int) -> NoReturn:
    """What --on-divergence stop and fallback do; every process comes here, rank 0 decides.

    Rank 0 does its work before the others hear of it: where processes were started together, the
    first that ends takes the others with it. Whatever fails in that work, the training ends.
    """
    falls_back = watch.is_first and _falls_back(watch, trainer, update)
    if told(watch, trainer, falls_back):
        if restart.is_spawned():
            raise SystemExit(signals.RESTARTS)
        state = attempts.read(watch.folder)
        words = restart.command(sys.orig_argv, state.overrides, state.step, state.resumes)
        restart.start_anew(words)
    if watch.is_first:
        print(f"fairseq_deepnet: {_stopped(watch, update)}", file=sys.stderr, flush=True)
    told(watch, trainer, True)
    raise SystemExit(signals.STOPPED if restart.is_spawned() else 1)


def told(watch: Watch, trainer: Any, word: bool) -> bool:
    """What rank 0 says, in every process."""
    if watch.alone:
        return word
    return bool(distributed.broadcast_object(word, 0, trainer.data_parallel_process_group))


def _falls_back(watch: Watch, trainer: Any, update: int) -> bool:
    """Whether a fallback was taken; False where none is left, or the disk is full."""
    try:
        plan = _plan(watch, update)
        if plan is not None:
            _take(watch, trainer, update, plan)
        elif watch.settings.policy is Policy.FALLBACK:
            state = attempts.read(watch.folder)
            state.exhausted = len(watch.settings.steps)
            state.write(watch.folder)
        return plan is not None
    except Exception:
        logger.exception("no fallback could be taken")
        return False


def _last_good(watch: Watch, update: int) -> tuple[int, Path] | None:
    started = watch.due.finding.started if watch.due is not None else update
    return good_states.newest(watch.save_dir, started, watch.start)


def _plan(watch: Watch, update: int) -> Plan | None:
    """The next fallback that changes anything, from where the training is to go on."""
    settings = watch.settings
    if settings.policy is not Policy.FALLBACK or settings.step >= len(settings.steps):
        return None
    good = _last_good(watch, update)
    for number, step in enumerate(settings.steps[settings.step :], settings.step + 1):
        changes = fallbacks.that_help(step, settings.present, good[0] if good else 0)
        if changes:
            return Plan(number, changes, good)
    return None


def _take(watch: Watch, trainer: Any, update: int, plan: Plan) -> None:
    """Write down the step, then move what came after the good state and put that in its place."""
    good, state = plan.good, attempts.read(watch.folder)
    changes = fallbacks.overrides(plan.changes, watch.settings.present)
    if good is not None:
        part = watch.save_dir / attempts.PART
        good_states.copy(good[1], part)
        if fallbacks.FP32 in changes:
            as_fp32(part, trainer)
    folder = good_states.free_folder(watch.save_dir, "diverged", plan.step)
    before = {name: fallbacks.before(name, watch.settings.present) for name in changes}
    state.history.append(
        {
            "step": plan.step,
            "changes": " ".join(map(str, plan.changes)),
            "before": before,
            "overrides": changes,
            "event": {"update": update, **_short(watch)},
            "from_update": good[0] if good else 0,
        }
    )
    state.step, state.resumes = plan.step, good is not None
    state.overrides.update(changes)
    state.pending = attempts.Pending(folder.name, good[0] if good else None)
    state.write(watch.folder)
    _keep_records(watch.folder, folder)
    attempts.finish(watch.folder, watch.save_dir)
    logger.warning(
        "fallback %d: starting anew from %s with %s",
        plan.step,
        f"update {good[0]:,}" if good else "the beginning (there is no good state from before)",
        fallbacks.shown(changes),
    )


def _keep_records(source: Path, folder: Path) -> None:
    """What was measured while it diverged: the next attempt makes these updates again."""
    if (source / records.NAME).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / records.NAME, folder / records.NAME)


def _short(watch: Watch) -> dict[str, Any]:
    if watch.due is None:
        return {}
    return {"kind": watch.due.finding.kind.value, "started": watch.due.finding.started}


def _stopped(watch: Watch, update: int) -> str:
    """Keep the last good state, and say what happened and how to go on."""
    text = f"{STOPPED} {update:,}"
    if watch.due is not None:
        text += f" ({watch.due.finding.what})"
    if watch.settings.policy is Policy.FALLBACK:
        text += f" and no fallback is left after {watch.settings.step}"
        text += f" ({watch.folder / attempts.NAME})"
    text += f"; {watch.folder / events.NAME} tells more."
    try:
        good = _last_good(watch, update)
        if good is None:
            return f"{text} There is no good state from before; start anew with other options"
        target = watch.save_dir / good_states.LAST_GOOD
        if good[1] != target:
            good_states.copy(good[1], target)
    except OSError as error:
        return f"{text} The last good state could not be kept: {error}"
    return (
        f"{text} The last good state, of update {good[0]:,}, is {target}: go on from it with"
        f" --restore-file {target} and other options (scripts/train.sh: RESUME=1)"
    )
