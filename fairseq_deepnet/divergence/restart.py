"""Starting fairseq-train anew in the same process, with other options; and ending it in one line.

`os.execv` keeps the process id, the environment, the working directory and the standard streams:
a script that waits for fairseq-train, or a pipe that reads its log, goes on unaware. Where fairseq
has spawned a process a GPU, these end with a status that their parent knows, and it starts anew.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

import torch

from ..errors import ConfigurationError
from ..signals import RESTARTS, STOPPED
from .fallbacks import FP32, PRECISIONS

STEP: Final = "fallback-step"
_RESETS: Final = ("reset-optimizer", "reset-lr-scheduler", "reset-meters", "reset-dataloader")
_LAUNCHERS: Final = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
_LOCAL: Final = ("localhost", "127.0.0.1", "::1", "")
_WAITS: Final = re.compile(r"tcp://\[?([^/\]]*?)\]?:\d+")


def _open_files() -> set[int]:
    with contextlib.suppress(OSError):
        return {int(file.name) for file in Path("/dev/fd").iterdir()}
    return set(range(256))


# What a shell handed down, such as the lock of a run folder, is to be handed on.
_INHERITED: Final = frozenset(_open_files())


def is_training_program() -> bool:
    """Whether this is fairseq-train (or a process that it spawned), not a program that calls it."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    return program.name in ("fairseq-train", "fairseq-train.exe") or (
        program.parts[-2:] == ("fairseq_cli", "train.py")
    )


def require_program() -> None:
    """Raise ConfigurationError where there is no fairseq-train that could be started anew."""
    if not is_training_program():
        raise ConfigurationError(
            "--on-divergence fallback starts fairseq-train anew, and this is another program; train"
            " with the fairseq-train command, or use --on-divergence stop"
        )


def refuse_several_nodes(args: Any) -> None:
    """Raise ConfigurationError where the processes are not all this fairseq-train's to restart."""
    why = _several_nodes(args)
    if why:
        raise ConfigurationError(
            f"--on-divergence fallback cannot start a training anew {why}; use --on-divergence stop"
        )


def _several_nodes(args: Any) -> str | None:
    if all(name in os.environ for name in _LAUNCHERS):
        return "that torchrun or the like has started"
    world = getattr(args, "distributed_world_size", 1) or 1
    if world == 1:
        return None
    method = _WAITS.match(getattr(args, "distributed_init_method", None) or "")
    if method and method[1] not in (*_LOCAL, socket.gethostname(), socket.getfqdn()):
        return f"that meets at {method[1]}, as several nodes do"
    if int(os.environ.get("SLURM_NNODES", 1)) > 1:
        return "on several nodes"
    spawned = not getattr(args, "distributed_no_spawn", False)
    if spawned and world > max(1, torch.cuda.device_count()):
        return "on several nodes"
    return None


def command(
    words: Sequence[str], overrides: Mapping[str, str], step: int, resumes: bool
) -> list[str]:
    """The command line of an attempt.

    Arguments:
        words: the present one, program and all
        overrides: option -> value, `fp32` without one; the last of an option's values counts
        step: fallbacks taken
        resumes: whether checkpoint_last.pt is to be gone on from, whatever `words` say
    """
    dropped = {f"--{name}" for name in PRECISIONS} if FP32 in overrides else set()
    if resumes:
        dropped |= {f"--{name}" for name in _RESETS}
    kept = [word for word in words if word not in dropped]
    kept += [f"--{name}={value}" for name, value in overrides.items() if name != FP32]
    if resumes:
        kept.append("--restore-file=checkpoint_last.pt")
    return [*kept, f"--{STEP}={step}"]


def start_anew(words: Sequence[str]) -> NoReturn:
    """Become the command `words`; never returns.

    What runs at the end of a process runs first: TensorBoard's writers are flushed and workers that
    load data end. Files and ports of this process are closed; those handed down to it stay open.
    """
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's would complain of ended workers
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for child in multiprocessing.active_children():
        child.kill()
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    for file in _open_files() - _INHERITED:
        with contextlib.suppress(OSError):
            os.set_inheritable(file, False)
    os.execv(sys.executable, list(words))


def is_spawned() -> bool:
    """Whether a fairseq-train above this process is the one to start anew."""
    return multiprocessing.parent_process() is not None


def watch_children(anew: Callable[[], Sequence[str] | None]) -> None:
    """Let the parent of spawned processes act on the status that they ended with.

    Arguments:
        anew: gives the command to become, None where there is no fallback to take
    """
    previous = sys.excepthook
    if getattr(previous, "watches_children", False):
        return

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        status = getattr(error, "exit_code", None)  # torch's ProcessExitedException
        if status == RESTARTS:
            words = anew()
            if words is not None:
                start_anew(words)
        if status == STOPPED:
            return  # the process that stopped has said why
        previous(kind, error, traceback)

    hook.watches_children = True  # type: ignore[attr-defined]
    sys.excepthook = hook
