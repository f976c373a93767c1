"""A training that diverged is ended, or started anew from its last good state."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import attempts, fallbacks, good_states, restart
from .events import Event
from .options import Policy, WatchSettings, wait_for
from .precision import as_fp32
from .verdict import STOPPED

if TYPE_CHECKING:
    from .watch import Watch

logger = logging.getLogger(__name__)


def leave(watch: Watch, trainer: Any, update: int) -> NoReturn:
    """What --on-divergence stop and fallback do; every process comes here, rank 0 decides."""
    settings = watch.settings
    if settings.policy is Policy.FALLBACK and _has_more(settings):
        if watch.judges:
            _take(watch, trainer, update)
        else:
            wait_for(lambda: attempts.read(watch.folder).step > settings.step)
        _start_anew(watch.folder)
    if watch.judges:
        restart.end(_stopped(watch, update))
    raise SystemExit(restart.STOPPED if restart.is_spawned() else 1)


def _has_more(settings: WatchSettings) -> bool:
    return _next(settings) is not None


def _next(settings: WatchSettings) -> int | None:
    """Index of the next fallback that changes anything."""
    for index in range(settings.step, len(settings.steps)):
        if not fallbacks.changes_nothing(settings.steps[index], settings.present):
            return index
    return None


def _take(watch: Watch, trainer: Any, update: int) -> None:
    """Choose the good state, move what came after it, and write down the next step."""
    settings, event = watch.settings, watch.due
    index = _next(settings)
    assert index is not None
    step = settings.steps[index]
    started = event.finding.started if event is not None else update
    state = attempts.read(watch.folder)
    good = good_states.newest(watch.save_dir, started)
    changes = fallbacks.overrides(step, settings.present)
    if good is not None:
        source = good[1]
        part = watch.save_dir / "good.part"
        good_states.copy(source, part)
        good_states.set_aside(watch.save_dir, good[0], index + 1)
        part.replace(watch.save_dir / good_states.LAST)
        if fallbacks.FP32 in changes:
            as_fp32(watch.save_dir / good_states.LAST, trainer)
    else:
        good_states.set_aside(watch.save_dir, None, index + 1)
    state.step = index + 1
    state.overrides.update(changes)
    state.resumes = good is not None
    state.history.append(
        {
            "step": state.step,
            "changes": " ".join(map(str, step)),
            "overrides": changes,
            "event": {"update": update, **_short(event)},
            "from_update": good[0] if good else 0,
        }
    )
    state.write(watch.folder)
    logger.warning(
        "fallback %d: starting anew from %s with %s",
        state.step,
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
    started = event.finding.started if event is not None else update
    good = good_states.newest(watch.save_dir, started)
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
        good_states.copy(good[1], target)
    return (
        f"{text} The last good state, of update {good[0]:,}, is {target}: go on from it with"
        f" --restore-file {target} and other options"
    )
