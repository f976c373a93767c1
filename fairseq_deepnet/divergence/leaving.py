"""A training that diverged is ended, or started anew from its last good state."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fairseq.distributed import utils as distributed

from . import attempts, fallbacks, good_states, restart
from .events import Event
from .options import Policy, wait_for
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
    """What --on-divergence stop and fallback do; every process comes here, rank 0 decides."""
    plan = _plan(watch, update) if watch.judges else None
    if _told(watch, trainer, plan is not None):
        if plan is not None:
            _take(watch, trainer, update, plan)
        else:
            wait_for(lambda: attempts.read(watch.folder).step > watch.settings.step)
        _start_anew(watch.folder)
    if watch.judges:
        print(f"fairseq_deepnet: {_stopped(watch, update)}", file=sys.stderr, flush=True)
    # processes that were started together end together: who is first would end rank 0 at its work
    _told(watch, trainer, True)
    raise SystemExit(restart.STOPPED if restart.is_spawned() else 1)


def _told(watch: Watch, trainer: Any, word: bool) -> bool:
    """What rank 0 says, in every process."""
    if watch.alone:
        return word
    return bool(distributed.broadcast_object(word, 0, trainer.data_parallel_process_group))


def _started(watch: Watch, update: int) -> int:
    return watch.due.finding.started if watch.due is not None else update


def _plan(watch: Watch, update: int) -> Plan | None:
    """The next fallback that changes anything, from where the training is to go on."""
    settings = watch.settings
    if settings.policy is not Policy.FALLBACK or settings.step >= len(settings.steps):
        return None
    good = good_states.newest(watch.save_dir, _started(watch, update), watch.start)
    for number, step in enumerate(settings.steps[settings.step :], settings.step + 1):
        changes = fallbacks.that_help(step, settings.present, good[0] if good else 0)
        if changes:
            return Plan(number, changes, good)
    return None


def _take(watch: Watch, trainer: Any, update: int, plan: Plan) -> None:
    """Move what came after the good state, put it in place, and write down the step."""
    good, state = plan.good, attempts.read(watch.folder)
    changes = fallbacks.overrides(plan.changes, watch.settings.present)
    if good is not None:
        part = watch.save_dir / "good.part"
        good_states.copy(good[1], part)
        good_states.set_aside(watch.save_dir, good[0], plan.step)
        part.replace(watch.save_dir / good_states.LAST)
        if fallbacks.FP32 in changes:
            as_fp32(watch.save_dir / good_states.LAST, trainer)
    else:
        good_states.set_aside(watch.save_dir, None, plan.step)
    state.step = plan.step
    state.overrides.update(changes)
    state.resumes = good is not None
    state.history.append(
        {
            "step": plan.step,
            "changes": " ".join(map(str, plan.changes)),
            "overrides": changes,
            "event": {"update": update, **_short(watch.due)},
            "from_update": good[0] if good else 0,
        }
    )
    state.write(watch.folder)
    logger.warning(
        "fallback %d: starting anew from %s with %s",
        plan.step,
        f"update {good[0]:,}" if good else "the beginning (no good state is old enough)",
        fallbacks.shown(changes),
    )


def _short(event: Event | None) -> dict[str, Any]:
    if event is None:
        return {}
    return {"kind": event.finding.kind.value, "started": event.finding.started}


def _start_anew(folder: Path) -> NoReturn:
    if restart.is_spawned():
        raise SystemExit(restart.RESTARTS)
    state = attempts.read(folder)
    restart.start_anew(restart.command(sys.orig_argv, state.overrides, state.step, state.resumes))


def _stopped(watch: Watch, update: int) -> str:
    """Keep the last good state, and say what happened and how to go on."""
    settings, event = watch.settings, watch.due
    good = good_states.newest(watch.save_dir, _started(watch, update), watch.start)
    text = f"{STOPPED} {update:,}"
    if event is not None:
        text += f" ({event.finding.what})"
    if settings.policy is Policy.FALLBACK:
        text += f" and no fallback is left after {settings.step}"
    text += f"; {watch.folder / 'divergence.jsonl'} tells more."
    if good is None:
        return f"{text} There is no good state from before; start anew with other options"
    target = watch.save_dir / good_states.LAST_GOOD
    if good[1] != target:
        try:
            good_states.copy(good[1], target)
        except OSError as error:
            return f"{text} The last good state is {good[1]}; it could not be copied: {error}"
    return (
        f"{text} The last good state, of update {good[0]:,}, is {target}: go on from it with"
        f" --restore-file {target} and other options"
    )
