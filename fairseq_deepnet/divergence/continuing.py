"""A run that has fallen back is given its first command again: it goes on as it had come to be.

Called while fairseq parses, before a model is built or a process started.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigurationError
from ..monitoring.records import run_folder
from . import attempts, fallbacks, restart
from .options import Policy, settings

logger = logging.getLogger(__name__)

PATIENCE: Final = 1800.0
"""Seconds that further processes wait for rank 0 to copy a checkpoint and to start anew."""


def check_watch(args: Any) -> None:
    """Refuse what cannot be done; go on with fallbacks taken before, which may not return.

    Raises:
        ConfigurationError: for options that contradict each other or cannot be honoured.
    """
    chosen = settings(args)
    if not restart.is_training_program() or restart.is_spawned():
        return
    if chosen.acts:
        restart.watch_children(lambda: _words_of(args))
    if chosen.policy is not Policy.FALLBACK:
        _warn_of_fallbacks(args)
        return
    restart.refuse_several_nodes(args)
    if getattr(args, "checkpoint_suffix", ""):
        raise ConfigurationError(
            "--on-divergence fallback contradicts --checkpoint-suffix; use --on-divergence stop"
        )
    _refuse_exhausted(args, len(chosen.steps))
    _go_on(args)


def _refuse_exhausted(args: Any, steps: int) -> None:
    """Refuse to make the last attempt again, which diverged: the same would come of it."""
    state = attempts.read(_folder(args))
    if steps <= state.exhausted:
        raise ConfigurationError(
            f"--fallbacks: this run has diverged after the last of {state.exhausted} steps"
            f" ({_folder(args) / attempts.NAME}); add steps, or give another --save-dir"
        )


def _folder(args: Any) -> Path:
    return run_folder(Path(args.save_dir))


def _is_first(args: Any) -> bool:
    return (getattr(args, "distributed_rank", 0) or 0) == 0


def _words_of(args: Any) -> list[str] | None:
    """The command that a run has come to; None where it is the present one."""
    state = attempts.read(_folder(args))
    if state.step == (args.fallback_step or 0):
        return None
    return restart.command(sys.orig_argv, state.overrides, state.step, state.resumes)


def _warn_of_fallbacks(args: Any) -> None:
    state = attempts.read(_folder(args))
    if state.step and _is_first(args):
        logger.warning(
            "%s holds what this run had fallen back to (%s); without --on-divergence fallback it"
            " does not count",
            _folder(args) / attempts.NAME,
            fallbacks.shown(state.overrides),
        )


def _go_on(args: Any) -> None:
    if _is_first(args):
        attempts.finish(_folder(args), Path(args.save_dir))
    words = _words_of(args)
    if words is not None:
        state = attempts.read(_folder(args))
        _refuse_changes(args, state)
        logger.warning(
            "fallback %d: this run has fallen back to %s (%s); remove that file and the checkpoints"
            " to start without",
            state.step,
            fallbacks.shown(state.overrides),
            _folder(args) / attempts.NAME,
        )
        restart.start_anew(words)
    _meet(args)


def _refuse_changes(args: Any, state: attempts.Attempts) -> None:
    """Refuse an option that a fallback changed and that is not as it was at first."""
    for option, value in state.overrides.items():
        if option == fallbacks.FP32:
            continue
        first, now = state.first_value(option), fallbacks.before(option, vars(args))
        if first is not None and now not in (first, value):
            raise ConfigurationError(
                f"--{option} {now} contradicts {_folder(args) / attempts.NAME}, by which this run"
                f" has fallen back from {first} to {value}; give --{option} {first} to go on, or"
                " remove that file to train with the new value"
            )


def _meet(args: Any) -> None:
    """Further processes start only after rank 0 has, or they would meet the one that is leaving."""
    state = attempts.read(_folder(args))
    if state.running == state.step:
        return
    if _is_first(args):
        state.running = state.step
        state.write(_folder(args))
        return
    wait_for(lambda: attempts.read(_folder(args)).running == state.step)


def wait_for(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait until a condition holds; TimeoutError after `patience` seconds."""
    until = time.monotonic() + patience
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("rank 0 has not started anew after a divergence")
        time.sleep(0.1)
