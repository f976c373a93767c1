"""The scripts that a sweep starts: each in a session of its own, none of them outliving it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fairseq_deepnet.signals import end_with_parent

PATIENCE: Final = 60.0
"""Seconds that a stopped script has to write its last checkpoint and end."""


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a script whose output goes to the end of a file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=end_with_parent,  # where the sweep is killed outright
        )


def stop(processes: Sequence[subprocess.Popen[bytes]], patience: float = PATIENCE) -> None:
    """End scripts and all that they started; what does not end in time is killed.

    scripts/train.sh passes the signal on to fairseq-train, which is in a process group of its own,
    and waits for it. A second Ctrl-C while waiting kills at once.
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    limit = time.monotonic() + patience
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < limit and any(process.poll() is None for process in processes):
            time.sleep(0.1)
    for process in processes:
        _kill_session(process.pid)
        process.wait()


def _kill_session(session: int) -> None:
    """Kill what is left of a session: the process groups that a script made for its children."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
